"""Kinds of damage, each with a seed that chooses its place, so that a case can be named and run again.

Those of tests/compat/damage.py are among them, by their names; they need no seed.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from tests.compat.damage import DAMAGES, Copy
from tests.compat.starts import fields

#: What no damage touches: a broker's lock, and what lies beside the files that are derived.
_KEPT = {names.LOCK, "compaction", names.ROCKSDB_STORE}


class NothingToDamageError(Exception):
    """The store, as damages before have left it, has no such place."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A store that is damaged: its directory, its release, and its sizes, bytes."""

    root: Path
    version: str
    segment_size: int
    queue_file_size: int


Kind = Callable[[Victim, random.Random], None]
KINDS: dict[str, Kind] = {}


def _kind(damage: Kind) -> Kind:
    KINDS[damage.__name__] = damage
    return damage


def damage(victim: Victim, kind: str, seed: int) -> bool:
    """Damage a store; False where there is nothing that could be damaged so."""
    try:
        if kind in KINDS:
            KINDS[kind](victim, random.Random(f"{kind}:{seed}"))
        elif any(not (path.is_file() or path.is_dir()) for path in victim.root.rglob("*")):
            return False  # these read all that they find, and would wait for a FIFO's writer
        else:
            _OF_THE_MATRIX[kind](Copy(victim.root, victim.segment_size, victim.queue_file_size))
    except (NothingToDamageError, LookupError, OSError, ValueError, AssertionError, struct.error):
        return False
    return True


_OF_THE_MATRIX = {one.__name__: one for one in DAMAGES}


def _chosen(rng: random.Random, found: list[Path]) -> Path:
    if not found:
        raise NothingToDamageError
    return rng.choice(sorted(found))


def _files(victim: Victim, *parts: str) -> list[Path]:
    """Regular files with a byte or more, of these parts of the store or of all."""
    found = [path for path in victim.root.rglob("*") if path.is_file() and path.stat().st_size]
    parts = parts or (names.COMMIT_LOG, *names.QUEUES, names.INDEX, names.CHECKPOINT)
    return [
        path
        for path in found
        if not path.is_symlink() and path.relative_to(victim.root).parts[0] in {*parts} - _KEPT
    ]


def _queues(victim: Victim) -> list[Path]:
    """The directories of queues, in order."""
    return sorted(one for one in (victim.root / names.CONSUME_QUEUE).glob("*/*") if one.is_dir())


def _of_some_part(victim: Victim, rng: random.Random) -> Path:
    """A file, each part of the store as likely as the others."""
    parts = [names.COMMIT_LOG, names.CONSUME_QUEUE, names.INDEX, names.CHECKPOINT]
    return _chosen(rng, _files(victim, rng.choice(parts)))


def _write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _place(path: Path, rng: random.Random) -> int:
    """A place in what is used of a file, rather than in the zeros behind it."""
    data = path.read_bytes()
    used = len(data.rstrip(b"\0")) or len(data)
    return rng.randrange(used)


def _flip(path: Path, rng: random.Random) -> None:
    at = _place(path, rng)
    _write(path, at, bytes([path.read_bytes()[at] ^ 1 << rng.randrange(8)]))


@_kind
def bit_in_log(victim: Victim, rng: random.Random) -> None:
    """A bit of the log isn't what it was."""
    _flip(_chosen(rng, _files(victim, names.COMMIT_LOG)), rng)


@_kind
def bit_in_queue(victim: Victim, rng: random.Random) -> None:
    """A bit of a unit isn't what it was."""
    _flip(_chosen(rng, _files(victim, *names.QUEUES)), rng)


@_kind
def bit_in_index(victim: Victim, rng: random.Random) -> None:
    """A bit of an index file isn't what it was."""
    _flip(_chosen(rng, _files(victim, names.INDEX)), rng)


@_kind
def bit_in_index_header(victim: Victim, rng: random.Random) -> None:
    """A bit of an index file's header isn't what it was."""
    path = _chosen(rng, _files(victim, names.INDEX))
    at = rng.randrange(40)
    _write(path, at, bytes([path.read_bytes()[at] ^ 1 << rng.randrange(8)]))


