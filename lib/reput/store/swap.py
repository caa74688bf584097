"""Putting a rebuilt part of a store into its place, and keeping what was there.

Several directories can't change at once, so the intent is written down first, in ``.reput/swap.json``; then
each name changes by itself, and a run that finds an intent finishes it, always forwards. What was replaced
lies, under its own name, in ``replaced-STAMP`` in the store's root: no broker looks for anything there, while
all that lies in consumequeue/ is a topic to it, and all that lies in index/ an index file. When all is in
place the intent moves there, too, as the record that :func:`undo` needs.

A name is at up to three places: in the store itself, in staging, and under ``replaced-STAMP``. Where it is
tells how far it has come:

=======  =======  =====  ===============================================================================
store    staging  kept   what is left to do
=======  =======  =====  ===============================================================================
old      new      --     exchange the two; where the file system can't, keep the old, then as below
new      old      --     keep the old (this line and the one above differ in the inode of the new one)
--       new      any    put the new one in place
new      --       old    nothing
new      --       --     nothing, if there was no old one to begin with
=======  =======  =====  ===============================================================================

Anything else is refused: somebody else was at work.

A broker that starts on a half-done swap reads a mixture, and once it has run, the staged files are behind the
log. It writes to ``lock`` when it starts, which shows in that file's time: such a swap is refused, and
:func:`abandon` leaves the store to a mending, or a new rebuild.

Whoever calls holds :class:`~reput.store.lock.StoreLock` and :class:`~reput.store.lock.OutputLock`, has
flushed what lies in staging, and leaves staging alone as long as :func:`is_pending`. At the end what staging
has more than the intent's names is removed, but for ``.reput`` and files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from reput.errors import OutputError, StoreError
from reput.format import names
from reput.newer_python import UTC
from reput.store import files, system
from reput.store.file_system import mounted
from reput.store.ownership import Owner
from reput.store.reading import read_file
from reput.words import counted, next_command, utc

INTENT = "swap.json"
KEPT = "replaced-"
#: Of a record that can't be read: one of a swap under way, or of one that is done.
_FINISH_BY_HAND = (
    "If another version of reput wrote it, finish with that one what it began. Else put back by hand what a "
    f"{KEPT}… without a {INTENT} holds, if there is one, remove this file, and check the store."
)
_UNDO_BY_HAND = (
    "If another version of reput wrote it, undo with that one. Else put back by hand what lies beside it."
)

_STAMP = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_STAMP_FORMAT = "%Y%m%dT%H%M%SZ"
_VERSION = 1


class SwapOvertakenError(OutputError):
    """Since the swap began, or ended, a broker ran on the store or somebody else moved its files."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What a swap is going to do, or has done; all paths relative to the store."""

    staging: str  # the directory of the new ones
    stamp: str  # names the directory of the kept ones
    names: tuple[str, ...]  # what is put in place, in this order
    remove: tuple[str, ...]  # what is only moved away, after that
    #: those of names that had no old one, or the outermost directory that was made for them
    created: tuple[str, ...]
    inodes: dict[str, int]  # of the new ones, by name
    broker_mark: int | None  # see :func:`broker_mark`, when the swap began
    owner: Owner  # for new directories
    #: size and time (ns) of each file that is replaced; None in a record of reput 1.0
    old: dict[str, list[int]] | None = None

    @property
    def kept(self) -> str:
        """The directory of what is replaced."""
        return KEPT + self.stamp

    @property
    def of_undo(self) -> bool:
        """Whether the swap is an :func:`undo`."""
        return Path(self.staging).name.startswith(KEPT)

    def encode(self) -> bytes:
        """As a file has it."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def read(cls, path: Path) -> Intent | None:
        """The intent in a file; None where there is no file."""
        try:
            text = read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise system.output_error("can't read the swap's record", path, error) from error
        try:
            facts: dict[str, Any] = json.loads(text)
            if facts.pop("version") != _VERSION:
                raise ValueError("another version")
            for key in ("names", "remove", "created"):
                facts[key] = tuple(facts[key])
            intent = cls(**{**facts, "owner": Owner(**facts["owner"])})
            _check_names(intent.stamp, (*intent.names, *intent.remove))
            staging = Path(intent.staging)
            if staging.is_absolute() or ".." in staging.parts:
                raise ValueError(f"{intent.staging!r} isn't a directory inside a store")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OutputError(
                "this isn't a record of replaced files that this version of reput wrote",
                path=path,
                found=error,
                next_step=_UNDO_BY_HAND if path.parent.name.startswith(KEPT) else _FINISH_BY_HAND,
            ) from error
        return intent


def record_in(kept: Path) -> Intent:
    """What a finished swap did, by the directory of what it replaced, which :meth:`Swap.run` returned."""
    done = Intent.read(kept / INTENT)
    if done is None:
        raise OutputError(
            "this directory doesn't hold what a swap replaced", path=kept, expected=f"a file {INTENT}"
        )
    return done


def kept_directories(root: Path) -> list[Path]:
    """The directories that finished swaps keep things in, the newest first."""
    with files.reporting("the store can't be looked at", root):
        found = [path for path in root.glob(f"{KEPT}*") if os.path.lexists(path / INTENT)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def new_stamp(root: Path) -> str:
    """The time as ``20261121T093000Z``, and a second or more behind all that the store has kept things under.

    So their names sort in the order of making, also where the clock was set back.
    """
    moment = datetime.now(UTC)
    with files.reporting("the store can't be looked at", root):
        kept = [path.name.removeprefix(KEPT) for path in root.glob(f"{KEPT}*")]
    for stamp in filter(_STAMP.fullmatch, kept):
        with suppress(ValueError, OverflowError):  # no time at all, or the last there is
            made = datetime.strptime(stamp, _STAMP_FORMAT).replace(tzinfo=UTC)
            moment = max(moment, made + timedelta(seconds=1))
    return f"{moment:{_STAMP_FORMAT}}"


def check_movable(root: Path, wanted: Iterable[str], *, writable: bool = True) -> None:
    """See that names in a store can be swapped, those that are there: for before there is anything to swap.

    None may be a symbolic link, a mount point or on another file system, or lie behind one. With
    ``writable``, this process must have the right to move them: a directory that moves changes itself, too.
    """
    mounts = _mount_points()
    for name in wanted:
        path = root / name
        _check_movable(root, path, mounts)
        for place in (root, path.parent, path) if writable else ():
            if place != path or (path.is_dir() and not path.is_symlink()):
                system.check_can_make(place)


def is_pending(root: Path) -> bool:
    """Whether a swap of this store was begun and neither finished nor abandoned."""
    return os.path.lexists(_intent_path(root))


def refuse_half_replaced(root: Path, broker_conf: Path | None, rocketmq_version: str | None) -> None:
    """Refuse a store with a pending swap; the settings are for the command that finishes it."""
    if (intent := Intent.read(_intent_path(root))) is None:
        return
    again = "Run the command that was interrupted again, which finishes that"
    mend = next_command("mend", root, "--apply", broker_conf=broker_conf, rocketmq_version=rocketmq_version)
    found, step = "", f"{again}; of a rebuild or a mend `{mend}` does, too."
    if (since := _broker_since(root, intent)) is not None:
        found, step = f"; since then {since}", _given_up(mend)
    elif intent.of_undo:
        step = f"`{next_command('undo', root)}` finishes that."
    raise StoreError(
        "the store is a mixture",
        path=root,
        found=f"files that an interrupted command has replaced, and others that it hasn't yet{found}",
        next_step=step,
    )


class Swap:
    """One swap, yet to begin.

    ``staging`` is a directory inside the store that holds the new ones, e.g. ``root/.reput/staging``.
    ``names`` are put in place in this order, the checkpoint last: relative paths such as ``consumequeue``,
    ``checkpoint`` or ``consumequeue/TopicA/0``, none inside another. An old one needn't exist. What is in
    ``remove`` is moved away without a successor, where it is there. Names that can't be meant raise
    ValueError.
    """

    def __init__(
        self,
        root: Path,
        staging: Path,
        names: Iterable[str],
        stamp: str,
        *,
        remove: Iterable[str] = (),
        owner: Owner | None = None,
    ) -> None:
        self.root = root
        self.staging = staging
        self.names = tuple(names)
        self.remove = tuple(remove)
        self.stamp = stamp
        self.owner = owner or Owner.default()
        _check_names(stamp, (*self.names, *self.remove))
        if not staging.is_relative_to(root) or staging == root:
            raise ValueError(f"{staging} isn't a directory inside {root}")

    def run(self) -> Path:
        """Do it; returns the directory that holds what was replaced.

        An error means refused, with nothing changed, or stopped on the way: then :func:`is_pending`, and
        :meth:`resume` finishes it.
        """
        self.check()
        intent = Intent(
            staging=self.staging.relative_to(self.root).as_posix(),
            stamp=self.stamp,
            names=self.names,
            remove=tuple(name for name in self.remove if os.path.lexists(self.root / name)),
            created=tuple(
                dict.fromkeys(
                    _outermost(self.root, name)
                    for name in self.names
                    if not os.path.lexists(self.root / name)
                )
            ),
            inodes={name: _inode(self.staging / name) for name in self.names},
            broker_mark=broker_mark(self.root),
            owner=self.owner,
            old=_sizes_and_times(self.root, (*self.names, *self.remove)),
        )
        files.make_dirs(self.root / names.REPUT, self.owner)
        with _telling(self.root, intent):
            try:
                files.write_atomically(_intent_path(self.root), intent.encode(), self.owner)
                return _carry_out(self.root, intent)
            except OutputError:
                # What can't even begin is no half-done swap: the next run would only fail the same way.
                with suppress(OutputError):
                    if not _begun(self.root, intent):
                        files.remove_tree(_intent_path(self.root))
                        _remove_empty(self.root / intent.kept)
                raise

    def check(self) -> None:
        """See that the swap can be done; changes nothing."""
        if is_pending(self.root):
            raise OutputError(
                "a swap was begun in this store and isn't finished",
                path=_intent_path(self.root),
                next_step="Finish it first: run the same command again.",
            )
        if os.path.lexists(self.root / (KEPT + self.stamp)):
            raise OutputError(
                "something is kept here already",
                path=self.root / (KEPT + self.stamp),
                next_step="Run the same command again: it takes another name a second later",
            )
        for name in self.names:
            if not os.path.lexists(self.staging / name):
                raise OutputError(
                    "there is nothing to put in place",
                    path=self.staging / name,
                    expected="what this command has made",
                    next_step="Run the same command again, when nothing else changes .reput in the store",
                )
        in_staging = [(self.staging / name).relative_to(self.root).as_posix() for name in self.names]
        check_movable(self.root, (*self.names, *in_staging, *self.remove))

    @staticmethod
    def resume(root: Path) -> Path | None:
        """Finish a swap that was interrupted; returns what :meth:`run` does, None when no swap was pending.

        SwapOvertakenError: it can't be finished any more; :func:`abandon` it and rebuild. After any other
        error it stays pending.
        """
        intent = Intent.read(_intent_path(root))
        if intent is None:
            return None
        with _telling(root, intent):
            check_finishable(root)
            return _carry_out(root, intent)


def check_finishable(root: Path) -> None:
    """See that a swap, where one is pending, can be finished; raises as :meth:`Swap.resume`."""
    if (intent := Intent.read(_intent_path(root))) is not None:
        _check_places(root, intent)
        if (found := _broker_since(root, intent)) is not None:
            expected = "no broker to have run since the swap began"
            raise _overtaken(root, _intent_path(root), expected, found)


def undo(root: Path, kept: Path, stamp: str, *, owner: Owner | None = None) -> Path:
    """Put back what a finished swap replaced, and keep what it put in place: a swap the other way round.

    ``kept`` is what :meth:`Swap.run` returned; what was in place is returned the same way.
    SwapOvertakenError: a broker ran on the store since, so that the kept files are behind the log; or they
    aren't what they were when they were replaced.
    """
    back, added = undone_names(root, kept)
    return Swap(root, kept, back, stamp, remove=added, owner=owner).run()


def undone_names(root: Path, kept: Path) -> tuple[list[str], list[str]]:
    """What an undo puts back, and what it takes away; relative to the store."""
    done = record_in(kept)
    if (found := _broker_since(root, done)) is not None:
        raise _too_late(
            root, kept, root / names.LOCK, "no broker to have run since these files were replaced", found
        )
    back = [name for name in (*done.names, *done.remove) if not _is_created(done, name)]
    for name in back:
        if not os.path.lexists(kept / name):
            raise _too_late(root, kept, kept / name, "what was replaced", "nothing")
    if done.old is not None and (now := _sizes_and_times(kept, back)) != done.old:
        name = min(name for name in {*now, *done.old} if now.get(name) != done.old.get(name))
        expected, there = (_size_and_time(one.get(name)) for one in (done.old, now))
        raise _too_late(root, kept, kept / name, f"{expected}, as it was replaced", there)
    check_movable(root, (*back, *(f"{done.kept}/{name}" for name in back), *done.created))
    return back, list(done.created)


def abandon(root: Path) -> Path | None:
    """Give up a pending swap, for a rebuild that starts anew; returns what :meth:`Swap.resume` does.

    Names that are in place stay, new or old; a name with nothing in place gets its old one back. What was
    kept stays kept, with the record. After an error the swap stays pending.
    """
    intent = Intent.read(_intent_path(root))
    if intent is None:
        return None
    _check_places(root, intent)
    for name in intent.names:
        place, staged, old = root / name, root / intent.staging / name, root / intent.kept / name
        if not os.path.lexists(place) and os.path.lexists(old):
            files.rename(old, place)
        elif _is_new(place, intent, name) and os.path.lexists(staged) and not os.path.lexists(old):
            _move(staged, old, intent.owner)
    return _finish(root, intent)


def _check_places(root: Path, intent: Intent) -> None:
    """See that nothing has become a link since the swap began: what that leads to would be moved."""
    wanted = (*intent.names, *intent.remove)
    check_movable(
        root,
        (f"{place}{name}" for place in ("", f"{intent.staging}/", f"{intent.kept}/") for name in wanted),
        writable=False,  # what is in place needn't move
    )


@contextmanager
def _telling(root: Path, intent: Intent) -> Iterator[None]:
    """Have an error of the block say what state it leaves the store in, where that is a mixture."""
    try:
        yield
    except SwapOvertakenError:
        raise
    except OutputError as error:
        if is_pending(root):
            error.problem += "; the store is half replaced now: start no broker"
            back = "" if intent.of_undo else f", and `{next_command('undo', root)}` takes it back"
            error.next_step = (
                f"{error.next_step or ''} The same command finishes what was begun{back}.".strip()
            )
        raise


def _carry_out(root: Path, intent: Intent) -> Path:
    for name in intent.names:
        _put(root, intent, name)
    for name in intent.remove:
        place, old = root / name, root / intent.kept / name
        if os.path.lexists(place) and not os.path.lexists(old):
            _move(place, old, intent.owner)
    return _finish(root, intent)


def _put(root: Path, intent: Intent, name: str) -> None:
    """Take one name from whatever it is at to its end, by the table above."""
    place, staged, old = root / name, root / intent.staging / name, root / intent.kept / name
    match os.path.lexists(place), os.path.lexists(staged), os.path.lexists(old):
        case True, True, False:
            if _is_new(staged, intent, name):
                files.make_dirs(old.parent, intent.owner)
                try:
                    files.exchange(place, staged)
                except OSError:  # not supported; failures are OutputErrors
                    files.rename(place, old)
                    files.rename(staged, place)
                    return
            elif not _is_new(place, intent, name):
                raise _overtaken(root, place, "the old or the new one", "another")
            _move(staged, old, intent.owner)
        case False, True, _:
            _move(staged, place, intent.owner)
        case True, False, kept if kept or _is_created(intent, name):
            pass
        case _:
            where = [str(path) for path in (place, staged, old) if os.path.lexists(path)]
            raise _overtaken(root, place, "the new one here or in staging", ", ".join(where) or "neither")


def _finish(root: Path, intent: Intent) -> Path:
    kept, staging = root / intent.kept, root / intent.staging
    if not intent.of_undo and staging.is_dir():
        # Queues that mend made and found right, say: with them it would look like a run to go on with.
        for path in staging.iterdir():
            if path.is_dir() and path.name != names.REPUT:
                files.remove_tree(path)
    if intent.of_undo:  # what was recorded there is past: were it to stay alone, it could be undone again
        files.remove_tree(staging / INTENT)
    _remove_empty(staging)  # while it is pending: nobody comes back for what a killed one leaves of it
    _move(_intent_path(root), kept / INTENT, intent.owner)
    return kept


def _begun(root: Path, intent: Intent) -> bool:
    return any(
        not _is_new(root / intent.staging / name, intent, name) or os.path.lexists(root / intent.kept / name)
        for name in intent.names
    ) or any(os.path.lexists(root / intent.kept / name) for name in intent.remove)


def _move(source: Path, target: Path, owner: Owner) -> None:
    files.make_dirs(target.parent, owner)
    files.rename(source, target)


def _remove_empty(directory: Path) -> None:
    """Remove a directory with all the empty ones in it; what holds a file stays."""
    for place, _, _ in os.walk(directory, topdown=False):
        if not any(Path(place).iterdir()):
            files.remove_tree(Path(place))


def _intent_path(root: Path) -> Path:
    return root / names.REPUT / INTENT


def _outermost(root: Path, name: str) -> str:
    """What isn't there yet of a name inside a store: itself, or the first directory on the way to it."""
    around = reversed(Path(name).parents[:-1])
    return next((one.as_posix() for one in around if not os.path.lexists(root / one)), name)


