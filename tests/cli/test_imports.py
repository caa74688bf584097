"""What a command loads: help and errors of usage nothing that computes, and Spark only what runs on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from reput.derived.index import MOST_OFFSETS
from tests.cli.test_help import COMMANDS
from tests.rebuilds import broker_conf, environment, golden

SPARK = {"pandas", "pyarrow", "pyspark"}
HEAVY = {*SPARK, "numba", "numpy"}

_PROGRAM = """
import contextlib, io, json, sys
from reput.cli import app

def run(words):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            app.app(words)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))

for words in json.loads(sys.argv[1]):
    run(words)
"""


def test_what_is_loaded(tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    root = str(store.root)
    more = ["--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version]
    offsets = tmp_path / "consumerOffset.json"
    offsets.write_text("{}")
    cases: list[tuple[list[str], int | None, set[str]]] = [
        (["--help"], 0, HEAVY),
        (["--version"], 0, HEAVY),
        (["no-such-command"], 2, HEAVY),
        (["mend", "--help"], 0, HEAVY),
        (["stats", root, "--by", "x"], 2, HEAVY),
        (["check"], 2, HEAVY),
        (["tail", "--status", str(tmp_path / "gone")], 2, SPARK),
        (["lag", root, "--offsets", str(offsets), *more], 0, {*SPARK, "numba"}),
        (["check", root, *more], 0, SPARK),
        (["mend", root, *more], 0, SPARK),
        (["stats", root, *more], 0, SPARK),
        (["report", root, "--json", *more], 0, SPARK),
        (["query", root, "--offset", "0", *more], 0, SPARK),
        (["dump", "commitlog", root], 0, SPARK),
        (["dump", "consumequeue", root], 0, SPARK),
        (["doctor", root, "--no-spark", *more], None, SPARK),
    ]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([words for words, _, _ in cases])],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    for (words, code, heavy), line in zip(cases, done.stdout.splitlines(), strict=True):
        found, modules = json.loads(line)
        assert code in (found, None), words
        assert not heavy & set(modules), words


def test_what_help_says_without_loading_it() -> None:
    """A number that stands in the code that computes."""
    (option,) = [each for each in COMMANDS["query",].params if each.name == "limit"]
    assert f"default: {MOST_OFFSETS}, a broker's maximum" in option.help