@_kind
def bit_in_checkpoint(victim: Victim, rng: random.Random) -> None:
    """A bit of the checkpoint isn't what it was."""
    _flip(_chosen(rng, _files(victim, names.CHECKPOINT)), rng)


@_kind
def truncated(victim: Victim, rng: random.Random) -> None:
    """A file lacks its end."""
    path = _of_some_part(victim, rng)
    os.truncate(path, rng.randrange(path.stat().st_size))


@_kind
def empty(victim: Victim, rng: random.Random) -> None:
    """A file lacks all."""
    os.truncate(_of_some_part(victim, rng), 0)


@_kind
def longer(victim: Victim, rng: random.Random) -> None:
    """A file has bytes behind its end."""
    with _of_some_part(victim, rng).open("ab") as file:
        file.write(bytes(rng.choice((1, 20, 4096))))


@_kind
def zeroed(victim: Victim, rng: random.Random) -> None:
    """A range of a file is zeros."""
    path = _of_some_part(victim, rng)
    at = _place(path, rng)
    _write(path, at, bytes(min(rng.choice((4, 60, 1000, 1 << 20)), path.stat().st_size - at)))


@_kind
def junk(victim: Victim, rng: random.Random) -> None:
    """A range of a file is noise."""
    path = _of_some_part(victim, rng)
    at = _place(path, rng)
    _write(path, at, rng.randbytes(min(rng.choice((4, 60, 1000)), path.stat().st_size - at)))


@_kind
def removed(victim: Victim, rng: random.Random) -> None:
    """A file is gone."""
    _of_some_part(victim, rng).unlink()


@_kind
def directory_gone(victim: Victim, rng: random.Random) -> None:
    """A queue, a topic or a whole kind of files is gone."""
    queues = victim.root / names.CONSUME_QUEUE
    found = [queues, victim.root / names.INDEX, *queues.glob("*"), *queues.glob("*/*")]
    shutil.rmtree(_chosen(rng, [path for path in found if path.is_dir()]))


@_kind
def second_name(victim: Victim, rng: random.Random) -> None:
    """A copy of a file lies beside it, under a name of another kind."""
    path = _of_some_part(victim, rng)
    other = rng.choice((f"{path.name}.bak", f"{path.name}~", path.name.lstrip("0") or "0", f"0{path.name}"))
    if (path.parent / other).exists():
        raise NothingToDamageError
    shutil.copy2(path, path.parent / other)


@_kind
def second_place(victim: Victim, rng: random.Random) -> None:
    """A copy of a file lies beside it, under the name of the one behind the last."""
    path = _chosen(rng, _files(victim, names.COMMIT_LOG, names.CONSUME_QUEUE))
    numbers = sorted(one.name for one in path.parent.iterdir() if one.name.isdecimal())
    size = victim.segment_size if path.parent.name == names.COMMIT_LOG else victim.queue_file_size
    shutil.copy2(path, path.parent / names.offset_name(int(numbers[-1]) + size * rng.choice((1, 2))))


@_kind
def fifo(victim: Victim, rng: random.Random) -> None:
    """A FIFO lies where a file was."""
    path = _of_some_part(victim, rng)
    path.unlink()
    os.mkfifo(path)


@_kind
def directory(victim: Victim, rng: random.Random) -> None:
    """A directory lies where a file was."""
    path = _of_some_part(victim, rng)
    path.unlink()
    path.mkdir()


@_kind
def link(victim: Victim, rng: random.Random) -> None:
    """A link lies where a file was: to itself, to nothing, or to the file, elsewhere in the store."""
    path = _of_some_part(victim, rng)
    sort = rng.randrange(3)
    if sort == 2:
        target = victim.root / f"moved-{path.name}"
        path.rename(target)
    else:
        path.unlink()
        target = path if sort else victim.root / "nothing"
    path.symlink_to(os.path.relpath(target, path.parent))


@_kind
def file_for_directory(victim: Victim, rng: random.Random) -> None:
    """A file lies where a directory of queues, or of the index, was."""
    queues = victim.root / names.CONSUME_QUEUE
    found = [queues, victim.root / names.INDEX, *queues.glob("*"), *queues.glob("*/*")]
    path = _chosen(rng, [one for one in found if one.is_dir()])
    shutil.rmtree(path)
    path.write_bytes(b"" if rng.randrange(2) else b"no directory")


