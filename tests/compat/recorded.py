"""Starts of real stores on damaged stores, recorded: what is foretold is then judged without a JVM.

``tests/golden/starts/VERSION.tar.xz`` has the store as it was when stopped and when killed, and
in ``seen.json`` what each start made of it. ``python -m tests.compat.recorded`` makes them anew, of starts
that went as foretold: it takes two minutes a release.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from reput.format import names
from reput.format.checkpoint import StoreCheckpoint
from reput.format.indexfile import IndexHeader
from tests.compat.starts import CONFIG, Bench, Seen, Stores, odd, otherwise, prepared, started, whole

DIRECTORY = Path(__file__).parents[1] / "golden" / "starts"
VERSIONS = ("4.3.1", "4.4.0", "4.8.0", "4.9.7", "5.3.3", "5.5.0")
_SEEN = "seen.json"


def record(version: str, directory: Path) -> dict[str, list[str]]:
    """Make one, unless a start differs from what was foretold: then returns what differs."""
    bench = Bench(version, directory)
    try:
        tried = started(bench, prepared(bench, [*whole(), *odd()]))
        if wrong := otherwise(tried):
            return wrong
        facts = {case.name: _plain(case.seen) for case in tried}
        data = json.dumps(facts, separators=(",", ":")).encode()
        DIRECTORY.mkdir(exist_ok=True)
        with tarfile.open(DIRECTORY / f"{version}.tar.xz", "w:xz", preset=9) as archive:
            for root in (bench.stopped, bench.killed):
                archive.add(root, root.name, filter=_kept)
            entry = tarfile.TarInfo(_SEEN)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    finally:
        bench.close()
    return {}


def replayed(version: str, directory: Path) -> tuple[int, dict[str, list[str]]]:
    """As :func:`tests.compat.starts.compared`, by the starts that were recorded."""
    with tarfile.open(DIRECTORY / f"{version}.tar.xz") as archive:
        archive.extractall(directory, filter="fully_trusted")
    facts = json.loads((directory / _SEEN).read_text(encoding="utf-8"))
    tried = prepared(Stores(version, directory, CONFIG), [*whole(), *odd()])
    for case in tried:
        case.seen = _seen(facts.pop(case.name))
    assert not facts, f"recorded, and not foretold: {', '.join(facts)}"
    return len(tried), otherwise(tried)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name.partition("/")[2] == names.ROCKSDB_STORE:
        return None  # nothing of the store's is in it, and the name of its host
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _plain(seen: Seen) -> dict[str, object]:
    if not seen.starts:
        return {"starts": False}
    return {
        "starts": True,
        "log": seen.log,
        "segments": seen.segments,
        "queues": _by_text(seen.queues),
        "files": _by_text(seen.files),
        # As hex, so that units which are alike look alike to xz.
        "units": _by_text({queue: units.hex() for queue, units in seen.units.items()}),
        "index": [[name, astuple(header)] for name, header in seen.index],
        "checkpoint": astuple(seen.checkpoint),
        "ext": _by_text(seen.ext),
    }


def _seen(facts: dict[str, Any]) -> Seen:
    if not facts["starts"]:
        return Seen(starts=False)
    return Seen(
        starts=True,
        log=(facts["log"][0], facts["log"][1]),
        segments=facts["segments"],
        queues={queue: (low, high) for queue, (low, high) in _by_queue(facts["queues"])},
        files=dict(_by_queue(facts["files"])),
        units={queue: bytes.fromhex(units) for queue, units in _by_queue(facts["units"])},
        index=[(name, IndexHeader(*header)) for name, header in facts["index"]],
        checkpoint=StoreCheckpoint(*facts["checkpoint"]),
        ext={queue: (low, high) for queue, (low, high) in _by_queue(facts["ext"])},
    )


def _by_text(found: Mapping[tuple[str, int], object]) -> dict[str, object]:
    return {f"{topic}/{queue_id}": one for (topic, queue_id), one in found.items()}


def _by_queue(found: dict[str, Any]) -> list[tuple[tuple[str, int], Any]]:
    return [((queue.rpartition("/")[0], int(queue.rpartition("/")[2])), one) for queue, one in found.items()]


def main(versions: Sequence[str]) -> int:
    """Record these releases, or all."""
    failed = 0
    for version in versions or VERSIONS:
        with tempfile.TemporaryDirectory() as directory:
            wrong = record(version, Path(directory))
        failed += bool(wrong)
        size = "" if wrong else f"{(DIRECTORY / f'{version}.tar.xz').stat().st_size:,} bytes"
        print(f"{version}: {size or f'not recorded, {len(wrong)} starts differ from what was foretold'}")
        for name, lines in wrong.items():
            print("\n    ".join([name, *lines]))
    print(f"starts of {len(versions or VERSIONS)} releases, of which {failed} were foretold otherwise")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