def _is_created(intent: Intent, name: str) -> bool:
    return any(Path(name).is_relative_to(one) for one in intent.created)


def _sizes_and_times(root: Path, wanted: Iterable[str]) -> dict[str, list[int]]:
    """Of each file that is one of these names or lies below one; a rename changes neither."""
    found: dict[str, list[int]] = {}
    for name in wanted:
        with files.reporting("can't look at it", root / name):
            below = (Path(place) / one for place, _, there in os.walk(root / name) for one in there)
            for path in below if (root / name).is_dir() else (root / name,):
                if os.path.lexists(path):
                    facts = path.lstat()
                    found[path.relative_to(root).as_posix()] = [facts.st_size, facts.st_mtime_ns]
    return found


def _size_and_time(facts: list[int] | None) -> str:
    if facts is None:
        return "nothing"
    return f"{counted(facts[0], 'byte')}, written at {utc(facts[1] // 10**6)}"


def _inode(path: Path) -> int:
    with files.reporting("can't look at it", path):
        return path.lstat().st_ino


def _is_new(path: Path, intent: Intent, name: str) -> bool:
    return os.path.lexists(path) and _inode(path) == intent.inodes[name]


def broker_mark(root: Path) -> int | None:
    """When a broker last started on the store, in ns; None for never.

    Source: ``DefaultMessageStore.start`` writes four bytes to ``lock`` (rocketmq-all-4.9.7, 5.3.3).
    """
    path = root / names.LOCK
    with files.reporting("can't look at it", path):
        try:
            facts = path.stat()
        except FileNotFoundError:
            return None
    # An empty one was made by reput's own lock.
    return facts.st_mtime_ns if facts.st_size else None


