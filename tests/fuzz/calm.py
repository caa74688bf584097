"""What costs more time than it shows where only bytes are tried: threads, and looking for other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from reput.config import kept
from reput.store import lock


class _Here(Executor):
    """Does what it is given at once."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future


@contextmanager
def calm() -> Iterator[None]:
    """Pools of threads work in the caller's, and nobody else has the store open or is writing its files."""
    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("reput.") and hasattr(module, "ThreadPoolExecutor")
    ]
    with ExitStack() as stack:
        # To look into /proc takes longer than all the rest.
        stack.enter_context(patch.object(lock, "_opener", lambda _path: None))
        # A file that can't be understood may be half written: nobody waits for the other half.
        stack.enter_context(patch.object(kept, "_WRITING_SECONDS", 0))
        for module in users:
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", _Here))
        yield
