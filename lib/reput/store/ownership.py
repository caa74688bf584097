"""Whose the written files are: a broker must be able to open, for writing, what reput leaves in its store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reput.errors import OutputError
from reput.format import names
from reput.store.listing import entries_in, queues_in

_CAP_CHOWN = 1 << 0  # capability 0 of linux/capability.h


@dataclass(frozen=True, slots=True)
class Owner:
    """User, group and modes for new files and directories; None leaves what the system gives by itself."""

    uid: int | None = None  # owner's user id
    gid: int | None = None  # owner's group id
    file_mode: int | None = None  # permission bits of files
    dir_mode: int | None = None  # permission bits of directories

    @classmethod
    def default(cls) -> Owner:
        """The process's own user, group and umask: for an output of its own."""
        return cls()

    @classmethod
    def of_store(cls, root: Path, commit_log_dirs: Iterable[Path]) -> Owner:
        """The owner and modes of what the broker wrote.

        Asked are a consume queue file and its directory, else a segment and its directory, else ``root``
        alone, without modes.

        Write access for the owner is always part of it: a segment that somebody protected with mode 0444 says
        nothing of files that a broker has to write.
        """
        try:
            for path in _examples(root, commit_log_dirs):
                file, directory = path.stat(), path.parent.stat()
                return cls(
                    file.st_uid,
                    file.st_gid,
                    stat.S_IMODE(file.st_mode) | stat.S_IRUSR | stat.S_IWUSR,
                    stat.S_IMODE(directory.st_mode) | stat.S_IRWXU,
                )
            facts = root.stat()
        except OSError as error:
            raise OutputError(
                "can't tell whose files these are", path=error.filename or root, found=error.strerror
            ) from error
        return cls(facts.st_uid, facts.st_gid)

    def check_can_apply(self, path: Path) -> None:
        """Refuse, before anything is written, an owner that this process may not give files to."""
        groups = {os.getegid(), *os.getgroups()}
        wrong_user = self.uid is not None and self.uid != os.geteuid()
        wrong_group = self.gid is not None and self.gid not in groups
        if (wrong_user or wrong_group) and not _may_chown():
            raise OutputError(
                "files here must belong to the store's owner, and this process may not give them away",
                path=path,
                expected=f"a process of uid {_text(self.uid)}, gid {_text(self.gid)}",
                found=f"uid {os.geteuid()}, gid {os.getegid()}",
                next_step="Run the same command as root, or as the user that the broker runs as.",
            )


def _text(number: int | None) -> str:
    return "any" if number is None else str(number)


def _examples(root: Path, commit_log_dirs: Iterable[Path]) -> Iterator[Path]:
    """Files that a broker wrote, the most telling first."""
    for _, _, queue in queues_in(root / names.CONSUME_QUEUE):
        yield from _numbered(queue)
    for directory in commit_log_dirs:
        yield from _numbered(directory)


def _numbered(directory: str | Path) -> Iterator[Path]:
    for entry in entries_in(directory):
        if names.parse_offset_name(entry.name) is not None and entry.is_file():
            yield Path(entry.path)


def _may_chown() -> bool:
    """Whether the process may give files away: a capability on Linux, which root in a container may lack."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) & _CAP_CHOWN)
    except (OSError, ValueError, IndexError):
        pass  # another system, or a /proc that hides it
    return os.geteuid() == 0