def _broker_since(root: Path, intent: Intent) -> str | None:
    """What shows that a broker has started since the swap began; None where nothing does."""
    now = broker_mark(root)
    if now == intent.broker_mark:
        return None
    at = "" if now is None else f" at {datetime.fromtimestamp(now // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{names.LOCK} written to{at}, as by a broker that starts" if at else f"no {names.LOCK} any more"


def _too_late(root: Path, kept: Path, path: Path, expected: str, found: str) -> SwapOvertakenError:
    return SwapOvertakenError(
        "what was replaced can't be put back as a whole any more; nothing was changed",
        path=path,
        expected=expected,
        found=found,
        next_step=f"Go on with the store as it is: `{next_command('check', root)}` says what a broker finds. "
        f"What was replaced stays in {kept}; remove that when nothing in it is needed.",
    )


def _overtaken(root: Path, path: Path, expected: str, found: str) -> SwapOvertakenError:
    return SwapOvertakenError(
        "a run that was replacing files was interrupted, and can't be finished: the store has changed since",
        path=path,
        expected=expected,
        found=found,
        next_step=_given_up(next_command("mend", root, "--apply")),
    )


def _given_up(mend: str) -> str:
    return f"`{mend}` gives that command up, and mends the store as it is now."


def _check_names(stamp: str, chosen: tuple[str, ...]) -> None:
    if not _STAMP.fullmatch(stamp):
        raise ValueError(f"{stamp!r} isn't a time like 20261121T093000Z")
    seen: set[Path] = set()
    for name in chosen:
        path = Path(name)
        if (
            path.is_absolute()
            or path.as_posix() != name
            or ".." in path.parts
            or not path.parts
            or path.parts[0] == names.REPUT
            or path.parts[0].startswith(KEPT)
        ):
            raise ValueError(f"{name!r} isn't a name inside a store")
        if path in seen or any(path in other.parents or other in path.parents for other in seen):
            raise ValueError(f"{name!r} stands twice or inside another")
        seen.add(path)


def _check_movable(root: Path, path: Path, mounts: frozenset[str]) -> None:
    """Refuse what a rename would fail at, or would not do what is meant."""
    with files.reporting("can't look at it", path):
        device = root.stat().st_dev
        for place in (
            path,
            *(parent for parent in path.parents if parent.is_relative_to(root) and parent != root),
        ):
            if not os.path.lexists(place):
                continue
            if place.is_symlink() and (place != path or place.is_dir()):
                # One to a file may go: the file stays where it is.
                problem, found = "a symbolic link can't be swapped", f"a link to {place.readlink()}"
            elif place.lstat().st_dev != device:
                problem, found = "it can't be renamed to another file system", "another file system"
            elif os.path.realpath(place) in mounts:
                problem, found = "a mount point can't be swapped", "a mount point"
            else:
                continue
            raise OutputError(
                problem,
                path=place,
                expected=f"a plain part of the file system that holds {root}",
                found=found,
                next_step="Rebuild beside the store with --out, and move the result there by hand.",
            )


def _mount_points() -> frozenset[str]:
    """Where something is mounted, also from the same file system; nothing where Linux's list is missing."""
    return frozenset(mount.place for mount in mounted() or ())
