package day;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;

import org.apache.rocketmq.store.*;

/**
 * Gives a store the bytes of another one's log, as a slave gets them, and counts the messages in them by queue.
 *
 * <p>Takes "store" (a MessageStore), "log" (the other's commitlog/), "segment" (bytes of each of its files) and
 * "to", a physical offset where a record ends; begins where it ended before, at first at 0. Answers with "end" and
 * "counts", messages since 0 by "topic/queueId". Each record has to say its own place, and the queueOffset after
 * that of its queue's record before it; one that doesn't, or bytes that are none, is an "error".
 */
public final class LogCopier implements Function<Map<String, Object>, Map<String, Object>> {
    private static final int MESSAGE = 0xDAA320A7;
    private static final int BLANK = 0xCBD43194;
    private static final int CHUNK = 8 << 20;
    private static final int MAGIC_AT = 4;
    private static final int QUEUE_ID_AT = 12;
    private static final int QUEUE_OFFSET_AT = 20;
    private static final int PLACE_AT = 28;
    private static final int BODY_LENGTH_AT = 84;

    private final Map<String, Long> counts = new TreeMap<>();
    private long end;

    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        Map<String, Object> answer = new HashMap<>();
        try {
            MessageStore store = (MessageStore) request.get("store");
            long segment = ((Number) request.get("segment")).longValue();
            long to = ((Number) request.get("to")).longValue();
            while (end < to) {
                copy(store, Path.of((String) request.get("log")), segment, to);
            }
        } catch (IOException | IllegalStateException failure) {
            answer.put("error", failure.toString());
        }
        answer.put("end", end);
        answer.put("counts", counts);
        return answer;
    }

    private void copy(MessageStore store, Path log, long segment, long to) throws IOException {
        long base = end - end % segment;
        byte[] bytes = new byte[(int) Math.min(CHUNK, Math.min(to, base + segment) - end)];
        ByteBuffer data = ByteBuffer.wrap(bytes);
        try (FileChannel file = FileChannel.open(log.resolve(String.format("%020d", base)))) {
            while (data.hasRemaining() && file.read(data, end - base + data.position()) > 0) {
                continue;
            }
        }
        int length = count(data.flip(), base + segment - end);
        if (length == 0 || !store.appendToCommitLog(end, bytes, 0, length)) {
            throw new IllegalStateException(end + ": no record, or it wasn't taken");
        }
        end += length;
    }

    /** How many bytes of these are whole records, all of which are counted. */
    private int count(ByteBuffer data, long left) {
        int at = 0;
        while (at + 8 <= data.limit()) {
            int size = data.getInt(at);
            if (size <= 0 || size > left - at) {
                throw new IllegalStateException((end + at) + ": a record of " + size + " bytes");
            }
            if (size > data.limit() - at) {
                break;
            }
            if (data.getInt(at + MAGIC_AT) == MESSAGE) {
                message(data, at);
            } else if (data.getInt(at + MAGIC_AT) != BLANK) {
                throw new IllegalStateException((end + at) + ": no record");
            }
            at += size;
        }
        return at;
    }

    private void message(ByteBuffer data, int at) {
        int topicAt = at + BODY_LENGTH_AT + 4 + data.getInt(at + BODY_LENGTH_AT);
        byte[] topic = new byte[data.get(topicAt)];
        data.get(topicAt + 1, topic);
        String queue = new String(topic, StandardCharsets.UTF_8) + "/" + data.getInt(at + QUEUE_ID_AT);
        long before = counts.getOrDefault(queue, 0L);
        if (data.getLong(at + PLACE_AT) != end + at || data.getLong(at + QUEUE_OFFSET_AT) != before) {
            throw new IllegalStateException(
                    (end + at) + ": place " + data.getLong(at + PLACE_AT) + ", and queueOffset "
                            + data.getLong(at + QUEUE_OFFSET_AT) + " of " + queue + " after " + before);
        }
        counts.put(queue, before + 1);
    }
}
