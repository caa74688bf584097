"""What is no file in the place of a store's files: no command waits for it, and what it is, is said."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from reput.config.settings import StoreSettings
from reput.errors import OutputError, ReputError
from reput.format import names
from reput.log.segments import discover
from reput.output.journal import Journal
from reput.store.lock import OutputLock, StoreLock
from reput.verify.plan import VerifyOptions, prepare
from tests.golden.store import GoldenStore, unpack
from tests.levels import sampled, tried
from tests.rebuilds import Command

#: Seconds after which a command is taken for one that waits.
_LATEST = 60

#: What may be in a file's place, and the words for it.
KINDS = {
    "fifo": ("a FIFO",),
    "socket": ("a socket",),
    "device": ("a device",),
    "directory": ("a directory",),
    "loop": ("Too many levels of symbolic links", "a link that leads nowhere"),
}

#: Files of a store by a pattern, and whether ``check`` says what is there.
PLACES = {
    "commitlog/*0": True,
    "consumequeue/*/0/*0": True,
    "consumequeue_ext/*/0/*0": True,
    "index/2*": True,
    "checkpoint": True,
    "lock": True,
    "abort": False,
    "config/topics.json": False,
    "config/topics.json.bak": False,
    "config/consumerOffset.json": False,
    "config/subscriptionGroup.json": False,
    "config/delayOffset.json": False,
    "config/consumerFilter.json": False,
    "config/consumerFilter.json.bak": False,
    ".reput/journal": False,
    ".reput/lock": False,
    ".reput/run.json": False,
    "broker.conf": False,
}

#: Tried with each kind; the others with a FIFO alone.
COMMANDS = ("check", "mend")
OTHERS = (
    "check --quick",
    "lag",
    "query --offset 0",
    "query --queue TOPIC:0:0",
    "query --topic TOPIC --key KEY",
    "stats --topics",
    "report -o NEW",
    "doctor --no-spark",
    "dump commitlog --limit 1",
    "dump consumequeue --limit 1",
    "dump index --limit 1",
    "dump checkpoint",
    "dump digest --out NEW",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    found = unpack("5.3.3-queue-ext", tmp_path_factory.mktemp("store") / "store")
    found.write_broker_conf()
    found.write_topics_json()
    (found.root / names.CONFIG / "consumerOffset.json").write_text('{"offsetTable":{}}')
    return found


def put(kind: str, path: Path) -> None:
    """Something that is no file."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        with socket.socket(socket.AF_UNIX) as one:
            there = Path.cwd()
            os.chdir(path.parent)  # a socket's path has at most 107 bytes
            try:
                one.bind(path.name)
            finally:
                os.chdir(there)


@contextmanager
def in_place_of(kind: str, path: Path) -> Iterator[None]:
    aside = path.with_name(f"{path.name}.aside") if path.parent.name == "config" else None
    aside = aside or path.parents[1] / "aside"
    path.parent.mkdir(exist_ok=True)
    was = path.exists()
    if was:
        path.rename(aside)
    put(kind, path)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        if was:
            aside.rename(path)


@contextmanager
def watched() -> Iterator[None]:
    def waits(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(_LATEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", tried("fifo", more=[kind for kind in KINDS if kind != "fifo"]))
@pytest.mark.parametrize("place", sampled([*PLACES]))
def test_no_command_waits(reput: Command, store: GoldenStore, place: str, kind: str, tmp_path: Path) -> None:
    found = sorted(store.root.glob(place))
    path = found[0] if found else store.root / place
    topic = next((store.root / names.CONSUME_QUEUE).iterdir()).name
    wrong: list[str] = []
    told: dict[str, str] = {}
    with in_place_of(kind, path):
        for command in (*COMMANDS, *(OTHERS if kind == "fifo" else ())):
            words = command.replace("TOPIC", topic).replace("NEW", str(tmp_path / command.split()[0])).split()
            at = 2 if words[0] == "dump" else 1
            has_conf = words[0] != "dump" or words[1] in ("commitlog", "index", "digest")
            conf = ["-c", str(store.root / "broker.conf")] if has_conf else []
            with watched():
                outcome = reput(*words[:at], str(store.root), *words[at:], *conf)
            said = told[command] = outcome.stdout + outcome.stderr
            if outcome.code not in (0, 1, 2, 3, 4, 5) or "Traceback" in said or "unforeseen" in said:
                wrong.append(f"{command}: {outcome.code} {said[-600:]}")
            if outcome.code == 2 and path.name not in said.replace("\n", ""):
                wrong.append(f"{command}: {said[-600:]}")
        if PLACES[place] and not any(one in told["check"] for one in KINDS[kind]):
            wrong.append(f"check says nothing of it: {told['check']}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [place for place, is_said in PLACES.items() if is_said])
def test_verify_does_not_wait_for_what_it_plans(store: GoldenStore, place: str, kind: str) -> None:
    found = sorted(store.root.glob(place))
    path = found[0] if found else store.root / place
    with in_place_of(kind, path), watched():
        with suppress(ReputError):
            prepare(VerifyOptions(store.root, broker_conf=store.root / "broker.conf"))
        settings = StoreSettings.load(store.root, store.root / "broker.conf", None)
        log = discover(settings)
        said = [finding for finding in log.findings if finding.kind == "not-a-file"]
        assert [one.path for one in said] == ([str(path)] if place.startswith("commitlog") else [])


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_for_a_lock_or_a_journal(kind: str, tmp_path: Path) -> None:
    (tmp_path / ".reput").mkdir()
    for lock, name in ((StoreLock(tmp_path), "lock"), (OutputLock(tmp_path), ".reput/lock")):
        with (
            in_place_of(kind, tmp_path / name),
            watched(),
            pytest.raises(OutputError, match=r"open the file for writing|a symbolic link") as refused,
        ):
            lock.acquire()
        assert refused.value.path == str(tmp_path / name)
    journal = tmp_path / ".reput" / names.JOURNAL
    with in_place_of(kind, journal), watched(), pytest.raises(ReputError, match="journal can't be read"):
        Journal.open(journal)
