"""Commands that reput prints to be run next: each can be given, and asks about what was asked about."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer.main

from reput.cli import app as cli
from reput.config.settings import StoreSettings
from reput.derived.index import IndexReader
from reput.diagnosis.check import compare
from reput.errors import ReputError, StoreInUseError
from reput.format import names
from reput.recovery.mend_log import LogCopies
from reput.store.lock import OutputLock
from reput.store.ownership import Owner
from reput.verify.plan import VerifyOptions
from reput.words import next_command
from tests.golden.store import GoldenStore
from tests.rebuilds import Command, broker_conf, golden, overwrite, record_starts

#: Between backticks, or a line of its own.
_COMMAND = re.compile(r"`(reput [^`]*)`|^(?:  next +)?(reput .*)$", re.MULTILINE)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    """A store whose path a shell wouldn't take as it is."""
    return golden("5.3.3-restart", tmp_path / 'it\'s "the" store')


def options(store: GoldenStore) -> list[str | Path]:
    return [store.root, "--broker-conf", broker_conf(store), "--rocketmq-version", store.version]


def taken_apart(line: str) -> tuple[str, dict[str, Any]]:
    """A command line, by its own parser: its name, a group's before it, and what was given."""
    program, *words = shlex.split(line)
    assert program == "reput"
    group: Any = typer.main.get_command(cli.app)
    with group.make_context(program, list(words), resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, words)
        if hasattr(command, "commands"):
            inner, command, rest = command.resolve_command(context, rest)
            name = f"{name} {inner}"
        return name, command.make_context(name, rest, parent=context).params


