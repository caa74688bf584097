# With SPARK_CONF_DIR=conf, Spark's scripts read this before they start Java.
# Where no interface has an address, Spark dies of ExceptionInInitializerError before reput is asked.
if [ -r /proc/net/fib_trie ] && ! grep -qs . /proc/net/fib_trie /proc/net/if_inet6; then
  echo "reput: Spark doesn't start; expected a network interface that is up, as the loopback: Spark's processes use it," \
    "found none. Bring it up (\`ip link set lo up\`), or give the container a network, then run the same command again" >&2
  exit 2
fi
