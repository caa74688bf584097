"""What Spark is told of a batch that was under way when its query was stopped.

Spark looks for the name of an interruption in the text of what a batch failed with, by a regular expression
that calls itself for each character (StreamExecution.PROXY_ERROR in 4.2.0). What py4j says of a job that was
cancelled begins as it should for that, and goes on for two stack traces: at times more than a thread's stack
has room for. A thousand lines of StackOverflowError are then what somebody sees who only pressed Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_few_words(is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Around what Spark calls for a batch.

    Raises:
        InterruptedError: it failed, and the query had been stopped before. It tells nothing else.
    """
    try:
        yield
    except Exception:
        if is_stopped():
            raise InterruptedError("the query was stopped") from None
        raise
