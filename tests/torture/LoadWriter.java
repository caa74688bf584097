package torture;

import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Function;
import java.util.zip.CRC32;

// MessageExtBrokerInner lies in org.apache.rocketmq.store up to 4.9 and in common.message from 5.0 on:
// imported on demand, it is found in either.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.*;

/**
 * Appends messages of all kinds to a running store, at a rate that comes in bursts, until it is told to stop.
 *
 * <p>A Function of a Map, so that py4j reaches it without its class being on the JVM's class path. With "store"
 * (a MessageStore), "rate" (messages a second in the mean), "seed" and "delayed" it begins and returns at once;
 * with "stop" it ends. Each call answers with "messages" and, when writing has failed, "error".
 */
public final class LoadWriter implements Function<Map<String, Object>, Map<String, Object>>, Runnable {
    private static final String[] TAGS = {"TagA", "TagB", "Größe", "標籤", "tag🚀", "polygenelubricants"};
    private static final String[] KEYS = {"order", "invoice", "订单", "ключ", "🚀🛰", "a#b"};
    private static final double[] BURSTS = {0, 0.05, 0.5, 1, 1, 1.5, 3};
    private static final long TICK_MS = 5;
    private static final int MOST_REFUSALS = 1_000;
    private static final long SEGMENT = 2 << 20; // tests/torture/generator.py

    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private MessageStore store;
    private Random random;
    private double rate;
    private boolean delayed;
    private long number;
    private Thread thread;
    private volatile boolean stopping;
    private volatile long messages;
    private volatile String error;

    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        if (request.containsKey("store")) {
            store = (MessageStore) request.get("store");
            rate = ((Number) request.get("rate")).doubleValue();
            long seed = ((Number) request.get("seed")).longValue();
            random = new Random(seed);
            number = seed << 32;
            delayed = (Boolean) request.get("delayed");
            thread = new Thread(this, "load-writer");
            thread.setDaemon(true);
            thread.start();
        }
        if (request.containsKey("stop")) {
            stopping = true;
            try {
                thread.join();
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("messages", messages);
        if (error != null) {
            answer.put("error", error);
        }
        return answer;
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

    private void burst(double perSecond, long milliseconds) throws InterruptedException {
        long began = System.nanoTime();
        long done = 0;
        for (long now = 0; now < milliseconds && !stopping; now = (System.nanoTime() - began) / 1_000_000) {
            for (long due = (long) (perSecond * now / 1_000); done < due; ) {
                int written = write();
                done += written;
                messages += written;
            }
            Thread.sleep(TICK_MS);
        }
    }

    /** One message, or a batch of them; returns how many. */
    private int write() throws InterruptedException {
        int kind = random.nextInt(100);
        if (kind < 4) {
            int type = new int[] {
                MessageSysFlag.TRANSACTION_PREPARED_TYPE,
                MessageSysFlag.TRANSACTION_COMMIT_TYPE,
                MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
            }[random.nextInt(3)];
            MessageExtBrokerInner message = message("Transfers", random.nextInt(2));
            message.setSysFlag(type);
            return put(message);
        }
        if (kind < 6 && delayed) {
            return put(delayedMessage(1 + random.nextInt(18)));
        }
        if (kind < 9) {
            MessageExtBrokerInner message = message("Parent", random.nextInt(2));
            int first = random.nextInt(4);
            String queues = "%LMQ%device-" + first;
            if (random.nextBoolean()) {
                queues += ",%LMQ%device-" + (first + 1);
            }
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", queues);
            return put(message);
        }
        if (kind < 12) {
            return batch(2 + random.nextInt(6));
        }
        if (kind < 14) {
            return put(message("%RETRY%group-" + random.nextInt(8), 0));
        }
        if (kind < 17) {
            return put(hostile());
        }
        // Half of all in one queue, so that it rolls often.
        boolean often = random.nextBoolean();
        String topic = often || random.nextBoolean() ? "Orders" : "Lieferungen-für-2024";
        return put(message(topic, often ? 0 : random.nextInt(4)));
    }

    private MessageExtBrokerInner message(String topic, int queue) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queue);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        fill(message);
        return message;
    }

