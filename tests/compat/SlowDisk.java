package compat;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.function.Function;

import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MappedFileQueue;

/**
 * Keeps a store with {@code transientStorePoolEnable} from writing its buffers to the log's files, for a
 * while now and then, as a disk does that can't keep up: what writes them holds the file first.
 *
 * <p>Takes "store", "seconds", "pause" and "rest" (ms); answers with "empty", the number of pauses at whose
 * end no buffer was free.
 */
public final class SlowDisk implements Function<Map<String, Object>, Map<String, Object>> {
    @Override
    public Map<String, Object> apply(Map<String, Object> request) {
        DefaultMessageStore store = (DefaultMessageStore) request.get("store");
        long end = System.nanoTime() + number(request, "seconds") * 1_000_000_000L;
        long empty = 0;
        try {
            Field field = CommitLog.class.getDeclaredField("mappedFileQueue");
            field.setAccessible(true);
            MappedFileQueue files = (MappedFileQueue) field.get(store.getCommitLog());
            while (System.nanoTime() < end) {
                long pauseEnd = System.nanoTime() + number(request, "pause") * 1_000_000L;
                while (System.nanoTime() < pauseEnd) {
                    hold(files, pauseEnd);
                }
                empty += store.remainTransientStoreBufferNumbs() == 0 ? 1 : 0;
                Thread.sleep(number(request, "rest"));
            }
        } catch (ReflectiveOperationException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
        return Map.of("empty", empty);
    }

    /** Keeps the file that is written next until then; one without a buffer isn't kept: nothing is written. */
    private static void hold(MappedFileQueue files, long end) throws InterruptedException {
        long where = files.getCommittedWhere();
        Object file = files.findMappedFileByOffset(where, true);
        if (file == null) {
            Thread.sleep(1);
            return;
        }
        synchronized (file) {
            do {
                Thread.sleep(1);
            } while (files.getCommittedWhere() == where && System.nanoTime() < end);
        }
    }

    private static long number(Map<String, Object> request, String name) {
        return ((Number) request.get(name)).longValue();
    }
}
