package compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** Keeps what a push consumer is given, in the order of its arrival; it may fail on some of it, each time. */
public class Collector implements MessageListenerConcurrently {
    private final List<MessageExt> messages = new ArrayList<>();
    private String refused;

    public Collector another() {
        return new Collector();
    }

    /** One that fails on messages whose body has this text. */
    public Collector refusing(String text) {
        Collector made = new Collector();
        made.refused = text;
        return made;
    }

    @Override
    public synchronized ConsumeConcurrentlyStatus consumeMessage(
        List<MessageExt> given, ConsumeConcurrentlyContext context) {
        messages.addAll(given);
        if (refused != null) {
            for (MessageExt message : given) {
                if (new String(message.getBody(), StandardCharsets.UTF_8).contains(refused)) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    public synchronized int count() {
        return messages.size();
    }

    public synchronized List<MessageExt> messages() {
        return new ArrayList<>(messages);
    }
}
