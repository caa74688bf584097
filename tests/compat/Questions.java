package compat;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Asks a store many questions in one call: a line each, its words separated by tabs; the answers likewise.
 * What differs between releases is reached by reflection.
 */
public class Questions {
    private static final String FAILED = "failed";
    private static final int WRAPPED = 0x80 | 0x40;

    private DefaultMessageStore store;

    public String answer(DefaultMessageStore store, String questions) {
        this.store = store;
        StringBuilder answers = new StringBuilder();
        for (String question : questions.split("\n")) {
            String answer;
            try {
                answer = one(question.split("\t", -1));
            } catch (InvocationTargetException error) {
                answer = FAILED + " " + error.getCause().getClass().getSimpleName();
            } catch (Throwable error) {
                answer = FAILED + " " + error.getClass().getSimpleName();
            }
            answers.append(answer).append('\n');
        }
        return answers.toString();
    }

    private String one(String[] words) throws Exception {
        switch (words[0]) {
            case "offset":
                return described(store.lookMessageByOffset(Long.parseLong(words[1])));
            case "id":
                return id(words[1]);
            case "range":
                return store.getMinOffsetInQueue(words[1], queueId(words)) + "\t"
                    + store.getMaxOffsetInQueue(words[1], queueId(words));
            case "unit":
                return "" + store.getCommitLogOffsetInQueue(words[1], queueId(words), Long.parseLong(words[3]));
            case "pull":
                return pull(words);
            case "time":
                return time(words);
            case "index":
                return index(words);
            case "key":
                return key(words);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static int queueId(String[] words) {
        return Integer.parseInt(words[2]);
    }

    private static String described(MessageExt message) {
        if (message == null) {
            return "none";
        }
        int body = message.getBody() == null ? 0 : message.getBody().length;
        return String.join("\t", "" + message.getCommitLogOffset(), message.getTopic(), "" + message.getQueueId(),
            "" + message.getQueueOffset(), "" + message.getStoreSize(), "" + message.getStoreTimestamp(),
            "" + message.getTags(), "" + message.getKeys(), "" + message.getProperty("UNIQ_KEY"), "" + body,
            "" + message.getMsgId());
    }

    private static String id(String text) throws Exception {
        MessageId id = MessageDecoder.decodeMessageId(text);
        InetSocketAddress address = (InetSocketAddress) id.getAddress();
        StringBuilder host = new StringBuilder();
        for (byte one : address.getAddress().getAddress()) {
            host.append(String.format("%02X", one));
        }
        return host + "\t" + address.getPort() + "\t" + id.getOffset();
    }

    /** topic, queue, offset, how many, tag expression: status, next offset, min, max, then each message. */
    private String pull(String[] words) throws Exception {
        Object subscription = words[5].isEmpty() ? null : subscription(words[1], words[5]);
        GetMessageResult result = store.getMessage("group", words[1], queueId(words), Long.parseLong(words[3]),
            Integer.parseInt(words[4]), subscription == null ? null : filter(subscription));
        StringBuilder answer = new StringBuilder(result.getStatus() + "\t" + result.getNextBeginOffset() + "\t"
            + result.getMinOffset() + "\t" + result.getMaxOffset());
        Set<?> tags = new HashSet<>();
        if (subscription != null) {
            tags = (Set<?>) subscription.getClass().getMethod("getTagsSet").invoke(subscription);
        }
        for (SelectMappedBufferResult one : result.getMessageMapedList()) {
            MessageExt message = MessageDecoder.decode(one.getByteBuffer(), true, false);
            if (message == null || !message.getTopic().equals(words[1])) {
                answer.append("\tother");
                continue;
            }
            // What the client does with it: PullAPIWrapper.processPullResult.
            boolean kept = tags.isEmpty() || wanted(message, tags);
            answer.append('\t').append(message.getQueueOffset()).append(',').append(one.getStartOffset()).append(',')
                .append(one.getSize()).append(',').append(kept);
        }
        result.release();
        return answer.toString();
    }

    /** Of a batch that a client takes apart, the messages in it are looked at. */
    private static boolean wanted(MessageExt message, Set<?> tags) {
        List<Message> all = new ArrayList<>(List.of(message));
        if ((message.getSysFlag() & WRAPPED) == WRAPPED) {
            try {
                all = MessageDecoder.decodeMessages(ByteBuffer.wrap(message.getBody()));
            } catch (Throwable error) {
                // It stays as it is. A wrong length may be too much for the heap.
            }
        }
        for (Message one : all) {
            if (one.getTags() != null && tags.contains(one.getTags())) {
                return true;
            }
        }
        return false;
    }

    private static Object subscription(String topic, String expression) throws Exception {
        Class<?> api = any("org.apache.rocketmq.common.filter.FilterAPI",
            "org.apache.rocketmq.remoting.protocol.filter.FilterAPI");
        try {
            return api.getMethod("buildSubscriptionData", String.class, String.class).invoke(null, topic, expression);
        } catch (NoSuchMethodException error) {
            // Up to 4.8.0 the group stands in front.
            return api.getMethod("buildSubscriptionData", String.class, String.class, String.class)
                .invoke(null, "group", topic, expression);
        }
    }

    private static MessageFilter filter(Object subscription) throws Exception {
        Class<?> filter = Class.forName("org.apache.rocketmq.store.DefaultMessageFilter");
        Constructor<?> constructor = filter.getConstructor(subscription.getClass());
        return (MessageFilter) constructor.newInstance(subscription);
    }

    private static Class<?> any(String... names) throws ClassNotFoundException {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException error) {
                // the next one
            }
        }
        throw new ClassNotFoundException(names[0]);
    }

