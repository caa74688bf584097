package torture;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Function;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Clients of a real broker: a producer of messages of all kinds at a rate that comes in bursts, and consumers
 * that fail on some, so that the broker itself writes, too.
 *
 * <p>A Function of a Map, so that py4j reaches it without its class being on the JVM's class path. With
 * "nameServer", "rate" (messages a second in the mean), "seed", "timers" (whether the broker has a timer wheel)
 * and "pop" (whether it lets a consumer group pop) it begins and returns at once; with "stop" it ends. Each call
 * answers with "messages" (sent) and, when sending has failed, "error".
 */
public final class ClientLoad
        implements Function<Map<String, Object>, Map<String, Object>>, Runnable, TransactionListener {
    private static final String[] TAGS = {"TagA", "TagB", "Größe", "標籤", "tag🚀", "polygenelubricants"};
    private static final String[] KEYS = {"order", "invoice", "订单", "ключ", "🚀🛰", "a#b"};
    private static final double[] BURSTS = {0, 0.05, 0.5, 1, 1, 1.5, 3};
    private static final long TICK_MS = 5;
    private static final int MOST_REFUSALS = 100;

    private Random random;
    private double rate;
    private boolean timers;
    private long number;
    private DefaultMQProducer producer;
    private TransactionMQProducer transactions;
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private Thread thread;
    private volatile boolean stopping;
    private volatile long messages;
    private volatile String error;

    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        try {
            if (request.containsKey("nameServer")) {
                begin(request);
            }
            if (request.containsKey("stop")) {
                end();
            }
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("messages", messages);
        if (error != null) {
            answer.put("error", error);
        }
        return answer;
    }

    private void begin(Map<String, Object> request) throws Exception {
        String nameServer = (String) request.get("nameServer");
        rate = ((Number) request.get("rate")).doubleValue();
        random = new Random(((Number) request.get("seed")).longValue());
        timers = (Boolean) request.get("timers");
        producer = new DefaultMQProducer("load");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("load");
        producer.start();
        transactions = new TransactionMQProducer("load-transactions");
        transactions.setNamesrvAddr(nameServer);
        transactions.setInstanceName("load-transactions");
        transactions.setTransactionListener(this);
        transactions.start();
        consume(nameServer, "pullers", false);
        if ((Boolean) request.get("pop")) {
            consume(nameServer, "poppers", true);
        }
        thread = new Thread(this, "client-load");
        thread.setDaemon(true);
        thread.start();
    }

    /** A consumer group that fails on one message in four: the broker keeps it for later, and at last as dead. */
    private void consume(String nameServer, String group, boolean pop) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe("Returns", "*");
        if (pop) { // 5.x only
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(
                    List<MessageExt> received, ConsumeConcurrentlyContext context) {
                context.setDelayLevelWhenNextConsume(1);
                boolean fails = received.get(0).getQueueOffset() % 4 == 0;
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        consumer.start();
        consumers.add(consumer);
    }

    private void end() throws InterruptedException {
        stopping = true;
        thread.join();
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        transactions.shutdown();
        producer.shutdown();
    }

    @Override
    public void run() {
        try {
            while (!stopping) {
                burst(rate * BURSTS[random.nextInt(BURSTS.length)], 100 + random.nextInt(1_500));
            }
        } catch (Exception failure) {
            error = failure.toString();
        }
    }

    private void burst(double perSecond, long milliseconds) throws Exception {
        long began = System.nanoTime();
        long done = 0;
        for (long now = 0; now < milliseconds && !stopping; now = (System.nanoTime() - began) / 1_000_000) {
            for (long due = (long) (perSecond * now / 1_000); done < due && !stopping; ) {
                int sent = sendSomething();
                done += sent;
                messages += sent;
            }
            Thread.sleep(TICK_MS);
        }
    }

    /** One message, or a batch of them; returns how many. */
    private int sendSomething() throws Exception {
        int kind = random.nextInt(100);
        if (kind < 4) {
            return sendInTransaction(message("Transfers"));
        }
        if (kind < 8) {
            Message message = message("Delayed");
            message.setDelayTimeLevel(1 + random.nextInt(random.nextBoolean() ? 2 : 18));
            return send(message);
        }
        if (kind < 11 && timers) {
            Message message = message("Timed");
            // MessageConst.PROPERTY_TIMER_DELAY_MS, 5.x
            MessageAccessor.putProperty(message, "TIMER_DELAY_MS", String.valueOf(500 + random.nextInt(8_000)));
            return send(message);
        }
        if (kind < 14) {
            Message message = message("Parent");
            int first = random.nextInt(4);
            String queues = "%LMQ%device-" + first + (random.nextBoolean() ? ",%LMQ%device-" + (first + 1) : "");
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", queues);
            return send(message);
        }
        if (kind < 17) {
            List<Message> batch = new ArrayList<>();
            for (int count = 2 + random.nextInt(6); batch.size() < count; ) {
                batch.add(message("Orders"));
            }
            return send(batch);
        }
        if (kind < 27) {
            return send(message("Returns"));
        }
        return send(message(random.nextInt(3) > 0 ? "Orders" : "Lieferungen-2024"));
    }

    private Message message(String topic) {
        number++;
        int most = random.nextInt(300) == 0 ? 60_000 : 400;
        Message message = new Message(topic, "x".repeat(1 + random.nextInt(most)).getBytes(StandardCharsets.UTF_8));
        int keys = random.nextInt(4);
        if (keys > 0) {
            StringBuilder text = new StringBuilder();
            for (int at = 0; at < keys; at++) {
                text.append(at == 0 ? "" : " ").append(KEYS[random.nextInt(KEYS.length)]);
                text.append(random.nextBoolean() ? "" : "-" + number);
            }
            message.setKeys(text.toString());
        }
        if (random.nextInt(10) > 2) {
            message.setTags(TAGS[random.nextInt(TAGS.length)]);
        }
        return message;
    }

    private int send(Message message) throws Exception {
        return again(() -> producer.send(message), 1);
    }

    private int send(List<Message> batch) throws Exception {
        return again(() -> producer.send(batch), batch.size());
    }

    private int sendInTransaction(Message message) throws Exception {
        return again(() -> transactions.sendMessageInTransaction(message, null), 1);
    }

    private interface Sending {
        SendResult send() throws Exception;
    }

    /** A broker short of a processor refuses messages for a moment. */
    private int again(Sending sending, int count) throws Exception {
        for (int refusals = 0; ; refusals++) {
            try {
                sending.send();
                return count;
            } catch (Exception refused) {
                if (refusals == MOST_REFUSALS || stopping) {
                    throw refused;
                }
                Thread.sleep(100);
            }
        }
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        int fate = Math.floorMod(message.getTransactionId().hashCode(), 4);
        return fate == 0
                ? LocalTransactionState.UNKNOW // the broker asks later
                : fate == 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return LocalTransactionState.COMMIT_MESSAGE;
    }
}
