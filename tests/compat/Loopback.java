package compat;

import io.netty.bootstrap.ServerBootstrap;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Map;
import java.util.function.Function;

/**
 * Lets a server of RocketMQ 4.9 that hasn't started yet listen on the loopback only.
 *
 * <p>It has no setting for an address: NettyRemotingServer.start names the port alone to its bootstrap. Takes
 * "server" (a NettyRemotingServer) and puts a bootstrap there that adds the address.
 */
public final class Loopback extends ServerBootstrap implements Function<Map<String, Object>, Object> {
    @Override
    public Object apply(Map<String, Object> request) {
        Object server = request.get("server");
        try {
            Field bootstrap = server.getClass().getDeclaredField("serverBootstrap");
            bootstrap.setAccessible(true);
            bootstrap.set(server, new Loopback());
        } catch (ReflectiveOperationException unknown) {
            throw new IllegalStateException(unknown);
        }
        return server;
    }

    @Override
    public ServerBootstrap localAddress(SocketAddress address) {
        int port = ((InetSocketAddress) address).getPort();
        return super.localAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
    }
}
