"""The ledger through delta-spark, by the code that docs/catalog.md shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.output.ledger import SCHEMA
from reput.spark import sessions as reput_spark
from reput.spark.jars import delta_jars
from tests.golden.store import unpack
from tests.local import Store, rebuild_locally
from tests.rebuilds import environment

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("has_delta")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "catalog.md").read_text(encoding="utf-8").partition("## The ledger")[2]
COLUMNS = (ROOT / "docs" / "data" / "columns.md").read_text(encoding="utf-8").partition("## Ledger")[2]

# Asked by Spark SQL beside what the page shows; printed as JSON behind it.
_QUESTIONS = """
import json
facts = spark.sql("SELECT count(*), sum(units), sum(messages), sum(index_count - 1) FROM ledger").first()
kinds = spark.sql("SELECT kind, count(*) FROM ledger GROUP BY kind").collect()
types = {name: kind for name, kind in spark.table("ledger").dtypes}
named = spark.sql("SELECT count(*) FROM delta.`/data/rebuilt/ledger` WHERE kind = 'batch'")
print(json.dumps([list(facts), dict(map(tuple, kinds)), types, named.first()[0]]))
"""


def test_the_page_runs(tmp_path: Path) -> None:
    """In a process of its own: the session of the other tests has no Delta, and can't get it any more."""
    golden, out = unpack("5.3.3-crash", tmp_path / "store"), tmp_path / "an output"
    settings = StoreSettings.load(golden.root, golden.write_broker_conf(), golden.version)
    state = rebuild_locally(Store(golden.root, settings), out, ends=[60_000, 120_000], ledger=True)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    code = "\n".join([*blocks, _QUESTIONS]).replace("/data/rebuilt", str(out))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    shown, _, last = ran.stdout.strip().rpartition("\n")
    assert "|   topic|queue_id|units|next_offset|" in re.sub(" +topic", "   topic", shown), shown
    (rows, units, messages, entries), kinds, types, named = json.loads(last)
    assert units == sum(queue.next - queue.first for queue in state.queues.values())
    assert messages == state.messages
    assert rows == sum(kinds.values())
    assert kinds["batch"] == named == state.batches == 3
    assert entries >= sum(header.index_count - 1 for _, header in state.index)

    columns = re.findall(r"^\| `(\w+)` \| (\w+) \|", COLUMNS.partition("\n## ")[0], re.MULTILINE)
    assert types == dict(columns)
    assert [name for name, _ in columns] == SCHEMA.names


def test_spark_submit_gets_the_same_settings() -> None:
    lines = (ROOT / "conf" / "delta.conf").read_text(encoding="utf-8").splitlines()
    assert dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#")) == (
        reput_spark._DELTA
    )


def test_the_jar_is_that_of_the_package() -> None:
    spark = ".".join(version("pyspark").split(".")[:2])
    assert delta_jars(fetch=False)[0].name == f"delta-spark_{spark}_2.13-{version('delta-spark')}.jar"
