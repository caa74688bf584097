package compat;

import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.function.Function;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * Lets a broker of 5.x that hasn't started yet listen for its slaves on the loopback only.
 *
 * <p>It has no setting for an address: AcceptSocketService makes one of the port alone. Takes "store" (a
 * DefaultMessageStore) and puts itself there as what replicates its log, with the address changed.
 */
public final class LoopbackReplication extends DefaultHAService
    implements Function<Map<String, Object>, Object> {
    @Override
    public Object apply(Map<String, Object> request) {
        Object store = request.get("store");
        set(DefaultMessageStore.class, store, "haService", this);
        return store;
    }

    @Override
    public void init(DefaultMessageStore store) throws java.io.IOException {
        super.init(store);
        int port = store.getMessageStoreConfig().getHaListenPort();
        InetSocketAddress address = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        set(AcceptSocketService.class, acceptSocketService, "socketAddressListen", address);
    }

    private static void set(Class<?> declaring, Object target, String name, Object value) {
        try {
            Field field = declaring.getDeclaredField(name);
            field.setAccessible(true);
            field.set(target, value);
        } catch (ReflectiveOperationException unknown) {
            throw new IllegalStateException(unknown);
        }
    }
}
