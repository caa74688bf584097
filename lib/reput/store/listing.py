"""What lies in a directory, in order; nothing where there is none."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from operator import attrgetter

from reput.format import names


def entries_in(directory: str | os.PathLike[str], most: int | None = None) -> list[os.DirEntry[str]]:
    """What a directory holds, sorted by name; nothing where there is no directory, or a link to itself.

    Args:
        most: so many are read, as the file system gives them; None for all.

    Raises:
        OSError: it can't be read; names the path.
    """
    try:
        with os.scandir(os.fspath(directory)) as found:
            entries = list(islice(found, most))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    if len(entries) > 1:  # of many queues each has one file
        entries.sort(key=attrgetter("name"))
    return entries


def names_in(directory: str | os.PathLike[str], most: int | None = None) -> list[str]:
    """The names of :func:`entries_in`.

    Raises:
        OSError: it can't be read; names the path.
    """
    return [entry.name for entry in entries_in(directory, most)]


def names_seen(directory: str | os.PathLike[str], most: int | None = None) -> list[str]:
    """The same for who only has a look: none where the directory can't be read, either."""
    with suppress(OSError):
        return names_in(directory, most)
    return []


def topics_seen(directory: str | os.PathLike[str]) -> list[str]:
    """The names of topics in a directory such as ``consumequeue/``; empty if it can't be listed.

    Files aren't looked for, but where a RocksDB lies there as well.
    """
    found = names_seen(directory)
    if "CURRENT" not in found:
        return found
    return [name for name in found if os.path.isdir(os.path.join(directory, name))]  # noqa: PTH112, PTH118


def queues_in(directory: str | os.PathLike[str]) -> Iterator[tuple[str, int, str]]:
    """Topic, queueId and path of the queues that have a directory, such as ``consumequeue/TOPIC/3``, by name.

    Other names aren't a broker's, and are left out.

    Raises:
        OSError: a directory can't be read; names the path.
    """
    for topic in entries_in(directory):
        for queue in entries_in(topic.path):
            if names.is_queue_id(queue.name) and queue.is_dir():
                yield topic.name, int(queue.name), queue.path
