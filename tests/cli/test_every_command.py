"""What every command does: with no options, wrong words, no log, a pipe that closes, 60 columns, no zone.

Each table below names every command, or says why one is left out: a new one has to be put in.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import app as cli
from reput.cli import output
from reput.cli.arguments import Commands
from reput.dump.digest import write
from reput.export.write import ExportOptions, export
from reput.format import names
from reput.store.swap import Swap
from tests import rocksdbs
from tests.cli.test_help import COMMANDS
from tests.cli.test_piped import closed_pipe, ended
from tests.cli.test_words import TIMED
from tests.golden.store import GoldenStore
from tests.local import open_store, rebuild_locally
from tests.rebuilds import Command, broker_conf, golden, run, tree, without_root_powers


def all_commands() -> list[str]:
    """Their names, those of a group behind the group's."""
    from typer.main import get_command

    root = get_command(cli.app)
    assert isinstance(root, Commands)
    found = []
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found += [f"{name} {one}" for one in inner] if inner else [name]
    return found


ALL = all_commands()

#: Words with which each command does what it is for; ``CONF``: the store's broker.conf.
RUNS = {
    "check": "STORE CONF",
    "doctor": "STORE CONF --no-spark",
    "dump checkpoint": "STORE",
    "dump commitlog": "STORE CONF --limit 20",
    "dump config": "STORE",
    "dump digest": "STORE CONF --against DIGEST",
    "dump consumequeue": "STORE --limit 20",
    "dump index": "STORE CONF --limit 20",
    "export": "STORE CONF -o NEW",
    "lag": "STORE CONF --by queue",
    "migrate": "STORE CONF --to rocksdb --plan",
    "query": "STORE CONF --offset 0 --bodies",
    "mend": "STORE CONF",
    "report": "STORE CONF -o NEW",
    "resend": "EXPORT --dry-run",
    "stats": "STORE CONF",
    "tail": "--status OUTPUT",
    "undo": "STORE --dry-run",
}
#: The same of those that start Spark.
ON_SPARK = {
    "catalog": "STORE CONF --table NEW",
    "demo": "--dir NEW",
    "rebuild": "STORE CONF --out NEW",
}
#: A packed environment takes minutes (``test_packed.py``); a store elsewhere a server (``tests/remote``).
MADE_NEW = {"restore": "STORE --out NEW"}
NOT_RUN = {"pack", *MADE_NEW}


def test_every_command_is_run_here() -> None:
    assert RUNS.keys() | ON_SPARK.keys() | NOT_RUN == set(ALL)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return golden("5.3.3-restart", tmp_path)


Placed = Callable[[str], list[str]]


@pytest.fixture
def placed(store: GoldenStore, tmp_path: Path) -> Placed:
    """From a command's words to those about a store, and what was made of it."""
    (store.root / "config").mkdir(exist_ok=True)
    offsets = json.dumps({"offsetTable": {"Orders@readers": {"0": 3}}})
    (store.root / "config" / "consumerOffset.json").write_text(offsets)
    conf, digest, exported = broker_conf(store), tmp_path / "digest", tmp_path / "export.jsonl"

    def words(command: str) -> list[str]:
        template = {**RUNS, **ON_SPARK}[command]
        if "DIGEST" in template:
            write(store.root, digest, conf, store.version)
        if "EXPORT" in template:
            export(ExportOptions(store.root, exported, broker_conf=conf))
        if "OUTPUT" in template:
            rebuild_locally(open_store(store.root, version=store.version), tmp_path / "output", ledger=True)
        if command == "dump config":
            rocksdbs.settings(store.root, "separate", topics={"Orders": {"perm": 6}})
        if command == "undo":
            staging = store.root / names.REPUT / "staging"
            staging.mkdir(parents=True)
            shutil.copy(store.root / names.CHECKPOINT, staging)
            Swap(store.root, staging, [names.CHECKPOINT], "20261121T093000Z").run()
        places = {
            "STORE": [store.root], "NEW": [tmp_path / "new"], "DIGEST": [digest], "EXPORT": [exported],
            "OUTPUT": [tmp_path / "output"],
            "CONF": ["--broker-conf", conf, "--rocketmq-version", store.version],
        }  # fmt: skip
        given = [one for word in template.split() for one in places.get(word, [word])]
        return [*command.split(), *map(str, given)]

    return words


#: What is missing where that isn't an argument.
MISSING = {"pack": "Missing option '--out'", "tail": "expected STORE and --out DIR"}


