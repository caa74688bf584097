"""A command's JVM, started before the command is loaded, and ended with it.

Loading a command and checking what it was asked takes most of a second of one core; so does the start of
Spark's JVM. :func:`begin` lets a command that needs a local session begin the second at once, and the session
then takes it over (:func:`take`). A command that is refused ends it: it has no session, and wrote nothing.

Everything temporary that JVM and workers have lies in one directory of its own. When a command ends, all that
it had to write is flushed. So its processes are killed, not asked, and waited for, and the directory is
removed: nothing outlives the command. Only a session with an event log is stopped before. If the command is
killed itself, the JVM reads the end of its standard input and ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from site import getsitepackages
from typing import IO, TYPE_CHECKING

from reput.caches import settle, temporary
from reput.errors import ReputError
from reput.spark import class_archive
from reput.spark.java import check_spark, is_submitted, spark_home

if TYPE_CHECKING:
    from py4j.clientserver import ClientServer

    from reput.spark.fork_server import ForkServer

#: The Java option of every driver.
LOG4J = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_WORKER_PYTHON = Path(__file__).with_name("worker_python.sh")
#: Where Java has its temporary files, whatever TMPDIR says; Spark has its own there without SPARK_LOCAL_DIRS.
JAVA_TEMPORARY = "/tmp"
#: Of a local session's JVM.
DRIVER_MEMORY = "1g"
#: The commands that need a session if they aren't refused, and words by which they still don't.
_COMMANDS = frozenset({"rebuild", "tail", "demo"})
_WITHOUT = frozenset({"--help", "-h", "--version", "-V", "--dry-run", "--status", "--stop"})
#: With these, spark-submit's own way decides how a JVM starts.
_SETTLED = ("PYSPARK_SUBMIT_ARGS", "SPARK_TESTING")
_POLL_SECONDS = 0.005
#: Settings by which an operator has a session write what is whole only once it was stopped.
_FINISHED = ("spark.eventLog.enabled", "spark.extraListeners")


class Jvm:
    """A JVM that waits for a session.

    Attributes:
        directory: for everything temporary; the user's alone.
        options: its Java options, as ``spark.driver.extraJavaOptions``.
    """

    def __init__(self) -> None:
        self._owner, self._held = os.getpid(), ExitStack()
        self.directory = self._held.enter_context(temporary("reput-jvm-", JAVA_TEMPORARY))
        self.options = f"{driver_options()} -Djava.io.tmpdir={self.directory} {class_archive.java_options()}"
        self._address = self.directory / "gateway"
        settle()  # before workers are given the environment
        choose_python(is_local=True, starts_jvm=True)
        # The rest of a session's settings is given to it by the session.
        settings = {
            "spark.master": "local[*]",
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.driver.extraJavaOptions": self.options,
        }
        given = [word for item in settings.items() for word in ("--conf", "=".join(item))]
        self._server: ForkServer | None = None
        try:
            self._start([str(spark_home() / "bin" / "spark-submit"), *given, "pyspark-shell"])
        except BaseException:
            self._held.close()
            raise
        atexit.register(self._end_at_exit)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._end_by)

    def _start(self, command: list[str]) -> None:
        reading, writing = os.pipe()
        self._output: IO[bytes] = os.fdopen(reading, "rb")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=writing,
                stderr=writing,
                # Ctrl-C is for this process alone.
                start_new_session=True,
                env={
                    **os.environ,
                    "SPARK_CONNECT_MODE": "0",
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._address),
                    "REPUT_FORK_SERVER": str(self.directory / "fork"),
                },
            )
        finally:
            os.close(writing)

    def serve_forks(self) -> None:
        """Let Python processes be forked from this one, as it is now."""
        # What they need of PySpark; without pyarrow, which starts a thread.
        import pyspark.daemon
        import pyspark.sql.worker.create_data_source
        import pyspark.sql.worker.lookup_data_sources
        import pyspark.worker  # noqa: F401

        from reput.spark import fork_server

        self._server = fork_server.begin(self.directory / "fork")

    def gateway(self, listen: Callable[[IO[bytes]], None]) -> ClientServer:
        """PySpark's connection, when the JVM is there.

        Args:
            listen: is given what the JVM prints.

        Raises:
            PySparkRuntimeError: it isn't going to be.
        """
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway

        listen(self._output)
        while not self._address.exists():
            if self._process.poll() is not None:
                break
            time.sleep(_POLL_SECONDS)
        try:
            address = self._address.read_bytes()
        except FileNotFoundError:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}) from None
        # As PythonGatewayServer of Spark 4.2 writes it: the port, and the secret behind its length.
        variables = {
            "PYSPARK_GATEWAY_PORT": str(int.from_bytes(address[:4], "big")),
            "PYSPARK_GATEWAY_SECRET": address[8:].decode(),
        }
        os.environ.update(variables)
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in variables:
                del os.environ[name]
        gateway.proc = self._process
        return gateway

    def end(self) -> None:
        """Kill it and what it has started, and remove what it leaves."""
        if self._process.poll() is None:  # else its number may be another's by now
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        server, self._server = self._server, None
        if server is not None:
            server.end()
        self._held.close()

    def _end_by(self, number: int, _frame: object) -> None:
        """End this process by a signal, as without this, and before it what would stay.

        No lock is waited for: the signal may have come to whoever holds it. A server of forks ends by itself.
        """
        signal.signal(number, signal.SIG_DFL)
        if self._process.returncode is None and os.getpid() == self._owner:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._process.pid, 0)
        self._held.close()
        os.kill(os.getpid(), number)

    def _end_at_exit(self) -> None:
        if os.getpid() == self._owner:  # and not a worker that was forked from it
            try:
                _finish_session()
            finally:
                self.end()


_begun: Jvm | None = None
#: Whether this process is one of reput's commands, and nothing else.
is_command = False


def begin(words: Sequence[str]) -> None:
    """Start the JVM of a command, if it certainly is going to need one here.

    Args:
        words: the command line behind ``reput``.
    """
    global _begun
    if _begun is None and _needs_one(words):
        with suppress(Exception):  # whatever it is, the session's own start meets it again, and says it
            _begun = Jvm()


def begun() -> Jvm | None:
    """The JVM that waits for a session."""
    return _begun


def take() -> Jvm | None:
    """The JVM, for a session; from then on there is none that waits."""
    global _begun
    taken, _begun = _begun, None
    return taken


def drop() -> None:
    """End a JVM that waits, where it isn't of use."""
    taken = take()
    if taken is not None:
        taken.end()


