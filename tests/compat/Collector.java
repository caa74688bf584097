package compat;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** Keeps what a push consumer is given, in the order of its arrival. */
public class Collector implements MessageListenerConcurrently {
    private final List<MessageExt> messages = new ArrayList<>();

    public Collector another() {
        return new Collector();
    }

    @Override
    public synchronized ConsumeConcurrentlyStatus consumeMessage(
        List<MessageExt> given, ConsumeConcurrentlyContext context) {
        messages.addAll(given);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    public synchronized int count() {
        return messages.size();
    }

    public synchronized List<MessageExt> messages() {
        return new ArrayList<>(messages);
    }
}