    /** A message whose body holds records that say their right place, and closing records, as a forger would. */
    private MessageExtBrokerInner hostile() {
        MessageExtBrokerInner message = message("Orders", 1);
        long place = store.getMaxPhyOffset() + 88;
        int size = 400 + random.nextInt(random.nextInt(30) == 0 ? 60_000 : 3_000);
        ByteBuffer body = ByteBuffer.allocate(size);
        byte[] text = "forged".getBytes(StandardCharsets.UTF_8);
        CRC32 crc = new CRC32();
        crc.update(text);
        byte[] topic = "Orders".getBytes(StandardCharsets.UTF_8);
        int length = 91 + text.length + topic.length;
        body.position(random.nextInt(100));
        while (body.remaining() > length + 8) {
            if (random.nextInt(8) == 0) {
                long left = SEGMENT - (place + body.position()) % SEGMENT;
                body.putInt((int) left).putInt(0xCBD43194);
                continue;
            }
            long at = place + body.position();
            body.putInt(length).putInt(0xDAA320A7).putInt((int) crc.getValue() & 0x7FFFFFFF);
            body.putInt(0).putInt(0).putLong(random.nextInt(100_000)).putLong(at).putInt(0);
            body.putLong(System.currentTimeMillis()).putLong(0x7F00000100002A9FL);
            body.putLong(System.currentTimeMillis() + 60_000).putLong(0x7F00000100002A9FL);
            body.putInt(0).putLong(0).putInt(text.length).put(text);
            body.put((byte) topic.length).put(topic).putShort((short) 0);
            if (random.nextInt(5) == 0) {
                body.position(Math.min(body.position() + random.nextInt(300), size));
            }
        }
        message.setBody(body.array());
        return message;
    }

    private MessageExtBrokerInner delayedMessage(int level) {
        // The 4.9 store itself moves a delayed message to the schedule topic; in 5.x the broker does.
        boolean moves = MessageExtBrokerInner.class.getPackageName().equals("org.apache.rocketmq.store");
        MessageExtBrokerInner message =
                moves ? message("Delayed", level % 4) : message("SCHEDULE_TOPIC_XXXX", level - 1);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_DELAY_TIME_LEVEL, String.valueOf(level));
        return message;
    }

    private void fill(Message message) {
        number++;
        // Now and then one that takes a good part of a segment.
        int most = random.nextInt(300) == 0 ? 60_000 : 400;
        message.setBody("x".repeat(random.nextInt(most)).getBytes(StandardCharsets.UTF_8));
        int keys = random.nextInt(4);
        if (keys > 0) {
            StringBuilder text = new StringBuilder();
            for (int at = 0; at < keys; at++) {
                text.append(at == 0 ? "" : " ").append(KEYS[random.nextInt(KEYS.length)]);
                text.append(random.nextBoolean() ? "" : "-" + number);
            }
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, text.toString());
        }
        if (random.nextInt(10) > 0) {
            String id = String.format("7F0000010A2B18B4%016X", number);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, id);
        }
        if (random.nextInt(10) > 2) {
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_TAGS, TAGS[random.nextInt(TAGS.length)]);
        }
    }

    private int batch(int count) throws InterruptedException {
        List<Message> messages = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            Message message = new Message();
            message.setTopic("Orders");
            fill(message);
            messages.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic("Orders");
        batch.setQueueId(random.nextInt(4));
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(host);
        batch.setStoreHost(host);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        MessageAccessor.setProperties(batch, new HashMap<>());
        for (int refusals = 0; !store.putMessages(batch).isOk(); refusals++) {
            again(refusals);
        }
        return count;
    }

    private int put(MessageExtBrokerInner message) throws InterruptedException {
        if (message.getProperties() == null) {
            MessageAccessor.setProperties(message, new HashMap<>());
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        for (int refusals = 0; !store.putMessage(message).isOk(); refusals++) {
            again(refusals);
        }
        return 1;
    }

    private void again(int refusals) throws InterruptedException {
        // For a moment, when the disk is behind or the next segment isn't there yet.
        if (refusals == MOST_REFUSALS) {
            throw new IllegalStateException("the store takes no message");
        }
        Thread.sleep(10);
    }
}
