package day;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.InetSocketAddress;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;

// MessageExtBrokerInner lies in org.apache.rocketmq.store up to 4.9 and in common.message from 5.0 on.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;

/**
 * Puts messages into a running store at a steady rate, and counts those that the store took by queue, in a file.
 *
 * <p>The file is mapped: its counts outlive a JVM that is killed. They are longs, of the queue with number n the
 * n-th, and the next writer over the same file goes on where they end.
 *
 * <p>With "store" (a MessageStore), "rate" (messages a second), "counts" (the file), "topics" and "queues" it
 * begins and returns at once; with "until" it writes up to so many messages, all writers together, and then waits
 * for a higher number; with "stop" it ends. Each call answers with "messages" of all writers, "late", by how many
 * nanoseconds the next message is late, and "most_late", the most since the call before. A wait isn't lateness.
 */
public final class FeedWriter implements Function<Map<String, Object>, Map<String, Object>>, Runnable {
    private static final long TICK_NANOS = 1_000_000;
    private static final int MOST_REFUSALS = 60_000;
    private static final int LEAST_BODY = 80;
    private static final int BODIES = 41;

    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 50000);
    private MessageStore store;
    private MappedByteBuffer counts;
    private long rate;
    private int topics;
    private int queues;
    private Thread thread;
    private volatile boolean stopping;
    private volatile long until;
    private volatile long messages;
    private volatile long late;
    private volatile long mostLate;
    private volatile String error;

    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        if (request.containsKey("until")) {
            until = number(request, "until");
        }
        if (request.containsKey("store")) {
            begin(request);
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
        answer.put("late", late);
        answer.put("most_late", mostLate);
        mostLate = 0;
        if (error != null) {
            answer.put("error", error);
        }
        return answer;
    }

    private void begin(Map<String, Object> request) {
        store = (MessageStore) request.get("store");
        rate = number(request, "rate");
        topics = (int) number(request, "topics");
        queues = (int) number(request, "queues");
        long length = 8L * topics * queues;
        try (RandomAccessFile file = new RandomAccessFile((String) request.get("counts"), "rw")) {
            file.setLength(length);
            counts = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, length);
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
        for (int at = 0; at < length; at += 8) {
            messages += counts.getLong(at);
        }
        thread = new Thread(this, "feed-writer");
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    public void run() {
        try {
            long first = messages;
            long begun = System.nanoTime();
            long tick = Math.max(rate * TICK_NANOS / 1_000_000_000L, 1);
            while (!stopping) {
                if (messages >= until) {
                    long pause = System.nanoTime();
                    while (!stopping && messages >= until) {
                        LockSupport.parkNanos(TICK_NANOS);
                    }
                    begun += System.nanoTime() - pause;
                    continue;
                }
                long next = begun + (messages - first) * 1_000_000_000L / rate;
                long now = System.nanoTime();
                if (now < next) {
                    late = 0;
                    LockSupport.parkNanos(next - now);
                    continue;
                }
                late = now - next;
                mostLate = Math.max(mostLate, late);
                for (long end = Math.min(messages + tick, until); messages < end && !stopping; ) {
                    put(messages);
                    messages++;
                }
            }
        } catch (Exception failure) {
            error = failure.toString();
        }
    }

    private void put(long number) {
        int topic = (int) (number % topics);
        int queue = (int) (number / topics % queues);
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("day-" + topic);
        message.setQueueId(queue);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        message.setBody(body(number));
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, "order-" + number);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TAGS, "tag-" + number % 7);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        for (int refusals = 0; ; refusals++) {
            PutMessageResult result = store.putMessage(message);
            if (result.isOk()) {
                break;
            }
            if (refusals == MOST_REFUSALS) {
                throw new IllegalStateException("the store answers " + result.getPutMessageStatus());
            }
            LockSupport.parkNanos(TICK_NANOS);
        }
        int at = 8 * (topic * queues + queue);
        counts.putLong(at, counts.getLong(at) + 1);
    }

    /** Its length and what is in it follow from the number; no byte is zero. */
    private byte[] body(long number) {
        byte[] body = new byte[LEAST_BODY + (int) (number % BODIES)];
        long bits = number * 0x9E3779B97F4A7C15L + System.nanoTime();
        for (int at = 0; at < body.length; at++) {
            bits ^= bits << 13;
            bits ^= bits >>> 7;
            bits ^= bits << 17;
            body[at] = (byte) ('0' + (bits & 63));
        }
        return body;
    }

    private static long number(Map<String, Object> request, String name) {
        return ((Number) request.get(name)).longValue();
    }
}
