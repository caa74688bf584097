"""What works where reput was installed without Spark, and what a command says that needs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from reput.newer_python import tomllib
from reput.rocksdb.reader import PACKAGE
from reput.unforeseen import _OF_SPARK
from tests.golden.store import GoldenStore
from tests.rebuilds import Outcome, broker_conf, environment, give_settings, golden, tree

ROOT = Path(__file__).parents[2]
#: What Python loads before anything else: the packages of the extra aren't there.
_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""

#: The library on processes of this host: a rebuild, and whether its result is sound.
_HERE = """
import sys
from pathlib import Path
from reput.job import RebuildOptions, rebuild
from reput.replay import runner
from reput.verify.plan import VerifyOptions
from reput.verify.run import verify

runner._SMALL = -1
root, conf, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rebuild(RebuildOptions(root, broker_conf=conf, rocketmq_version=version), None)
report = verify(VerifyOptions(root, broker_conf=conf, rocketmq_version=version), None)
print(report.findings, report.units > 0, sorted({{*sys.modules}} & {names}))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    made = golden("5.3.3-restart", tmp_path_factory.mktemp("light"))
    give_settings(made)
    return made


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("without")
    (directory / "sitecustomize.py").write_text(_WITHOUT.format(names=set(_OF_SPARK)))
    return directory


def light(without: Path, *words: str, program: Sequence[str] = ("-m", "reput.cli")) -> Outcome:
    """``reput``, or another program, on a host that has neither Spark nor Java."""
    env = environment(PATH="/nowhere", JAVA_HOME=None)
    env["PYTHONPATH"] = f"{without}:{env['PYTHONPATH']}"
    command = [sys.executable, *program, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "check STORE",
        "check STORE --at-once 1",
        "mend STORE",
        "stats STORE --topics",
        "stats STORE",
        "query STORE --offset 0 --bodies",
        "dump commitlog STORE --limit 1 --bodies",
        "dump consumequeue STORE --limit 1",
        "dump index STORE --limit 1",
        "dump checkpoint STORE",
        "report STORE --json",
        "doctor STORE",
        "rebuild STORE --out OUT --dry-run",
    ],
)
def test_what_looks_at_a_store_works(without: Path, store: GoldenStore, tmp_path: Path, words: str) -> None:
    done = light(without, *_filled(words, store, tmp_path))
    assert (done.code, "Spark" in done.stderr) == (0, False), done.stderr
    assert done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "rebuild STORE --out OUT",
        "rebuild STORE --out-root OUT",
        "check STORE --master local[1]",
        "check STORE --at-once 1 --master local[1]",
        "tail STORE --out OUT",
        "catalog STORE --table OUT",
        "demo --dir OUT",
    ],
)
def test_what_needs_spark_says_so(without: Path, store: GoldenStore, tmp_path: Path, words: str) -> None:
    done = light(without, *_filled(words, store, tmp_path))
    assert done.code == 2
    (said,) = [line for line in done.stderr.splitlines() if "Spark" in line]
    assert said.startswith("reput: this needs Spark's packages, and reput was installed without them")
    assert "pip install '.[spark]'" in said
    assert not (tmp_path / "out").exists(), "nothing was begun"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["migrate STORE --to rocksdb --apply"])
def test_without_spark_nothing_is_begun_in_a_store(without: Path, tmp_path: Path, words: str) -> None:
    store = golden("5.3.3-restart", tmp_path)
    shutil.rmtree(store.root / "index")
    before = tree(store.root)
    done = light(without, *_filled(words, store, tmp_path))
    assert (done.code, "this needs Spark" in done.stderr) == (2, True), done.stderr
    assert tree(store.root) == before


@pytest.mark.slow
def test_a_store_is_rebuilt_in_place_and_verified_on_processes(without: Path, tmp_path: Path) -> None:
    store = golden("5.3.3-restart", tmp_path)
    before = tree(store.root)
    shutil.rmtree(store.root / "index")
    shutil.rmtree(store.root / "consumequeue")
    words = (str(store.root), str(broker_conf(store)), store.version)
    done = light(without, *words, program=("-c", _HERE.format(names=set(_OF_SPARK))))
    assert (done.code, done.stdout) == (0, "[] True []\n"), done.stderr
    after = tree(store.root)
    assert {name: after.get(name) for name in before if name.startswith("consumequeue")} == {
        name: found for name, found in before.items() if name.startswith("consumequeue")
    }


@pytest.mark.slow
def test_what_needs_rocksdb_says_so_and_nothing_else_does(
    store: GoldenStore, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    without = tmp_path_factory.mktemp("without-rocksdb")
    (without / "sitecustomize.py").write_text(_WITHOUT.format(names={PACKAGE}))
    assert light(without, *_filled("stats STORE", store, tmp_path)).code == 0
    in_rocksdb = golden("5.3.3-rocksdb-mixed", tmp_path)
    for words in ("query STORE --queue Orders:0 --at 0", "dump consumequeue STORE"):
        done = light(without, *_filled(words, in_rocksdb, tmp_path))
        assert done.code == 2
        assert "this needs RocksDB, and reput was installed without it" in done.stderr
        assert "pip install '.[rocksdb]'" in done.stderr


def _filled(words: str, store: GoldenStore, directory: Path) -> list[str]:
    names = {"STORE": str(store.root), "OUT": str(directory / "out")}
    found = [names.get(word, word) for word in words.split()]
    if "STORE" in words and not words.startswith("dump "):
        found += ["--broker-conf", str(broker_conf(store)), "--rocketmq-version", store.version]
    return found


def test_the_extra_has_what_the_error_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[=><\[]", one)[0] for one in project["optional-dependencies"]["spark"]}
    modules = {
        "delta-spark": "delta",
        "prometheus-client": "prometheus_client",
    }
    assert {modules.get(name, name) for name in named} | {"py4j"} == set(_OF_SPARK)


def test_the_lock_file_of_the_light_one_is_part_of_the_other() -> None:
    def versions(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text()
        return set(re.findall(r"^[a-z0-9_.-]+==\S+", text, re.MULTILINE))

    assert versions("light.txt") < versions("run.txt") <= versions("dev.txt")
    assert not any(one.startswith(("pyspark", "pyarrow", "pandas")) for one in versions("light.txt"))
