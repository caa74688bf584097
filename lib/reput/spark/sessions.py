"""The Spark session: settings that this pipeline needs, each with its reason."""

from __future__ import annotations

import atexit
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

import reput
from reput.caches import settle, temporary
from reput.errors import SettingsError, SparkError
from reput.spark import ahead, class_archive
from reput.spark.ahead import DRIVER_MEMORY, JAVA_TEMPORARY, LOG4J, choose_python, driver_options
from reput.spark.jars import delta_jars
from reput.spark.java import check_jars, check_version, is_connect, is_submitted, refuse_connect
from reput.store.system import shortage_in
from reput.unforeseen import REPORT, TRACEBACK, UNFORESEEN, raised_elsewhere
from reput.words import install_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REQUIRED = {
    # A task that outlives its batch must not be joined by a second copy of itself.
    "spark.speculation": "false",
}
_SETTINGS = {
    # The pipeline moves descriptors; the UI, its history and codegen caches only cost start-up time.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # Workers are forked from a daemon that has the kernels loaded.
    "spark.python.daemon.module": "reput.spark.worker_daemon",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # On a busy machine Python comes to fetch a result later than Spark's 15 s.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    # A tail runs a micro-batch and a job some twenty times a second: the JVM would keep a thousand of each.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
}
#: Not for every master. YARN's client doesn't start with the second ("Not implemented"), and its executors'
#: temporary directories have paths that are too long for a socket. On Kubernetes neither was tried.
_FASTER = {
    # PySpark's local Unix sockets instead of TCP: half the latency of a small Python job.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
_SOCKETS = "spark.python.unix.domain.socket.dir"
_FASTER_MASTERS = ("local", "spark://")
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": DRIVER_MEMORY,
}
#: A command that begins its JVM ahead has Spark move parts of a log, some rows of a few bytes: to compile
#: Java for them takes a tenth of the whole start.
_IN_COMMANDS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: For ledger and messages as tables; conf/delta.conf has the same for spark-submit, and the reasons.
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A ledger is small: 50 tasks to find out what it holds take longer than reading it.
    "spark.databricks.delta.snapshotPartitions": "2",
}
#: Over Spark Connect an error's text would end in the server's stack trace.
_CONNECT = {} if os.environ.get(TRACEBACK) else {"spark.sql.connect.serverStacktrace.enabled": "false"}
_MASTER = re.compile(r"--master[= ]\s*[\"']?([^\s\"']+)")
#: What Spark puts around an error's own text.
_AROUND = re.compile(
    r"^\[[A-Z_.]+\] (?:Query \[.*?\] terminated with exception: )?|\s*SQLSTATE: \w+$"
    r"|Job aborted due to stage failure: .* \(TID [0-9]+\) \([^()]+\): "
)
#: Where Spark says that a task failed; the driver is the executor of a local master.
_EXECUTOR = re.compile(r"\(TID [0-9]+\) \(([^\s()]+) executor (?!driver\))[^\s()]+\)")
#: What a Python said that can't run reput: another one than the driver's, or one without it.
_PYTHON_WORKER = re.compile(r"Error from python worker:\n.*?([^\n]+)\nPYTHONPATH was:", re.DOTALL)
#: What a standalone master that can't be reached, or has another secret, ends a start with.
_STOPPED = "Cannot call methods on a stopped SparkContext"
_CALL_WITHOUT_ANSWER = re.compile(r"An error occurred while calling \S+")
#: A JVM with Spark's jars has some hundreds open, and a task up to 512 queue files.
OPEN_FILES = 1024
#: Printed by every JVM that Spark starts: it requests a module that only its linear algebra uses.
_JVM_NOISE = b"WARNING: Using incubator modules: jdk.incubator.vector"
#: What Java, and Python, say where no interface is up.
_NO_NETWORK = ("No network interfaces configured", "Network is unreachable")
_NO_ADDRESS = re.compile(r"UnknownHostException: ([^:\s]+)")
#: A line that says why a JVM doesn't start.
_JVM_CAUSE = re.compile(r"Exception|Error(?! occurred during)(?!: A JNI error)|[Cc]ould not|[Cc]annot")
_DRAIN_SECONDS, _MOST_LINES = 2.0, 1000


