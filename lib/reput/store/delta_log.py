"""What the package deltalake leaves to its users: a log that is on disk, and which errors are its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from reput.store import files
from reput.store.reading import read_file

#: A table's log, and in it the file that names the last checkpoint.
LOG, LAST_CHECKPOINT = "_delta_log", "_last_checkpoint"
_ENTRY = re.compile(r"(\d{20})\.(?:json|checkpoint(?:\..+)?\.parquet)", re.ASCII)


def version_of(name: str) -> int | None:
    """The version that a file of a log is a commit or checkpoint of; None where it is neither."""
    match = _ENTRY.fullmatch(name)
    return None if match is None else int(match[1])


def is_deltalakes(error: Exception) -> bool:
    """Whether an error comes from the package; DataFusion, which is in it, raises the plain class."""
    from deltalake.exceptions import DeltaError

    return isinstance(error, DeltaError | OSError) or type(error) is Exception


def flush_log(table: Path, since: int | None = None) -> int | None:
    """Flush the entries and checkpoints of a table's log; on return they are on disk.

    A commit, a merge or another process's run between two looks makes more than one entry, and a checkpoint
    may be of an older version than the newest.

    ``since`` is what this has returned in this process before: the newest version that was flushed. Without
    it, what lies behind the last checkpoint is flushed, for a process that was killed may have left it.
    """
    log = table / LOG
    with files.reporting("the table's log can't be read", log):
        named = [(version_of(one.name), one) for one in log.iterdir()]
    found = [(version, one) for version, one in named if version is not None]
    last = _last_checkpoint(log)
    after = since if since is not None else -1 if last is None else last - 1
    for version, path in found:
        if version > after or (version == last and path.suffix != ".json"):
            files.fsync_path(path)
    if last is not None:
        files.fsync_path(log / LAST_CHECKPOINT)
    files.fsync_dir(log)
    files.fsync_dir(table)
    return max((version for version, _ in found if version > after), default=since)


def _last_checkpoint(log: Path) -> int | None:
    """The version of the checkpoint that readers begin with; None without one."""
    try:
        return int(json.loads(read_file(log / LAST_CHECKPOINT))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
