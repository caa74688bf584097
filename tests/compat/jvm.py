"""A JVM of our own with a RocketMQ release on its class path, driven over py4j.

Each :class:`Jvm` has a scratch directory as ``user.home`` and for temporary files: what RocketMQ logs goes
there, so a store's directory holds the store and nothing else.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from reput.newer_python import Self
from tests.compat.jars import class_path, java_executable, pyspark_jar

# RocketMQ unmaps files by calling into the JDK's own packages; 5.x says so in its runbroker.sh.
_OPENS = (
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
)

_LOGBACK = """<configuration>
  <appender name="file" class="{package}ch.qos.logback.core.FileAppender">
    <file>{file}</file>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %-5level [%thread] %logger{{0}}: %msg%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""

#: For JVMs that live for seconds, which should spend little time on optimizing code.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)

_live: weakref.WeakSet[Jvm] = weakref.WeakSet()


class JavaError(RuntimeError):
    """The JVM did not start, or a call to RocketMQ did not do what it should."""


class Jvm:
    """One JVM; a context manager that ends it, and with it whatever runs inside.

    The JVM also ends by itself when this process does, because its standard input closes.

    Attributes:
        version: the RocketMQ release.
        gateway: py4j's gateway; ``jvm.gateway.jvm.org.apache...`` reaches every class.
        process: the JVM's process.
        home: the scratch directory, removed by :meth:`close`.
        kept: Java objects of whoever wants to make them once, by a key of his own.
    """

    def __init__(
        self,
        version: str,
        *,
        options: Sequence[str] = SHORT_LIVED,
        heap: str = "512m",
        log_level: str = "WARN",
    ) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        _leave_exceptions_of_other_jvms_to_py4j()
        self.version = version
        self.home = Path(tempfile.mkdtemp(prefix=f"rocketmq-{version}-"))
        self._closed = False
        self.kept: dict[object, Any] = {}
        try:
            self._errors = (self.home / "stderr.log").open("wb")
            try:
                port, token, self.process = launch_gateway(
                    java_path=str(java_executable()),
                    jarpath=str(pyspark_jar("py4j-")),
                    classpath=class_path(version),
                    javaopts=[*java_options(self.home, heap=heap, log_level=log_level), *options],
                    die_on_exit=True,
                    enable_auth=True,
                    redirect_stderr=self._errors,
                    return_proc=True,
                )
            except ValueError as error:  # instead of its port, the JVM printed nothing or a complaint
                raise JavaError(f"no JVM for RocketMQ {version}: {self.log_tail()}") from error
            self.gateway = JavaGateway(
                gateway_parameters=GatewayParameters(
                    address="127.0.0.1", port=port, auth_token=token, auto_convert=True, auto_field=True
                )
            )
        except BaseException:
            self.close()
            raise
        _live.add(self)

    @property
    def java(self) -> Any:
        """The root of all Java packages: ``java.org.apache.rocketmq...``."""
        return self.gateway.jvm

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that RocketMQ logged or the JVM wrote to standard error."""
        found: list[str] = []
        for name in ("rocketmq.log", "stderr.log"):
            path = self.home / name
            if path.exists():
                found += path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        return "\n".join(found) or "(nothing was logged)"

    def describe(self, error: BaseException | None) -> None:
        """Note a Java exception's text and stack on the error, while there is a JVM to ask for it."""
        from py4j.protocol import Py4JJavaError

        if isinstance(error, Py4JJavaError) and self.process.poll() is None:
            error.add_note(str(error))

    def kill(self) -> None:
        """End the JVM as a crash would (SIGKILL): nothing is flushed, no shutdown hook runs."""
        self._disconnect()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the JVM, if it still runs, and remove its scratch directory."""
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "gateway"):
            self._disconnect()
        process: subprocess.Popen[bytes] | None = getattr(self, "process", None)
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        if hasattr(self, "_errors"):
            self._errors.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.describe(error)
        self.close()

    def _disconnect(self) -> None:
        self.gateway.close(keep_callback_server=False, close_callback_server_connections=True)
        # Else each Java object that is finalized later would look for the JVM and log that it's gone.
        self.gateway._gateway_client.is_connected = False


def private(of: Any, name: str) -> Any:
    """A Java object's field, whether declared by its class or by one above it."""
    kind = of.getClass()
    while name not in [str(field.getName()) for field in kind.getDeclaredFields()]:
        kind = kind.getSuperclass()
        if kind is None:
            raise AttributeError(f"{of.getClass().getName()} has no field {name}")
    found = kind.getDeclaredField(name)
    found.setAccessible(True)
    return found.get(of)


def java_options(home: Path, *, heap: str = "512m", log_level: str = "WARN") -> list[str]:
    """What RocketMQ needs from a JVM whose logs and temporary files go to this existing directory."""
    log = home / "rocketmq.log"
    configured: list[str] = []
    # 4.9 logs through logback itself, 5.x through a copy of it in a package of its own.
    for package, setting in (
        ("", "logback.configurationFile"),
        ("org.apache.rocketmq.logging.", "rmq.logback.configurationFile"),
    ):
        path = home / f"{setting}.xml"
        path.write_text(_LOGBACK.format(package=package, file=log, level=log_level), encoding="utf-8")
        configured.append(f"-D{setting}={path}")
    return [
        *_OPENS,
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
        # Client and remoting of 4.9 have a logger of their own.
        "-Drocketmq.client.logUseSlf4j=true",
        *configured,
        # A well-filled disk makes a broker delete segments or refuse messages: not in a test.
        "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
        "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
    ]


@functools.cache
def _leave_exceptions_of_other_jvms_to_py4j() -> None:
    """Have PySpark convert only the exceptions that come from Spark's own JVM.

    A Spark session replaces py4j's handling of Java exceptions in the whole process: each one is looked up
    in Spark's JVM by its object's number. An exception of a JVM of ours has a number of ours, which may be
    any object of Spark's, at times an exception: then the end of a Java list (py4j stops its iteration at a
    ``Py4JError``) arrives as a failed streaming query.
    """
    from pyspark import SparkContext
    from pyspark.errors.exceptions import captured

    convert = captured.convert_exception

    def convert_sparks(e: Any) -> captured.CapturedException:
        gateway = SparkContext._gateway
        if gateway is not None and e._gateway_client is gateway._gateway_client:
            return convert(e)
        return captured.UnknownException(desc="of another JVM", stackTrace="")  # raised as it came

    captured.convert_exception = convert_sparks


@atexit.register
def _close_all() -> None:
    for jvm in list(_live):
        jvm.close()


def be_patient(jvm: Jvm) -> None:
    """Let a store wait two minutes for the next file of its log, and not five seconds, as a broker does.

    The disk that tests run on may stall, and a put would fail.
    """
    found = jvm.java.java.lang.Class.forName("org.apache.rocketmq.store.AllocateMappedFileService")
    waits = found.getDeclaredField("waitTimeOut")
    waits.setAccessible(True)
    waits.setInt(None, 120_000)