@pytest.mark.parametrize("command", [one for one in ALL if one not in ("demo", "doctor")])
def test_without_options_it_says_what_is_missing(reput: Command, command: str) -> None:
    said = reput(*command.split())
    assert (said.code, said.stdout) == (2, "")
    assert MISSING.get(command, "Missing argument") in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("command", ALL)
def test_a_word_that_it_does_not_know(reput: Command, command: str) -> None:
    said = reput(*command.split(), "--nonsense")
    assert (said.code, said.stdout) == (2, "")
    assert "No such option" in said.stderr


@pytest.mark.parametrize("command", ALL)
def test_help_fits_60_columns(command: str) -> None:
    """All but the examples, which are to be copied."""
    leaf = COMMANDS[tuple(command.split())]
    shown = leaf.get_help(leaf.context_class(leaf, info_name=f"reput {command}", terminal_width=60))
    said, _, examples = shown.partition("\nExamples:\n")
    assert examples
    assert max(map(len, said.splitlines())) <= 60


#: A demo and an archive need no store. A table, and a resend, are refused for what they are about.
NO_STORE = {"demo", "pack"}


@pytest.mark.parametrize("command", sorted(set(ALL) - NO_STORE))
def test_what_is_not_there_is_named(reput: Command, tmp_path: Path, command: str) -> None:
    """One line that names it, and the same as JSON."""
    nowhere = tmp_path / "nowhere"
    template = {**RUNS, **ON_SPARK, **MADE_NEW}[command].replace(" CONF", "")
    places = {**dict.fromkeys(("STORE", "OUTPUT", "EXPORT", "DIGEST"), nowhere), "NEW": tmp_path / "new"}
    words = [str(places.get(word, word)) for word in template.split()]
    said = reput("-q", *command.split(), *words)
    if command == "doctor":
        assert (said.code, str(nowhere) in said.stdout) == (1, True), "it goes on to what it can check"
        return
    (line,) = said.stderr.splitlines()
    assert (said.code, said.stdout, line.startswith(f"reput: {nowhere}: ")) == (2, "", True)
    told = json.loads(reput(*command.split(), *words, "--json").stdout)
    assert (told["exit_code"], f"reput: {told['message']}") == (2, line)
    assert not (tmp_path / "new").exists()


#: Of a log, a record, a file or an output alone, too; and what isn't about one store.
ALONE = {
    "dump commitlog", "dump checkpoint", "dump config", "dump consumequeue", "dump digest", "dump index",
    "export", "doctor", "demo", "pack", "resend", "tail", "restore",
}  # fmt: skip


@pytest.mark.parametrize("command", sorted(set(ALL) - ALONE))
def test_the_log_itself_is_no_store(reput: Command, store: GoldenStore, tmp_path: Path, command: str) -> None:
    log, new = store.root / names.COMMIT_LOG, tmp_path / "new"
    template = {**RUNS, **ON_SPARK, **MADE_NEW}[command].replace(" CONF", "")
    words = [str({"STORE": log, "NEW": new}.get(word, word)) for word in template.split()]
    said = reput("-q", *command.split(), *words)
    assert (said.code, said.stdout, new.exists()) == (2, "", False)
    assert said.stderr.startswith(f"reput: {log}: this is a commit log, not a store; ")


#: How each command that reads the log ends where it isn't mounted, and what its first line says.
UNMOUNTED = {
    "check": (5, "can't be told"),
    "check --at-once 1": (5, "Checked 1 of 1 store"),
    "mend": (5, "can't be told"),
    "mend --apply": (5, "can't be told"),
    "report -o OUT": (5, "can't be told"),
    "rebuild --in-place --dry-run": (2, "commitlog"),
    "rebuild --out OUT --dry-run": (2, "commitlog"),
    "rebuild --in-place": (2, "commitlog"),
    "rebuild --out OUT": (2, "commitlog"),
    "rebuild --out-root OUT": (2, "Rebuilt 0 of 1 store"),
    "catalog --table OUT": (2, "commitlog"),
    "migrate --to rocksdb --plan": (2, "broker.conf"),
    "stats": (2, "commitlog"),
    "dump commitlog": (2, "commitlog"),
    "query --offset 0": (2, "commitlog"),
    "query --queue Orders:0 --at 0": (2, "commitlog"),
    "query --topic Orders --key k": (2, "commitlog"),
    "export -o OUT": (2, "commitlog"),
    "export --finding missing-unit -o OUT": (2, "commitlog"),
    "dump digest -o OUT": (2, "commitlog"),
    "lag": (2, "commitlog"),
    "stats --topics": (2, "commitlog"),
    "doctor --no-spark": (1, "1 wrong"),
}
#: What isn't about the log of a store; and a tail, which waits for a log that isn't there yet.
WITHOUT_LOG = {
    "dump checkpoint", "dump config", "dump consumequeue", "dump index", "undo", "resend", "demo", "pack",
    "restore", "tail",
}  # fmt: skip


