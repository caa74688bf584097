"""Over Spark Connect: sources, streams, conditions and a notebook work; what can't says so in a line."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from reput import demo
from reput.format import names
from tests.conftest import LIB
from tests.execute_notebooks import Kernel
from tests.spark.test_notebooks import _CHANGES, DIRECTORY, kept, words

pytestmark = pytest.mark.spark

Say = Callable[..., str]
_REFUSED = "over Spark Connect only sources, SQL and notebooks work"
_PORT = "print(spark.client._builder.endpoint, os.environ['SPARK_CONNECT_AUTHENTICATE_TOKEN'])"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo.unpack(tmp_path_factory.mktemp("connect") / "demo").root


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """A notebook's process whose sessions are Spark Connect's; the first one starts a server for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_REMOTE", "local[2]")
        patch.setenv("SPARK_TESTING", "1")  # any free port, not 15002
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")])))
        with Kernel() as kernel:
            yield kernel


@pytest.fixture
def say(kernel: Kernel, store: Path, tmp_path: Path) -> Say:
    """What code prints that has such a session, and the store."""
    head = (
        f"import os\nimport reput\nfrom reput.source import read\n"
        f"spark, store = reput.session('connect'), {str(store)!r}"
    )

    def run(*lines: str) -> str:
        cells = [new_code_cell(head), new_code_cell("\n".join(lines))]
        return "".join(words(kernel.run(new_notebook(cells=cells), tmp_path))[1])

    return run


def units_of(store: Path) -> set[int]:
    """The physicalOffsets that the bytes of the consume queues have."""
    unit = np.dtype([("at", ">i8"), ("size", ">i4"), ("tags", ">i8")])
    files = sorted(path for path in (store / names.CONSUME_QUEUE).rglob("*") if path.is_file())
    found = np.concatenate([np.fromfile(path, unit) for path in files])
    return set(found["at"][found["size"] > 0].tolist())


def entries_of(store: Path) -> int:
    """How many entries the headers of the index files name."""
    heads = (path.read_bytes()[36:40] for path in (store / names.INDEX).iterdir())
    return sum(struct.unpack(">i", head)[0] - 1 for head in heads)


@pytest.mark.proof
def test_a_notebook_says_what_it_says_otherwise(kernel: Kernel) -> None:
    for now, before in zip(
        words(kernel.run(kept("offsets"), DIRECTORY)), words(kept("offsets")), strict=True
    ):
        said = [_CHANGES.sub("", text) for text in now]
        assert [text for text in said if "jdk.incubator" not in text] == [
            _CHANGES.sub("", text) for text in before
        ]


def test_each_source_is_found_by_its_name(say: Say, store: Path) -> None:
    said = say(
        "print(type(spark).__module__)",
        "for name in ('commitlog', 'consumequeue', 'index'):",
        "    table = spark.read.format(f'rocketmq-{name}').load(store)",
        "    print(table.selectExpr('count(*)', 'sum(physicalOffset)').first())",
    ).splitlines()
    assert said[0] == "pyspark.sql.connect.session"
    units = units_of(store)
    assert said[1].endswith(f"count(1)={len(units)}, sum(physicalOffset)={sum(units)})")
    assert said[2] == said[1]
    assert f"count(1)={entries_of(store)}," in said[3]


@pytest.mark.proof
def test_a_condition_reaches_the_source(say: Say, tmp_path: Path) -> None:
    said = say(
        f"report = '{tmp_path / 'report'}'",
        "from reput.source.ranges import total",
        "wanted = read(spark, store, ['topic', 'body'], [('topic', '=', 'Orders')], readReport=report)",
        "all = spark.read.format('rocketmq-commitlog').load(store)",
        "found = wanted.groupBy('topic').count().toPandas().values.tolist()",
        "orders = all.where(\"topic = 'Orders'\").count()",
        "print(found == [['Orders', orders]], total(report).rows == orders)",
    )
    assert said == "True True\n"


@pytest.mark.proof
def test_a_stream_reads_all_that_is_there(say: Say, store: Path) -> None:
    said = say(
        "stream = spark.readStream.format('rocketmq-commitlog').option('maxBytesPerTrigger', '2m')",
        "places = stream.load(store).select('physicalOffset').writeStream.format('memory')",
        "query = places.queryName('followed').trigger(availableNow=True).start()",
        "query.awaitTermination()",
        "print(len(query.recentProgress) > 1)",
        "print(spark.sql('SELECT count(DISTINCT physicalOffset) FROM followed').first()[0])",
    )
    assert said == f"True\n{len(units_of(store))}\n"


def test_a_refusal_is_one_sentence(say: Say, tmp_path: Path) -> None:
    said = say(
        "spark.conf.set('spark.sql.pyspark.jvmStacktrace.enabled', False)  # tests of Spark's have it",
        "try:",
        "    spark.read.format('rocketmq-commitlog').load('/nowhere').count()",
        "except Exception as error:",
        "    print(error)",
    )
    assert "/nowhere/commitlog: the commit log can't be read; expected a directory of segments" in said
    assert "stacktrace" not in said


@pytest.mark.parametrize(
    "call", ["rebuild(store, 'out', spark=spark)", "open(store).check(spark)", "mend(store, spark=spark)"]
)
def test_jobs_refuse_such_a_session(say: Say, tmp_path: Path, call: str) -> None:
    with pytest.raises(CellExecutionError, match=f"SparkError.*{_REFUSED}.*found SPARK_REMOTE=local"):
        say(f"reput.{call}")
    assert not (tmp_path / "out").exists()


@pytest.mark.proof
def test_a_server_elsewhere(say: Say, store: Path, tmp_path: Path) -> None:
    endpoint, token = say(_PORT).split()
    code = "import reput, sys; from reput.source import read; spark = reput.session('more')\n"
    code += "print(read(spark, sys.argv[1], ['topic']).count())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(store)],
        env={
            **os.environ,
            "PYTHONPATH": str(LIB),
            "SPARK_REMOTE": f"sc://{endpoint}",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (done.stdout, done.stderr) == (f"{len(units_of(store))}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ["rebuild", "--out", "out"],
        ["tail", "--out", "out"],
        ["catalog", "--table", "out", "--master", "local"],
        ["check", "--master", "local"],
    ],
)
def test_commands_refuse_it(words: list[str], store: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reput.cli", words[0], str(store), *words[1:]],
        env={**os.environ, "PYTHONPATH": str(LIB), "SPARK_REMOTE": "sc://nowhere"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert _REFUSED in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_it_lacks_is_named(tmp_path: Path) -> None:
    script = tmp_path / "without.py"
    script.write_text("import sys\nsys.modules['grpc'] = None\nimport reput\nreput.session('none')\n")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(LIB), "SPARK_REMOTE": "sc://nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert "SparkError: Spark Connect can't be used here; expected grpcio" in done.stderr
    assert "pip install '.[spark,connect]'" in done.stderr
