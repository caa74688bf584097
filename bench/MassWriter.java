package bench;

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Function;

// MessageExtBrokerInner lies in org.apache.rocketmq.store up to 4.9 and in common.message from 5.0 on:
// imported on demand, it is found in either.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;

/**
 * Puts messages into a running store until its commit log has a given length.
 *
 * <p>A Function of a Map, so that py4j reaches it without its class being on the JVM's class path. Takes
 * "store" (a MessageStore), "bytes", "threads", "topics", "queues", and if they aren't to be as usual "body" (bytes,
 * not less than 1) and "keys" (index keys of a message, of which one is UNIQ_KEY); answers with "messages" and
 * "end".
 */
public final class MassWriter implements Function<Map<String, Object>, Map<String, Object>> {
    private static final String[] TAGS = {"created", "paid", "packed", "shipped", "returned"};
    // With topic, properties and the fixed fields, records of about 570 to 830 bytes: 700 in the mean.
    private static final int MIN_BODY = 360;
    private static final int BODY_SPREAD = 256;
    private static final int RANDOM_BYTES = 8 << 20;
    private static final int USUAL_KEYS = 2;
    private static final int MOST_REFUSALS = 10_000;

    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        MessageStore store = (MessageStore) request.get("store");
        long bytes = number(request, "bytes");
        int topics = (int) number(request, "topics");
        int queues = (int) number(request, "queues");
        int threads = (int) number(request, "threads");
        int body = (int) number(request, "body", 0);
        int keys = (int) number(request, "keys", USUAL_KEYS);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<Long>> writers = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                writers.add(pool.submit(new Writer(store, bytes, thread, topics, queues, body, keys)));
            }
            long messages = 0;
            for (Future<Long> writer : writers) {
                messages += writer.get();
            }
            store.flush();
            return Map.of("messages", messages, "end", store.getMaxPhyOffset());
        } catch (Exception error) {
            throw new IllegalStateException(error);
        } finally {
            pool.shutdownNow();
        }
    }

    private static long number(Map<String, Object> request, String name) {
        return ((Number) request.get(name)).longValue();
    }

    private static long number(Map<String, Object> request, String name, long usual) {
        return request.containsKey(name) ? number(request, name) : usual;
    }

    private static final class Writer implements Callable<Long> {
        private final InetSocketAddress bornHost = new InetSocketAddress("127.0.0.1", 50000);
        private final InetSocketAddress storeHost = new InetSocketAddress("127.0.0.1", 10911);
        private final MessageStore store;
        private final long bytes;
        private final long firstOrder;
        private final int topics;
        private final int queues;
        private final int body;
        private final int keys;
        private final SplittableRandom random;
        private final byte[] source = new byte[RANDOM_BYTES];

        Writer(MessageStore store, long bytes, int thread, int topics, int queues, int body, int keys) {
            this.store = store;
            this.bytes = bytes;
            this.firstOrder = (thread + 1) * 10_000_000_000L;
            this.topics = topics;
            this.queues = queues;
            this.body = body;
            this.keys = keys;
            this.random = new SplittableRandom(thread);
            for (int at = 0; at < source.length; at++) {
                source[at] = (byte) random.nextInt();
            }
        }

        @Override
        public Long call() throws Exception {
            long count = 0;
            while (store.getMaxPhyOffset() < bytes) {
                put(message(count));
                count++;
            }
            return count;
        }

        private MessageExtBrokerInner message(long count) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(String.format("bench-topic-%02d", count % topics));
            message.setQueueId((int) (count / topics % queues));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(bornHost);
            message.setStoreHost(storeHost);
            int length = body > 0 ? body : MIN_BODY + random.nextInt(BODY_SPREAD);
            int from = random.nextInt(source.length - length);
            message.setBody(Arrays.copyOfRange(source, from, from + length));
            // The properties of a client's ordinary send, in its order.
            if (keys > 1) {
                MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, words(count));
            }
            if (keys > 0) {
                MessageAccessor.putProperty(
                        message,
                        MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                        MessageClientIDSetter.createUniqID());
            }
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_WAIT_STORE_MSG_OK, "true");
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_TAGS, TAGS[random.nextInt(TAGS.length)]);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            return message;
        }

        private String words(long count) {
            StringBuilder words = new StringBuilder("order-" + (firstOrder + count));
            for (int key = 2; key < keys; key++) {
                words.append(' ').append("key-").append(key).append('-').append(count);
            }
            return words.toString();
        }

        private void put(MessageExtBrokerInner message) throws InterruptedException {
            // A store refuses for a moment when the disk is behind (OS_PAGECACHE_BUSY) or the next segment
            // isn't there yet.
            for (int refusals = 0; ; refusals++) {
                PutMessageResult result = store.putMessage(message);
                if (result.isOk()) {
                    return;
                }
                if (refusals == MOST_REFUSALS) {
                    throw new IllegalStateException("the store answers " + result.getPutMessageStatus());
                }
                Thread.sleep(10);
            }
        }
    }
}
