package compat;

import java.nio.ByteBuffer;
import java.util.List;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Reads queues as a consumer does that begins at the first offset and goes on where the store tells it to. */
public class Served {
    private static final int BATCH = 32;

    /**
     * A line for each queue of the lines "topic TAB queueId". Its words, with tabs between: first and next offset, then
     * "place,physicalOffset" of each message, "place,physicalOffset,other" of one that isn't whole, and
     * "!offset,status,next" of each answer without a message.
     */
    public String read(DefaultMessageStore store, String queues) {
        StringBuilder answer = new StringBuilder();
        for (String queue : queues.split("\n")) {
            String[] words = queue.split("\t");
            one(store, words[0], Integer.parseInt(words[1]), answer);
            answer.append('\n');
        }
        return answer.toString();
    }

    private static void one(DefaultMessageStore store, String topic, int queueId, StringBuilder answer) {
        long offset = 0;
        try {
            offset = store.getMinOffsetInQueue(topic, queueId);
            long end = store.getMaxOffsetInQueue(topic, queueId);
            answer.append(offset).append('\t').append(end);
            while (offset < end) {
                GetMessageResult result = store.getMessage("served", topic, queueId, offset, BATCH, null);
                long next = result.getNextBeginOffset();
                List<SelectMappedBufferResult> found = result.getMessageMapedList();
                for (int n = 0; n < found.size(); n++) {
                    ByteBuffer bytes = found.get(n).getByteBuffer();
                    MessageExt message = MessageDecoder.decode(bytes, true, false);
                    answer.append('\t').append(result.getMessageQueueOffset().get(n)).append(',')
                        .append(found.get(n).getStartOffset()).append(message == null ? ",other" : "");
                }
                if (found.isEmpty()) {
                    answer.append("\t!").append(offset).append(',').append(result.getStatus()).append(',').append(next);
                }
                result.release();
                if (next <= offset) {
                    return;
                }
                offset = next;
            }
        } catch (Throwable error) {
            answer.append("\t!").append(offset).append(',').append(error.getClass().getSimpleName()).append(",-1");
        }
    }
}