def session(
    application: str,
    master: str | None = None,
    settings: dict[str, str] | None = None,
    *,
    delta: bool = False,
) -> SparkSession:
    """A session for one of reput's jobs: a new one, or the one that already runs.

    Args:
        application: shown in Spark's lists.
        master: None leaves it to SPARK_REMOTE, spark-submit or PYSPARK_SUBMIT_ARGS, else ``local[*]``.
        settings: more Spark settings; they override others.
        delta: with Delta Lake, for ledger and messages as tables, and :func:`reput.spark.jars.delta_jars`.

    Raises:
        SparkError: there is no Java or no Spark, or the session doesn't start, or has no Delta.
        SettingsError: Spark has a setting with which reput can't run.
    """
    remote = os.environ.get("SPARK_REMOTE", "") if master is None and is_connect() else None
    if remote is None:
        refuse_connect()
        if _starts_jvm():
            check_jars()
    elif (running := _connected()) is not None:
        check_version(running.version)
        return running
    settle()  # before the JVM is started, so that workers have the kernels where this process has them
    elsewhere = is_submitted() or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    chosen = remote or master or (None if elsewhere else "local[*]")
    is_local = chosen is not None and chosen.startswith("local")
    if not is_local or delta or settings:
        ahead.drop()
    starts_jvm = is_local if remote is not None else _starts_jvm()
    choose_python(is_local=is_local, starts_jvm=starts_jvm)
    # What the operator gave to spark-submit counts; a builder's settings would silently override it.
    given = _submitted_settings()
    wanted = {
        key: value for key, value in _settings(chosen or _submitted_master()).items() if key not in given
    }
    wanted |= _REQUIRED
    if chosen is not None:
        wanted |= {"spark.driver.extraJavaOptions": LOG4J}
        wanted |= {"spark.master": chosen} if remote is None else _CONNECT
        if chosen.startswith("local"):
            wanted |= _LOCAL_SETTINGS
            wanted["spark.driver.extraJavaOptions"] = driver_options()
            begun = ahead.begun()
            if begun is not None:
                wanted |= _IN_COMMANDS
                wanted["spark.driver.extraJavaOptions"] = begun.options
                wanted[_SOCKETS] = str(begun.directory)
            elif starts_jvm:
                wanted["spark.driver.extraJavaOptions"] += f" {class_archive.java_options()}"
                wanted[_SOCKETS] = _socket_directory()
            # Executors are this process's children: they find the package where this process did.
            wanted["spark.executorEnv.PYTHONPATH"] = str(Path(reput.__file__).parents[1])
    if delta:
        wanted |= {key: value for key, value in _DELTA.items() if key not in given}
        if not _runs() and not {"spark.jars", "spark.jars.packages"} & given.keys():
            more = (settings or {}).get("spark.jars")
            jars = ",".join([*map(str, delta_jars()), *([more] if more else [])])
            settings = {**(settings or {}), "spark.jars": jars}
    wanted |= {"spark.app.name": application, **(settings or {})}
    spark = _start(wanted) if remote is None else _connect(wanted)
    check_version(spark.version)
    if delta:
        _check_delta(spark)
    if is_submitted() and remote is None:
        spark.sparkContext.setLogLevel("ERROR")
    limit = spark.conf.get("spark.executor.pyspark.memory", None)
    if limit is not None:
        raise SettingsError(
            "spark.executor.pyspark.memory limits the address space of tasks, which map whole files",
            found=limit,
            next_step="Leave the setting out",
        )
    return spark


def master_of(master: str | None) -> str | None:
    """The master that :func:`session` will use; None if it isn't known."""
    elsewhere = is_submitted() or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return master or (_submitted_master() if elsewhere else "local[*]")


def _socket_directory() -> str:
    """Where PySpark's sockets are until this process ends; Spark leaves each of them behind.

    A socket's path has at most 107 bytes, so TMPDIR doesn't count.
    """
    held = ExitStack()
    atexit.register(held.close)
    return str(held.enter_context(temporary("reput-sockets-", JAVA_TEMPORARY)))


def _starts_jvm() -> bool:
    """Whether this process has yet to start the JVM, with its environment."""
    from pyspark import SparkContext

    return not is_submitted() and SparkContext._gateway is None