def leave(code: int) -> None:
    """End the process of a command, once all is said; return if this process is more than that.

    Python would first take apart all its modules, and what is known of 100,000 queues, which takes a tenth of
    a second and more and gives nothing back.
    """
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    if not is_command or others:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by who started the command
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


def driver_options() -> str:
    """The Java options of every local session's JVM."""
    # With one tier Java reserves room for only a fifth of the code, and then stops compiling.
    return f"{LOG4J} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


def choose_python(*, is_local: bool, starts_jvm: bool) -> None:
    """Choose the workers' Python, unless the operator did."""
    given = os.environ.get("PYSPARK_PYTHON")
    if given not in (None, str(_WORKER_PYTHON)):
        return
    # A running JVM knows the script's own variable only if an earlier session of this process chose it.
    ours = is_local and (given is not None or starts_jvm) and os.access(_WORKER_PYTHON, os.X_OK)
    if ours and _is_unpacked("pyspark") and _is_unpacked("py4j"):
        os.environ |= {
            "PYSPARK_PYTHON": str(_WORKER_PYTHON),
            "REPUT_PYTHON": sys.executable,
            "REPUT_PYTHON_VERSION": f"{sys.version_info[0]}.{sys.version_info[1]}",
        }
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _finish_session() -> None:
    """Have a session finish what an operator has it write, and say nothing of its JVM's end."""
    logging.disable()
    core = sys.modules.get("pyspark.core.context")
    context = None if core is None else core.SparkContext._active_spark_context
    if context is not None:
        context._accumulatorServer.handle_error = lambda *_: None
        with suppress(Exception):  # a JVM that is gone has nothing to finish
            if any(context.getConf().get(name, "false") != "false" for name in _FINISHED):
                context.stop()


def _needs_one(words: Sequence[str]) -> bool:
    command = next((word for word in words if not word.startswith("-")), None)
    if command not in _COMMANDS or not _WITHOUT.isdisjoint(words):
        return False
    if command != "demo" and not any(Path(word, "commitlog").is_dir() for word in words):
        return False  # refused, or a store elsewhere, or one that a tail waits for
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--master" and not (value if equals else following).startswith("local"):
            return False
    if is_submitted() or any(name in os.environ for name in _SETTLED):
        return False
    try:
        check_spark()
    except ReputError:
        return False  # which the command will say
    return True


def _is_unpacked(package: str) -> bool:
    """Whether a worker finds the package where it was installed, and not in an archive of Spark's alone."""
    spec = find_spec(package)
    origin = None if spec is None else spec.origin
    return origin is not None and any(Path(origin).is_relative_to(path) for path in getsitepackages())