def test_every_command_that_reads_a_log_is_given_none() -> None:
    given = {max((one for one in ALL if words.startswith(one)), key=len) for words in UNMOUNTED}
    assert given == set(ALL) - WITHOUT_LOG


@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "empty"])
@pytest.mark.parametrize("command", UNMOUNTED)
def test_a_log_that_is_not_mounted(
    reput: Command, store: GoldenStore, tmp_path: Path, command: str, is_there: bool
) -> None:
    (store.root / names.COMMIT_LOG).rename(tmp_path / "elsewhere")
    (store.root / names.CONFIG).mkdir(exist_ok=True)
    (store.root / names.CONFIG / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:3}}}')
    if is_there:
        (store.root / names.COMMIT_LOG).mkdir()
    before = tree(store.root, names.LOCK)
    code, first = UNMOUNTED[command]
    out = tmp_path / "out"
    name, *more = [str(out) if word == "OUT" else word for word in command.split()]
    group = [more.pop(0)] if name == "dump" else []
    said = reput(name, *group, store.root, *more)
    assert said.code == code, said
    assert first in (said.stdout or said.stderr).splitlines()[0]
    assert tree(store.root, names.LOCK) == before
    assert out.exists() == (name == "report"), "only a page is made of it"
    document = json.loads(reput(name, *group, store.root, *more, "--json").stdout)
    assert document["exit_code"] == code


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", RUNS)
def test_a_pipe_that_closes(
    placed: Placed,
    command: str,
    form: list[str],
    tmp_path: Path,
    reput: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [*placed(command), *form]
    whole = reput(*words)
    new = tmp_path / "new"
    new.unlink(missing_ok=True)
    assert whole.code in (0, 1), whole.stderr
    assert whole.stdout
    assert ended(monkeypatch, closed_pipe(), "-q", *words) == whole.code
    assert capfd.readouterr() == ("", "")


#: A row of a table has more columns than a line with a name and what it says.
_ROW = re.compile(r"^ {2,}\S+(?: \S+)*(?: {2,}\S+(?: \S+)*){3,}$")
#: Each line is a record, not the row of a table: for grep and cut.
_RECORDS = {"dump commitlog", "dump config", "dump consumequeue", "dump index", "dump checkpoint"}


@pytest.mark.parametrize("command", sorted(set(RUNS) - _RECORDS))
def test_tables_fit_60_columns(
    placed: Placed, command: str, reput: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_columns", lambda: 60)
    said = reput(*placed(command))
    assert [line for line in said.stdout.splitlines() if _ROW.match(line) and len(line) > 60] == []


_TIME = re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d")


@pytest.mark.parametrize("command", sorted(set(RUNS) - set(TIMED)))
def test_what_takes_no_zone_prints_no_time(placed: Placed, command: str, reput: Command) -> None:
    assert _TIME.search(reput(*placed(command)).stdout) is None


@pytest.mark.spark
@pytest.mark.parametrize("command", sorted(ON_SPARK))
def test_the_same_of_those_that_start_spark(
    placed: Placed,
    command: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reput = Command(monkeypatch, lambda: request.getfixturevalue("spark"))
    monkeypatch.setattr(output, "_columns", lambda: 60)
    words = placed(command)
    whole = reput(*words)
    assert whole.code == 0, whole.stderr
    assert _TIME.search(whole.stdout) is None
    assert [line for line in whole.stdout.splitlines() if _ROW.match(line) and len(line) > 60] == []
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    capfd.readouterr()
    assert ended(monkeypatch, closed_pipe(), "-q", *words) == 0
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "mend", "report", "query", "lag", "stats"])
def test_a_store_that_nobody_may_write_to(placed: Placed, command: str, store: GoldenStore) -> None:
    words = placed(command)
    places = [store.root, *(path for path in store.root.rglob("*") if path.is_dir())]
    for path in places:
        path.chmod(0o555)
    try:
        said = run(*words, preexec_fn=without_root_powers)
    finally:
        for path in places:
            path.chmod(0o755)
    assert said.code == 0, said
    assert "Permission denied" not in said.stdout + said.stderr