def _runs() -> bool:
    """Whether this process has a session already, which no jar can be added to."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _check_delta(spark: SparkSession) -> None:
    extension = _DELTA["spark.sql.extensions"]
    if extension not in (spark.conf.get("spark.sql.extensions", None) or ""):
        raise SparkError(
            "this Spark session has no Delta Lake, which can't be added while it runs",
            expected=f"spark.sql.extensions with {extension}, from the start",
            found=spark.conf.get("spark.sql.extensions", None) or "none",
            next_step="Stop the session first, or give spark-submit --properties-file conf/delta.conf",
        )


def _settings(master: str | None) -> dict[str, str]:
    """The settings for a master; None if the master isn't known."""
    from reput.spark.stack import CHECKPOINT_MANAGER

    faster = master is not None and master.startswith(_FASTER_MASTERS)
    # Spark forks readlink and chmod some twenty times a batch without this, and fs.file.impl of _FASTER.
    manager = {"spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER}
    return _SETTINGS | manager | (_FASTER if faster else {})


def _submitted_settings() -> dict[str, str]:
    """The settings that spark-submit was given, by options or its properties file; else none."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    # Its JVM already runs. Otherwise this would start one, and too early: without settings.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _submitted_master() -> str | None:
    """The master given to spark-submit or in PYSPARK_SUBMIT_ARGS, None if that isn't known."""
    found = _MASTER.search(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return _submitted_settings().get("spark.master") or (None if found is None else found[1])


def spark_error(error: BaseException, *places: Path) -> SparkError:
    """An error that Spark raised, in a sentence without Java and Python stack traces.

    Args:
        places: what Spark writes to besides its own temporary files.
    """
    from py4j.protocol import Py4JNetworkError

    text = str(error)
    host = _EXECUTOR.search(text)
    ours = re.findall(r"reput\.errors\.[A-Za-z]+Error: (.+)", text)
    short = None if ours else shortage_in(text, (*places, *scratch_places()))
    elsewhere = None if host is None else host[1]
    if short is not None:
        return SparkError(
            "Spark failed", path=short.path, found=short.found, next_step=short.next_step, host=elsewhere
        )
    if not ours and (found := raised_elsewhere(text)) is not None:
        return SparkError(UNFORESEEN, found=found, next_step=REPORT, host=elsewhere)
    if not ours and (said := _PYTHON_WORKER.search(text)) is not None:
        step = (
            "Put the driver's Python with reput there, where PYSPARK_PYTHON says, and run the command again"
        )
        return SparkError("Python can't run reput", found=said[1].strip(), host=elsewhere, next_step=step)
    lines = [line.strip(": ") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and _CALL_WITHOUT_ANSWER.fullmatch(lines[0]):
        del lines[0]  # the error itself is below
    found = ours[-1] if ours else _AROUND.sub("", lines[0]) if lines else type(error).__name__
    # A connection that breaks during a call causes the second kind of error, with no more text.
    if isinstance(error, ConnectionError | Py4JNetworkError) or _CALL_WITHOUT_ANSWER.fullmatch(text):
        found = "its JVM is gone: killed, or out of memory"
    return SparkError(
        "Spark failed",
        found=found,
        host=None if found.startswith("on host ") else elsewhere,
        next_step="Fix the cause and run the same command again; it continues from the last committed batch",
    )


@contextmanager
def converting_spark_errors(*places: Path) -> Iterator[None]:
    """Tell what Spark raises in the block as :func:`spark_error` does.

    Args:
        places: what Spark writes to besides its own temporary files.

    Raises:
        SparkError: in place of what Spark raised.
    """
    try:
        yield
    except Exception as error:
        if "pyspark" not in sys.modules:
            raise
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if not isinstance(error, PySparkException | Py4JError | ConnectionError):
            raise
        raise spark_error(error, *places) from None


def scratch_places() -> list[Path]:
    """Where Spark keeps shuffled data, and Python its temporary files, on this host."""
    spark = os.environ.get("SPARK_LOCAL_DIRS") or JAVA_TEMPORARY
    places = [Path(name.strip()) for name in spark.split(",") if name.strip()]
    with suppress(OSError):  # no directory can be written to
        places.append(Path(tempfile.gettempdir()))
    return list(dict.fromkeys(places))


def _start(settings: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    output = _JvmOutput()
    try:
        if _starts_jvm():
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            SparkContext(conf=conf, gateway=_gateway(conf, output))
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError, OSError) as error:
        raise _start_error(error, output.text()) from error
    output.pass_on()
    return session


def _connected() -> SparkSession | None:
    """The session of Spark Connect that PySpark has made in this process."""
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    return SparkSession.getActiveSession() if is_remote() else None


def _connect(settings: dict[str, str]) -> SparkSession:
    """A session at SPARK_REMOTE. A server that runs keeps its own settings, but for SQL's of a session."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of each that the server keeps
            return builder.getOrCreate()
    except ImportError as error:
        raise SparkError(
            "Spark Connect can't be used here",
            expected="grpcio and what else PySpark needs for it",
            found=str(error).splitlines()[0],
            next_step=install_step("spark,connect"),
        ) from None
    except (PySparkException, OSError) as error:
        raise spark_error(error) from error


def _start_error(error: BaseException, said: str) -> SparkError:
    """Why there is no session, by the error and what the JVM printed before it ended."""
    short = shortage_in(f"{said}\n{error}", scratch_places())
    if short is not None:
        return SparkError(
            "Spark doesn't start", path=short.path, found=short.found, next_step=short.next_step
        )
    if any(words in f"{said}\n{error}" for words in _NO_NETWORK):
        return SparkError(
            "Spark doesn't start",
            expected="a network interface that is up, as the loopback: Spark's processes use it",
            found="none",
            next_step="Bring it up (`ip link set lo up`), or give the container a network, then run the same "
            "command again",
        )
    if _STOPPED in f"{said}\n{error}":
        return SparkError(
            "Spark doesn't start",
            expected="a master that answers",
            found="none that takes this application",
            next_step="See that the master runs at the address in --master, and that the lines of "
            "spark.authenticate are the same on all hosts; then run the same command again",
        )
    if not said:
        return spark_error(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    found = causes[-1] if causes else next((line for line in lines if _JVM_CAUSE.search(line)), lines[-1])
    if (name := _NO_ADDRESS.search(found)) is not None:
        return SparkError(
            "Spark doesn't start",
            expected="an address for this host's name",
            found=f"none for {name[1]}",
            next_step="Add the name to /etc/hosts, or set SPARK_LOCAL_IP=127.0.0.1 in the environment",
        )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < OPEN_FILES:
        # A JVM that can't open its own files prints a lot, but not the cause.
        return SparkError(
            "Spark doesn't start",
            expected=f"{OPEN_FILES} open files or more (ulimit -n)",
            found=f"{most}, and from its JVM: {found}",
            next_step="Raise the limit on open files (ulimit -n), then run the same command again",
        )
    return SparkError(
        "Spark doesn't start",
        found=found,
        next_step=f"{TRACEBACK}=1 in the environment shows all that it prints",
    )


def _gateway(conf: object, output: _JvmOutput):  # type: ignore[no-untyped-def]
    """Start a JVM that prints to ``output``.

    It leads a session of its own, so that a signal to this process's group (Ctrl-C, ``timeout``) reaches
    only Python, which can then end cleanly. It ends when this process does: its stdin closes.
    """
    from pyspark.java_gateway import launch_gateway

    begun = ahead.take()
    if begun is not None:
        return begun.gateway(output.take_from)
    writing = output.listen()
    try:
        with _ctrl_c_deferred():
            # A JVM that doesn't start prints why on stdout, which is for results here.
            options = {"stdout": writing, "stderr": writing, "start_new_session": True}
            return launch_gateway(conf, popen_kwargs=options)  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)


@contextmanager
def _ctrl_c_deferred() -> Iterator[None]:
    """Defer Ctrl-C until after the block; a second one takes effect at once.

    A JVM whose start is given up can't report its port, and then doesn't end (PySpark's launch_gateway and
    PythonGatewayServer in 4.2.0): it would stay, and keep this process's stdout open.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came = False

    def defer(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


class _JvmOutput:
    """What Spark's JVM prints: kept while a session starts, and from then on passed on to stderr.

    The reason why a session doesn't start is one line among screens of output.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[bytes] | None = None if os.environ.get(TRACEBACK) else []
        self._thread: threading.Thread | None = None

    def listen(self) -> int:
        """A descriptor for the JVM to write to; the caller closes it."""
        reading, writing = os.pipe()
        self.take_from(os.fdopen(reading, "rb"))
        return writing

    def take_from(self, lines: IO[bytes]) -> None:
        """Take what the JVM prints from here, in place of what another one has printed before."""
        if self._thread is not None:
            self._thread.join(_DRAIN_SECONDS)
        with self._lock:
            if self._kept:
                self._kept.clear()
        self._thread = threading.Thread(target=self._take, args=(lines,), daemon=True)
        self._thread.start()

    def pass_on(self) -> None:
        """Pass on what was kept, and from now on everything."""
        with self._lock:
            kept, self._kept = self._kept, None
            for line in kept or ():
                _print(line)

    def text(self) -> str:
        """What was kept; all of it, if the JVM has ended."""
        if self._thread is not None:
            self._thread.join(_DRAIN_SECONDS)
        with self._lock:
            return b"".join(self._kept or ()).decode(errors="replace")

    def _take(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                if line.strip() == _JVM_NOISE:
                    continue
                with self._lock:
                    if self._kept is None:
                        _print(line)
                    elif len(self._kept) < _MOST_LINES:
                        self._kept.append(line)


def _print(line: bytes) -> None:
    with suppress(OSError):  # a closed stderr doesn't end the run
        os.write(2, line)