    /** topic, queue, time, boundary or nothing. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private String time(String[] words) throws Exception {
        long time = Long.parseLong(words[3]);
        if (words[4].isEmpty()) {
            return "" + store.getOffsetInQueueByTime(words[1], queueId(words), time);
        }
        Class boundary = Class.forName("org.apache.rocketmq.common.BoundaryType");
        Method method = DefaultMessageStore.class.getMethod("getOffsetInQueueByTime", String.class, int.class,
            long.class, boundary);
        return "" + method.invoke(store, words[1], queueId(words), time, Enum.valueOf(boundary, words[4]));
    }

    /** topic, key, most, begin, end, type or nothing: the offsets as the index gives them. */
    private String index(String[] words) throws Exception {
        Field field = DefaultMessageStore.class.getDeclaredField("indexService");
        field.setAccessible(true);
        Object service = field.get(store);
        List<Class<?>> types = new ArrayList<>(List.of(String.class, String.class, int.class, long.class, long.class));
        List<Object> arguments = new ArrayList<>(List.of(words[1], words[2], Integer.parseInt(words[3]),
            Long.parseLong(words[4]), Long.parseLong(words[5])));
        if (!words[6].isEmpty()) {
            types.add(String.class);
            arguments.add(words[6]);
        }
        Object result = service.getClass().getMethod("queryOffset", types.toArray(new Class<?>[0]))
            .invoke(service, arguments.toArray());
        List<String> offsets = new ArrayList<>();
        for (Object offset : (List<?>) result.getClass().getMethod("getPhyOffsets").invoke(result)) {
            offsets.add(offset.toString());
        }
        return String.join("\t", offsets);
    }

    /** topic, key, most, begin, end: each message's offset, and whether a client keeps it. */
    private String key(String[] words) {
        QueryMessageResult result = store.queryMessage(words[1], words[2], Integer.parseInt(words[3]),
            Long.parseLong(words[4]), Long.parseLong(words[5]));
        List<String> found = new ArrayList<>();
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(buffer, true, false);
            // MQAdminImpl.queryMessage: by UNIQ_KEY, or by topic and one of the keys.
            boolean kept = words[2].equals(message.getProperty("UNIQ_KEY")) && words[1].equals(message.getTopic());
            if (message.getKeys() != null && words[1].equals(message.getTopic())) {
                for (String word : message.getKeys().split(" ")) {
                    kept |= word.equals(words[2]);
                }
            }
            found.add(message.getCommitLogOffset() + "," + kept);
        }
        result.release();
        return String.join("\t", found);
    }
}
