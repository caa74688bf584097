"""Ctrl-C in the middle of a call into Spark's JVM; py4j's own client, without a JVM."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from py4j.java_gateway import GatewayClient
from pyspark.core import context

from reput.cli.jvm import as_before


class Interrupted:
    """A connection on which an answer is waited for when Ctrl-C comes."""

    socket = None

    def send_command(self, command: str) -> str:
        signal.raise_signal(signal.SIGINT)
        return command

    def shutdown_socket(self, *_: object) -> None:
        pass


class Client(GatewayClient):  # type: ignore[misc] # py4j has no types
    def _get_connection(self) -> Interrupted:
        return Interrupted()

    def _give_back_connection(self, connection: Interrupted) -> None:
        pass


def sparks_own(_number: int, _frame: FrameType | None) -> None:
    raise AssertionError("it calls the JVM")


@pytest.fixture(autouse=True)
def python_as_it_starts() -> Iterator[None]:
    """Where a script runs these tests in its background, Ctrl-C is ignored."""
    root, py4j, handler = logging.getLogger(), logging.getLogger("py4j"), signal.getsignal(signal.SIGINT)
    filters, propagate = list(root.filters), py4j.propagate
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root.filters.clear()
    py4j.propagate = True
    yield
    signal.signal(signal.SIGINT, handler)
    root.filters[:], py4j.propagate = filters, propagate


class Heard(logging.Handler):
    """What the root logger's handlers get; pytest's own hear loggers that don't propagate, too."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_ctrl_c_leaves_a_call_without_a_word(heard: Heard) -> None:
    with as_before():
        context.signal.signal(context.signal.SIGINT, sparks_own)
        with pytest.raises(KeyboardInterrupt):
            Client().send_command("c\n")
    with pytest.raises(KeyboardInterrupt):
        Client().send_command("c\n")
    logging.getLogger("py4j.clientserver").error("a call of Python's failed")
    logging.getLogger().warning("something else")
    assert heard.messages == ["something else"]


def test_a_session_that_did_not_start_leaves_spark_as_it_was() -> None:
    with pytest.raises(KeyboardInterrupt), as_before():
        Client().send_command("c\n")
    assert context.signal is signal


def test_spark_sets_its_handler_where_it_is_kept_from_it() -> None:
    assert "signal.signal(signal.SIGINT, " in inspect.getsource(context.SparkContext._do_init)
