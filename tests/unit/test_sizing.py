"""The calculator of docs/sizing.md: its arithmetic, and the figures that the page tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.sizing import MEASURED, NIGHTLY, Hosts, app, nights, plan
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, HEADER_LENGTH, SLOT_LENGTH

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sizing.md").read_text(encoding="utf-8")
BENCHMARK = (DOCS / "data" / "benchmark.md").read_text(encoding="utf-8")
GIB = 1 << 30


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


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


def rows(heading: str) -> list[dict[str, str]]:
    """The rows of the table of docs/data/benchmark.md that has this in its head, by the titles of columns."""
    lines = iter(BENCHMARK.splitlines())
    titles = [cell.strip() for cell in next(line for line in lines if heading in line).strip("|").split("|")]
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append(dict(zip(titles, (cell.strip() for cell in line.strip("|").split("|")), strict=True)))
    return found


def run_of(name: str, cores: int) -> dict[str, str]:
    """The row of one kind of run, as 5.5.0 writes."""
    (row,) = [
        row
        for row in rows("times RocketMQ's | messages/s")
        if (row[""], row["bytes as"], row["cores"]) == (name, "5.5.0", str(cores))
    ]
    return row


def number(text: str) -> float:
    return float(text.replace(",", ""))


def mib(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"MiB": 1, "GiB": 1024}[unit]


def test_each_rate_is_the_benchmarks() -> None:
    warm, cold = run_of("reput, warm", 2), run_of("reput, cold", 2)
    (log,) = re.findall(r"^A log of ([0-9.]+) GiB with ([0-9,]+) messages; medians", BENCHMARK, re.MULTILINE)
    size, messages = float(log[0]) * GIB, number(log[1])
    assert MEASURED.bytes_per_second == number(warm["MB/s"]) * 1e6
    assert MEASURED.bytes_per_second == pytest.approx(size / number(warm["seconds"]), rel=0.01)
    assert str(MEASURED.cores) == warm["cores"]
    assert MEASURED.start_seconds == round(number(cold["seconds"]) - number(warm["seconds"]), 1)
    assert MEASURED.message_bytes == round(size / messages)
    assert "two index entries a message, three from RocketMQ 5.4 on" in BENCHMARK
    assert MEASURED.keys == 3


def test_the_memory_is_above_every_peak_that_was_measured() -> None:
    for cores in (1, 2):
        reckoned = (MEASURED.memory_fixed + cores * MEASURED.memory_per_core) / (1 << 20)
        peaks = [mib(run_of(f"reput, {kind}", cores)["peak memory"]) for kind in ("cold", "warm")]
        assert 0 <= reckoned - max(peaks) < 640
    longest = rows("| read from |")[-1]
    assert mib(longest["peak memory"]) <= (MEASURED.memory_fixed + 2 * MEASURED.memory_per_core) / (1 << 20)
    one, two = (run_of("reput, warm", cores)["peak memory"] for cores in (1, 2))
    length, peak = longest["log"], f"{mib(longest['peak memory']) / 1024:.1f} GiB"
    assert f"warm, peaks of {one} with one core and {two} with two; {peak} with {length} of log" in PAGE


def test_what_the_page_says_of_the_benchmark() -> None:
    one, two = (number(run_of("reput, warm", cores)["seconds"]) for cores in (1, 2))
    assert f"the rate grew {one / two:.2f} times" in PAGE
    assert f"{one:.2f} s against {two:.2f} s, {one / two:.2f} times" in BENCHMARK
    kinds = {row["queues"]: row for row in rows("times plain queues")}
    slower = [kinds[name]["times plain queues"] for name in ("batch queues", "with ConsumeQueueExt")]
    assert f"take {slower[0]} to {slower[1]} times as long" in PAGE
    (many,) = [row for row in rows("| a queue |") if row["queues"].startswith("100,000")]
    assert f"100,000 of them took {many['peak memory']} of memory" in PAGE
    assert f"[{float(many['a queue'].removesuffix(' µs')) / 1000:.1f} ms a queue]" in PAGE


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
    """The benchmark's own log: 4.0 GiB in 2.52 s, 6,101,739 messages."""
    found = plan(4 * GIB, 1, Hosts(1, 2, 1e12, 1e12, None))
    assert found.bounds["cores"] == pytest.approx(2.52, abs=0.01)
    assert found.messages == pytest.approx(6_101_739, rel=0.001)


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


def test_nights_are_the_arithmetic_that_they_say() -> None:
    hosts = Hosts(number=1, cores=4, read=1e9, write=0.5e9, network=0.5e9)
    found = plan(100 * GIB, 2, hosts)
    first, later = nights(found, hosts, 0.05, 10, MEASURED)
    assert (first.log, first.derived) == (100 * GIB, found.output_per_host)
    assert first.bounds["cores"] == pytest.approx(100 * GIB / (NIGHTLY / 2 * 4))
    assert first.bounds["network"] == pytest.approx(2 * first.bounds["reading"])
    assert later.log == 5 * GIB + 2 * GIB
    files = 2 * (10 * 6_000_000 + HEADER_LENGTH + 20_000_000 * (ENTRY_LENGTH + 1))
    assert later.derived == pytest.approx(0.05 * found.output_per_host + files, rel=1e-3)
    # No night reads more than the first one.
    small = plan(GIB, 2, hosts)
    first, later = nights(small, hosts, 1.0, 1_000, MEASURED)
    assert (later.log, later.derived) == (first.log, first.derived)
    assert f"{NIGHTLY / 1e6:,.0f} MB/s" in PAGE
