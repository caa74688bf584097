#!/bin/sh
# The Python of a local session's workers; reput.spark.sessions says when. Spark puts archives first on their path, and
# what Python loads from an archive it compiles anew in every process: half a second of a worker's start. The
# same modules lie unpacked and compiled beside reput.
set -f
# PySpark asks for the version, in a process of its own, before each kind of worker.
if [ "$#" = 2 ] && [ "$2" = "import sys; print('%d.%d' % sys.version_info[:2])" ] && [ -n "$REPUT_PYTHON_VERSION" ]; then
    echo "$REPUT_PYTHON_VERSION"
    exit
fi
rest=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
    *) rest=$rest:$entry ;;
    esac
done
# Spark starts daemons for planning as PySpark's own, whatever spark.python.daemon.module says.
[ "$1 $2" = "-m pyspark.daemon" ] && shift 2 && set -- -m reput.spark.worker_daemon "$@"
export PYTHONPATH="${rest#:}"
if [ -S "$REPUT_FORK_SERVER" ] && [ "$1" = -m ]; then
    exec "$REPUT_PYTHON" -I -S "${0%/*}/fork_client.py" "$@"
fi
exec "${REPUT_PYTHON:-python3}" "$@"
