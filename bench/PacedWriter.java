package bench;

import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;

// MessageExtBrokerInner lies in org.apache.rocketmq.store up to 4.9 and in common.message from 5.0 on.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;

/**
 * Puts messages into a running store at a steady rate, one key each.
 *
 * <p>Takes "store" (a MessageStore), "rate" (messages a second), "seconds", "body" (bytes), "topics" and
 * "queues"; answers with "messages", "end", "nanos" that all took, and "behind", by how many nanoseconds the last one
 * came late. With "messages" it puts so many, as fast as it can.
 */
public final class PacedWriter implements Function<Map<String, Object>, Map<String, Object>> {
    private static final long TICK_NANOS = 1_000_000;
    private static final int MOST_REFUSALS = 10_000;

    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 50000);

    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        MessageStore store = (MessageStore) request.get("store");
        boolean paced = !request.containsKey("messages");
        long rate = paced ? number(request, "rate") : 1_000_000_000L;
        long messages = paced ? rate * number(request, "seconds") : number(request, "messages");
        int topics = (int) number(request, "topics");
        int queues = (int) number(request, "queues");
        byte[] body = new byte[(int) number(request, "body")];
        java.util.Arrays.fill(body, (byte) 'x');
        long begun = System.nanoTime();
        long due = 0;
        for (long count = 0; count < messages; count++) {
            if (count >= due) {
                long next = begun + count * 1_000_000_000L / rate;
                for (long now = System.nanoTime(); now < next; now = System.nanoTime()) {
                    LockSupport.parkNanos(next - now);
                }
                due = count + Math.max(rate * TICK_NANOS / 1_000_000_000L, 1);
            }
            put(store, message(count, topics, queues, body));
        }
        long nanos = System.nanoTime() - begun;
        long behind = nanos - messages * 1_000_000_000L / rate;
        return Map.of("messages", messages, "end", store.getMaxPhyOffset(), "nanos", nanos, "behind", behind);
    }

    private static long number(Map<String, Object> request, String name) {
        return ((Number) request.get(name)).longValue();
    }

    private MessageExtBrokerInner message(long count, int topics, int queues, byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("paced-" + count % topics);
        message.setQueueId((int) (count / topics % queues));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        message.setBody(body);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, "order-" + System.nanoTime());
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private static void put(MessageStore store, MessageExtBrokerInner message) {
        for (int refusals = 0; ; refusals++) {
            PutMessageResult result = store.putMessage(message);
            if (result.isOk()) {
                return;
            }
            if (refusals == MOST_REFUSALS) {
                throw new IllegalStateException("the store answers " + result.getPutMessageStatus());
            }
            LockSupport.parkNanos(TICK_NANOS);
        }
    }
}