def parsed(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The commands in what was printed, each taken apart by the command line's own parser."""
    return [taken_apart(one or other) for one, other in _COMMAND.findall(text)]


def about(store: GoldenStore, text: str, root: Path | None = None) -> list[str]:
    """The names of the commands in a text, all of which ask about this store with its settings."""
    commands = parsed(text)
    for name, given in commands:
        place = given["stores"][0] if "stores" in given else given["store"]
        assert Path(place) == (root or store.root)
        if name != "undo":
            assert Path(given["broker_conf"]) == broker_conf(store)
            assert given["rocketmq_version"] == store.version
    return [name for name, _ in commands]


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_check(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.INDEX)
    for asked in ([], ["--quick"]):
        assert about(store, reput("check", *options(store), *asked).stdout) == ["mend"]


def test_what_mend_would_do(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.INDEX)
    assert about(store, reput("mend", *options(store)).stdout) == ["mend", "undo"]


def test_what_mend_did(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(store.root / names.INDEX)
    done = reput("mend", *options(store), "--apply")
    assert done.code == 0
    assert "undo" in [name for name, _ in parsed(done.stdout)]


def test_a_repair_of_a_log_elsewhere(store: GoldenStore) -> None:
    settings = StoreSettings.load(store.root, broker_conf(store), store.version)
    copies = LogCopies(settings, store.root / "staged", 1, Owner.default())
    with pytest.raises(ReputError) as refused:
        copies.name(store.root.parent / "log" / names.offset_name(0))
    assert about(store, str(refused.value)) == ["rebuild"]


def test_what_a_start_would_cut_off_is_mended_not_saved(reput: Command, store: GoldenStore) -> None:
    size = int(str(store.config["mappedFileSizeCommitLog"]))
    overwrite(store.root, size, record_starts(store.root, size)[5], b"\xff" * 30)
    (store.root / names.ABORT).touch()
    commands = parsed(reput("check", *options(store)).stdout)
    assert [(name, given["replica"] is not None) for name, given in commands] == [
        ("mend", False),
        ("mend", True),
    ]


@pytest.mark.slow
def test_two_stores(store: GoldenStore, tmp_path: Path) -> None:
    other = tmp_path / "other one"
    shutil.copytree(store.root, other)
    shutil.rmtree(other / names.INDEX)
    asked = VerifyOptions(store.root, other, broker_conf(store), store.version)
    (step,) = compare(asked).next_steps
    first, second = step.split(" and ")
    assert about(store, first) == about(store, second, other) == ["check"]


def test_a_report(reput: Command, store: GoldenStore) -> None:
    shutil.rmtree(min((store.root / names.CONSUME_QUEUE).iterdir()))
    found = reput("check", *options(store), "--json").stdout
    shown = reput("report", *options(store), "--json").stdout
    assert json.loads(shown)["next_steps"] == json.loads(found)["next_steps"]
    written = reput("report", *options(store), "-o", store.root.parent / "x.html").stdout
    assert about(store, written) == ["mend"]


def test_an_output_in_use(store: GoldenStore) -> None:
    out = store.root.parent / "out"
    with OutputLock(out), pytest.raises(StoreInUseError) as refused:
        OutputLock(out).acquire()
    ((name, given),) = parsed(str(refused.value))
    assert name == "tail"
    assert out in [Path(value) for value in given.values() if isinstance(value, str | Path)]


def test_a_chain_without_an_end(store: GoldenStore) -> None:
    settings = StoreSettings.load(store.root, broker_conf(store), store.version)
    assert about(store, f"`{IndexReader(settings)._check}`") == ["check"]


def test_a_dump_of_files_of_another_sort(reput: Command, store: GoldenStore) -> None:
    conf = ["--broker-conf", broker_conf(store)]
    queue = min((store.root / names.CONSUME_QUEUE).iterdir())
    for asked, path, sort in (
        ("commitlog", queue, "consumequeue"),
        ("commitlog", store.root / names.INDEX, "index"),
        ("consumequeue", store.root / names.COMMIT_LOG, "commitlog"),
        ("index", store.root / names.CHECKPOINT, "checkpoint"),
    ):
        refused = reput("dump", asked, path, *(conf if asked != "consumequeue" else ()))
        ((name, given),) = parsed(refused.stderr)
        assert (refused.code, name, Path(given["path"])) == (2, f"dump {sort}", path)
        if sort == "index":
            assert Path(given["broker_conf"]) == broker_conf(store)
        again = [str(given["path"]), *(conf if sort == "index" else ()), "--json"]
        assert reput(*name.split(), *again).code == 0


def test_a_dump_of_what_units_lead_to(reput: Command, store: GoldenStore) -> None:
    topic = min((store.root / names.CONSUME_QUEUE).iterdir())
    queue = min(topic.iterdir())
    file = store.root / names.CONSUME_QUEUE_EXT / topic.name / queue.name / names.offset_name(0)
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(100))
    for asked in ("commitlog", "consumequeue"):
        ((name, given),) = parsed(reput("dump", asked, file).stderr)
        assert (name, Path(given["path"])) == ("dump consumequeue", queue)
    shutil.rmtree(queue)
    said = reput("dump", "consumequeue", file).stderr
    assert parsed(said) == []
    assert "A dump of their store's consumequeue/ shows each with the unit that leads there" in said


def test_a_dump_of_a_queue_that_is_not_there(reput: Command, store: GoldenStore) -> None:
    asked = ["--queue", "it's lost:3", "--queue", "-t"]
    elsewhere = store.root.parent / "elsewhere"
    shutil.copytree(store.root / names.CONSUME_QUEUE, elsewhere)
    for path in (store.root, min((store.root / names.CONSUME_QUEUE).iterdir())):
        ((name, given),) = parsed(reput("dump", "consumequeue", path, *asked).stderr)
        assert (name, Path(given["path"])) == ("dump commitlog", store.root)
        assert given["queue"] == asked[1::2]
    said = reput("dump", "consumequeue", elsewhere, *asked).stderr
    assert parsed(said) == []
    assert "A dump of the commit log finds messages that no queue leads to" in said


def test_a_dump_of_a_checkpoint_that_is_too_short(reput: Command, store: GoldenStore) -> None:
    file = store.root / names.CHECKPOINT
    file.write_bytes(b"short")
    copy = store.root.parent / names.CHECKPOINT
    shutil.copy(file, copy)
    for path in (store.root, file):
        ((name, given),) = parsed(reput("dump", "checkpoint", path).stderr)
        assert (name, Path(given["stores"][0])) == ("check", store.root)
    said = reput("dump", "checkpoint", copy).stderr
    assert parsed(said) == []
    assert "A check of its store says what a broker makes of it when it starts" in said


def test_a_path_is_never_an_option() -> None:
    """Neither the store's nor that of broker.conf, nor a queue's topic."""
    text = next_command("rebuild", "-s", "--in-place", "--queue", "-t:0", broker_conf="--json")
    ((_, given),) = parsed(text)
    assert (Path(given["stores"][0]), given["broker_conf"], given["queue"]) == (
        Path("-s"),
        Path("--json"),
        ["-t:0"],
    )
    assert not given["as_json"]
