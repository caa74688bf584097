"""Waiting for a new broker's first segment, with the output already locked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reput.config.settings import StoreSettings
from reput.errors import StoreError
from reput.format import names
from reput.job.options import TailOptions
from reput.job.output_directory import check_utf8, output_root
from reput.log.segments import discover
from reput.store import files
from reput.store.lock import OutputLock

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Awaited:
    """A log that is there, or not.

    Attributes:
        settings: the store's.
        is_there: it has a segment; else somebody ended the wait.
        lock: the output's, held since the wait began; None if there was none.
    """

    settings: StoreSettings
    is_there: bool
    lock: OutputLock | None = None


@contextmanager
def first_segment(
    options: TailOptions, is_over: Callable[[], bool], on_wait: Callable[[Path], None]
) -> Iterator[Awaited]:
    """Wait until the log has a segment, or ``is_over()``, or there is a stop file in the output.

    The lock stays held while the block runs, so that who asks for an end finds one writer from first to last.

    Args:
        on_wait: is told once, before a wait, in which directory segments are looked for.

    Raises:
        ReputError: the tail is refused.
    """
    with files.reporting("the store can't be looked at", options.store):
        is_store = options.store.is_dir()
    settings = StoreSettings.load(
        options.store, options.broker_conf, options.rocketmq_version, asked=options.asked
    )
    if not is_store or options.out is None or _has_segment(settings):
        yield Awaited(settings, is_there=True)
        return
    with files.reporting("the output can't be looked at", options.out):
        root = output_root(options.out, settings)
    for path in (settings.root, root):
        check_utf8(path)
    files.make_dirs(root / names.REPUT)
    with OutputLock(root) as lock:
        stop_file = root / names.REPUT / names.STOP
        files.remove_tree(stop_file)
        on_wait(settings.commit_log_dirs[0])
        while not (is_there := _has_segment(settings)) and not (is_over() or stop_file.exists()):
            time.sleep(_LOOK_SECONDS)
        if not is_there:
            files.remove_tree(stop_file)
        yield Awaited(settings, is_there, lock)


def _has_segment(settings: StoreSettings) -> bool:
    """Whether there is a log to read, or something in its place that isn't as a new broker leaves it.

    A broker that starts makes the directory, and a 5.x one a first file without a byte.
    """
    try:
        discover(settings)
    except StoreError:
        return any(map(_has_bytes, settings.commit_log_dirs))
    return True


def _has_bytes(directory: Path) -> bool:
    try:
        return any(path.stat().st_size for path in directory.iterdir() if path.is_file())
    except FileNotFoundError:
        return False  # not made yet, or a file that has just gone
    except OSError:
        return True  # what it is, the next one who reads it says
