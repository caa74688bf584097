package compat;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.CommitLogDispatcherCalcBitMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.store.DispatchRequest;

/**
 * Asks a broker's own filter classes many questions in one call. Strings travel as a count of chars and the chars.
 */
public class Filters {
    /**
     * Of each expression one line: "P" when it can't be parsed, else a letter for each map of properties: T, F, N
     * (null), E (it throws).
     */
    public String evaluate(byte[] questions) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(questions));
        StringBuilder answers = new StringBuilder();
        for (int left = in.readInt(); left > 0; left--) {
            Expression expression = null;
            try {
                expression = FilterFactory.INSTANCE.get("SQL92").compile(string(in));
            } catch (Exception error) {
                answers.append('P');
            }
            for (int maps = in.readInt(); maps > 0; maps--) {
                Map<String, String> properties = new HashMap<>();
                for (int entries = in.readInt(); entries > 0; entries--) {
                    String name = string(in);
                    properties.put(name, string(in));
                }
                if (expression != null) {
                    answers.append(evaluate(expression, properties));
                }
            }
            answers.append('\n');
        }
        return answers.toString();
    }

    private static char evaluate(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Throwable error) {
            return 'E';
        }
    }

    /** "k m", then of each string its bit positions, a line each. */
    public String positions(int f, int n, byte[] strings) throws IOException {
        BloomFilter filter = BloomFilter.createByFn(f, n);
        StringBuilder answers = new StringBuilder(filter.getK() + " " + filter.getM() + "\n");
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(strings));
        for (int left = in.readInt(); left > 0; left--) {
            String separator = "";
            for (int position : filter.calcBitPositions(string(in))) {
                answers.append(separator).append(position);
                separator = " ";
            }
            answers.append('\n');
        }
        return answers.toString();
    }

    /**
     * Loads a consumerFilter.json and calculates bit maps: of each message a count of bytes, -1 for none, and the
     * bytes. A JSON that can't be loaded gives no answers at all.
     */
    public byte[] bitMaps(int f, int n, String json, byte[] messages) throws Exception {
        ConsumerFilterManager manager = new ConsumerFilterManager();
        Field field = ConsumerFilterManager.class.getDeclaredField("bloomFilter");
        field.setAccessible(true);
        field.set(manager, BloomFilter.createByFn(f, n));
        try {
            manager.decode(json);
        } catch (Exception error) {
            return new byte[0];
        }
        BrokerConfig config = new BrokerConfig();
        config.setEnableCalcFilterBitMap(true);
        CommitLogDispatcherCalcBitMap dispatcher = new CommitLogDispatcherCalcBitMap(config, manager);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(messages));
        for (int left = in.readInt(); left > 0; left--) {
            String topic = string(in);
            byte[] record = new byte[in.readInt()];
            in.readFully(record);
            // As CommitLog.checkMessageAndReturnSize does.
            Map<String, String> properties = record.length == 0
                ? null
                : MessageDecoder.string2messageProperties(new String(record, MessageDecoder.CHARSET_UTF8));
            DispatchRequest request =
                new DispatchRequest(topic, 0, 0L, 100, 0L, 0L, 0L, "", "", 0, 0L, properties);
            dispatcher.dispatch(request);
            byte[] bitMap = request.getBitMap();
            out.writeInt(bitMap == null ? -1 : bitMap.length);
            if (bitMap != null) {
                out.write(bitMap);
            }
        }
        return bytes.toByteArray();
    }

    private static String string(DataInputStream in) throws IOException {
        char[] chars = new char[in.readInt()];
        for (int i = 0; i < chars.length; i++) {
            chars[i] = in.readChar();
        }
        return new String(chars);
    }
}
