"""The calculator of docs/sizing.md: its arithmetic, and that the page shows what it prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reput.cluster.plan import MEASURED, Hosts, app, plan
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, SLOT_LENGTH

PAGE = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text(encoding="utf-8")
_SHOWN = re.compile(r"^<!-- plan: (.*?) -->\n```text\n\$ (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GIB = 1 << 30


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_shows_what_is_printed() -> None:
    shown = _SHOWN.findall(PAGE)
    assert len(shown) == 3
    assert "--bytes 100t --stores 50" in shown[0][0]
    for words, command, lines in shown:
        assert command == f"python -m reput.cluster.plan {words}"
        assert lines == printed(*shlex.split(words))


def test_the_page_tells_the_figures_that_count() -> None:
    rate = f"| {MEASURED.bytes_per_second / 1e6:,.0f} MB/s with {MEASURED.cores} cores |"
    for figure in (
        rate,
        f"| {MEASURED.message_bytes} |",
        f"| {MEASURED.keys} |",
        f"{MEASURED.start_seconds} s",
    ):
        assert figure in PAGE
    assert MEASURED.memory_fixed == GIB
    assert MEASURED.memory_per_core == 256 << 20
    assert "1 GiB, and 256 MiB a core" in PAGE


def test_a_plan_is_the_arithmetic_that_it_says() -> None:
    hosts = Hosts(number=2, cores=4, read=1e9, write=0.5e9, network=None)
    found = plan(12 * GIB, 3, hosts)
    assert found.messages == 12 * GIB // MEASURED.message_bytes
    assert found.queue_bytes == found.messages * UNIT_LENGTH
    files = 3 * -(-(found.keys // 3) // 19_999_999)
    slots = files * (HEADER_LENGTH + 5_000_000 * SLOT_LENGTH)
    assert found.index_bytes == found.keys * ENTRY_LENGTH + slots
    assert (found.stores_per_host, found.bytes_per_host) == (2, 8 * GIB)
    assert found.bounds["cores"] == pytest.approx(8 * GIB / (MEASURED.bytes_per_second / 2 * 4))
    assert found.bounds["reading"] == pytest.approx(8 * GIB / 1e9)
    assert found.bounds["writing"] == pytest.approx(found.output_per_host / 0.5e9, rel=1e-6)
    assert found.output_per_host == pytest.approx((found.queue_bytes + found.index_bytes) * 2 / 3, abs=1)
    assert "network" not in found.bounds
    assert found.slowest == "reading"
    assert found.start_seconds == 2 * MEASURED.start_seconds
    assert found.least_seconds == pytest.approx(found.start_seconds + found.bounds["reading"])
    assert found.most_seconds == pytest.approx(found.start_seconds + sum(found.bounds.values()))
    assert found.memory_per_host == 2 * GIB


def test_the_measured_run_is_what_is_planned_for_it() -> None:
    """The benchmark's own log: 4.0 GiB in 3.72 s, 6,101,743 messages."""
    found = plan(4 * GIB, 1, Hosts(1, 2, 1e12, 1e12, None))
    assert found.bounds["cores"] == pytest.approx(3.72, abs=0.01)
    assert found.messages == pytest.approx(6_101_743, rel=0.001)


def test_ones_own_figures_count() -> None:
    words = [
        "--bytes",
        "1t",
        "--stores",
        "4",
        "--json",
        "--rate",
        "500",
        "--rate-cores",
        "1",
        "--cores",
        "10",
    ]
    own = json.loads(printed(*words, "--keys", "0", "--message-bytes", "1024", "--network", "100"))
    assert own["bounds"]["cores"] == pytest.approx((1 << 38) / 5e9)
    assert own["index_bytes"] == own["keys"] == 0
    assert own["messages"] == 1 << 30
    assert own["hosts"]["number"] == 4
    assert own["slowest"] == "network"
    assert own["bounds"]["network"] == pytest.approx(((1 << 38) + own["output_per_host"]) / 1e8)
    assert own["measured"]["bytes_per_second"] == 5e8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bytes", "2x"], "--bytes can't be understood"),
        (["--bytes", "1k", "--stores", "50"], "less than a message for each store"),
    ],
)
def test_what_cannot_be_planned_is_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_more_hosts_than_stores_stay_idle() -> None:
    assert printed("--bytes", "1t", "--stores", "2", "--hosts", "9").startswith(
        "1.0 TiB of commit log in 2 stores, on 2 hosts"
    )