@_kind
def swapped(victim: Victim, rng: random.Random) -> None:
    """Two files of one directory have each other's name."""
    path = _of_some_part(victim, rng)
    other = _chosen(rng, [one for one in path.parent.iterdir() if one.is_file() and one != path])
    between = path.with_name("between")
    path.rename(between)
    other.rename(path)
    between.rename(other)


@_kind
def other_checkpoint(victim: Victim, rng: random.Random) -> None:
    """The checkpoint has other times, and another offset, than it had."""
    path = victim.root / names.CHECKPOINT
    old = StoreCheckpoint.decode(path.read_bytes()[:48])
    times = [old.physic_msg_timestamp, old.logics_msg_timestamp, old.index_msg_timestamp]
    late = max(times)
    times = [
        rng.choice((0, one, late, late - 3000, late - 60_000, late + 10_000, late << 1)) for one in times
    ]
    end = rng.choice((0, old.logics_physical_offset, rng.randrange(1 << 17), 1 << 40))
    new = StoreCheckpoint(*times, 0, old.confirm_physical_offset, end)
    path.write_bytes(fields(victim.version, new).encode())


@_kind
def abort_changed(victim: Victim, rng: random.Random) -> None:
    """The store looks killed where it was stopped, and the other way round."""
    path = victim.root / names.ABORT
    if path.exists():
        path.unlink()
    else:
        path.touch()


@_kind
def files_of_another_queue(victim: Victim, rng: random.Random) -> None:
    """A queue has the files of another one."""
    queues = _queues(victim)
    path = _chosen(rng, queues)
    other = _chosen(rng, [one for one in queues if one != path])
    shutil.rmtree(path)
    shutil.copytree(other, path)


@_kind
def foreign_queue(victim: Victim, rng: random.Random) -> None:
    """There is a queue that no message belongs to."""
    queues = _queues(victim)
    path = _chosen(rng, queues)
    name = rng.choice(("Elsewhere/0", "Orders/7", "Orders/x", "%RETRY%g/0"))
    shutil.copytree(path, victim.root / names.CONSUME_QUEUE / name)


@_kind
def batch_queue(victim: Victim, rng: random.Random) -> None:
    """A topic's queues lie where those of batches do."""
    found = [one for one in (victim.root / names.CONSUME_QUEUE).glob("*") if one.is_dir()]
    path = _chosen(rng, found)
    target = victim.root / names.BATCH_CONSUME_QUEUE / path.name
    target.parent.mkdir(exist_ok=True)
    (shutil.copytree if rng.randrange(2) else shutil.move)(path, target)


@_kind
def older_copy(victim: Victim, rng: random.Random) -> None:
    """A queue is what it was some files ago, or all queues and the checkpoint are."""
    queues = _queues(victim)
    for path in queues if rng.randrange(2) else [_chosen(rng, queues)]:
        for file in sorted(path.iterdir())[rng.randrange(1, 4) :]:
            file.unlink()


@_kind
def segments_gone(victim: Victim, rng: random.Random) -> None:
    """Some segments are gone, one after another or here and there."""
    found = sorted((victim.root / names.COMMIT_LOG).iterdir())
    at, count = rng.randrange(len(found)), rng.randrange(1, 4)
    for path in found[at : at + count] if rng.randrange(2) else rng.sample(found, min(count, len(found))):
        path.unlink()


@_kind
def config_broken(victim: Victim, rng: random.Random) -> None:
    """A file below config/ isn't what a broker writes."""
    name = rng.choice(("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json"))
    path = victim.root / names.CONFIG / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(rng.choice((b"", b"{", b"null", b'{"topicConfigTable":7}', rng.randbytes(40))))


@_kind
def batch_topic(victim: Victim, rng: random.Random) -> None:
    """A topic's attribute says batches, and its queues are plain ones."""
    path = victim.root / names.CONFIG / "topics.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"topicConfigTable":{"Orders":{"attributes":{"queue.type":"BatchCQ"}}}}')


#: All kinds, by their names.
ALL = (*_OF_THE_MATRIX, *KINDS)
