from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import arguments, size
from bench.compare import ratio
from bench.errors import BenchError
from bench.generate import Log
from bench.java_load import count_keys, count_units
from bench.memory import MemorySampler, status_field
from bench.process import pinned, run
from bench.result import COLD, JAVA, Result, times_as_fast
from bench.table import BEGIN, END, check, markdown, render, write
from reput.format import consumequeue
from reput.format.indexfile import IndexHeader

JAVA_RESULT = Result(JAVA, "5.5.0", 2, (22.0, 18.0, 20.0), (100, 300, 200), ({"load": 22.0}, {"load": 18.0}))
COLD_RESULT = Result(
    COLD,
    "5.5.0",
    2,
    (10.0,),
    (3 << 30,),
    ({"session": 4.0, "scan": 2.5, "journal": 0.001},),
)


@pytest.mark.parametrize(
    ("text", "expected"), [("4g", 4 << 30), ("300M", 300 << 20), ("1k", 1024), ("2t", 2 << 40), ("700", 700)]
)
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "g", "0", "0g", "4gb", "-1g", "1.5g"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text) if text else "^$"):
        size(text)


def test_the_defaults_are_those_of_the_documentation() -> None:
    options = arguments([])
    assert options.size == 4 << 30
    assert options.versions == ["4.9.7", "5.5.0"]
    assert options.repeat == 3
    assert options.only == ["java", "cold", "warm", "floor", "cores"]


@pytest.mark.parametrize(
    "words", [["--repeat", "0"], ["--cores", "0"], ["--cores", "100000"], ["--only", "fast"], ["--size", "x"]]
)
def test_bad_usage_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        arguments(words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_medians() -> None:
    assert JAVA_RESULT.median_seconds == 20.0
    assert JAVA_RESULT.median_peak_bytes == 200
    assert JAVA_RESULT.median_stages == {"load": 20.0}


def test_a_stage_that_a_run_lacks_took_no_time() -> None:
    result = replace(COLD_RESULT, stages=({"scan": 2.0}, {"scan": 4.0, "irregular queues": 1.0}))
    assert result.median_stages == {"scan": 3.0, "irregular queues": 0.5}


def test_a_result_survives_json() -> None:
    assert Result.from_dict(json.loads(json.dumps(JAVA_RESULT.to_dict()))) == JAVA_RESULT


def test_the_ratio_is_to_rocketmq_of_the_same_version_on_as_many_cores() -> None:
    other = replace(JAVA_RESULT, version="4.9.7", seconds=(5.0,))
    assert times_as_fast(COLD_RESULT, [other, JAVA_RESULT]) == 2.0
    assert times_as_fast(replace(COLD_RESULT, version="5.3.3"), [other, JAVA_RESULT]) is None
    assert times_as_fast(replace(COLD_RESULT, cores=1), [other, JAVA_RESULT]) is None


def test_the_table() -> None:
    text = render([JAVA_RESULT, COLD_RESULT], 1_000_000, 700_000_000, {"CPU": "one of a kind"})
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line]
    assert lines[0] == [
        "A log of 667.6 MiB with 1,000,000 messages; medians of 3 runs, the fastest and the slowest beside."
    ]
    assert [JAVA, "5.5.0", "2", "20.00", "18.00 to 22.00", "1.00", "50,000", "35", "200 bytes"] in lines
    assert [COLD, "5.5.0", "2", "10.00", "", "2.00", "100,000", "70", "3.0 GiB"] in lines
    assert ["", "bytes as", "cores", "session", "scan"] in lines
    assert [COLD, "5.5.0", "2", "4.00", "2.50"] in lines
    assert ["CPU", "one of a kind"] in lines


def test_a_version_that_rocketmq_was_not_measured_with_has_no_ratio() -> None:
    text = render([COLD_RESULT], 10, 7000, {})
    assert "one run each" in text
    assert "| 10.00 |" in text.replace("   10.00", " 10.00")


def test_numbers_stand_on_the_right() -> None:
    assert markdown(["who", "n"], [["a", "1"], ["bcde", "2"]]).splitlines() == [
        "| who  |  n |",
        "| ---- | -: |",
        "| a    |  1 |",
        "| bcde |  2 |",
    ]


def test_the_table_replaces_what_stood_between_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    write(document, "new\n")
    write(document, "newer\n")
    assert document.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\nnewer\n\n{END}\nafter\n"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}{BEGIN}"])
def test_a_document_without_markers_is_left_alone(text: str, tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=r"page\.md lacks the lines"):
        check(document)
    with pytest.raises(BenchError, match=r"page\.md lacks the lines"):
        write(document, "new")
    assert document.read_text(encoding="utf-8") == text


def test_the_page_of_the_documentation_has_the_markers() -> None:
    check(Path(__file__).parents[2] / "docs" / "data" / "benchmark.md")


class Proc:
    """A directory like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self").mkdir()
        (root / "uptime").write_text("1 1\n")

    def put(self, pid: int, parent: int, kib: int | None) -> None:
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        memory = "" if kib is None else f"VmRSS:\t  999999 kB\nRssAnon:\t  {kib} kB\n"
        (directory / "status").write_text(f"Name:\tp{pid}\nPPid:\t{parent}\n{memory}Threads:\t1\n")

    def end(self, pid: int) -> None:
        (self.root / str(pid) / "status").unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_line_of_status() -> None:
    assert status_field("VmRSS:\t 10 kB\nRssAnon:\t   7 kB\n", "RssAnon") == 7
    assert status_field("Name:\tkthreadd\n", "RssAnon") == 0


def test_memory_is_that_of_the_whole_tree_and_of_nobody_else(proc: Proc) -> None:
    proc.put(1, 0, 1000)
    proc.put(10, 1, 5)
    proc.put(30, 20, 11)  # a grandchild with a child of a lower number
    proc.put(20, 10, 7)
    proc.put(15, 30, 13)
    proc.put(40, 1, 2000)
    proc.put(41, 2, None)  # a kernel thread
    assert MemorySampler(10, proc.root).sample() == (5 + 7 + 11 + 13) << 10


def test_the_peak_stays_and_orphans_count_on(proc: Proc) -> None:
    proc.put(10, 1, 5)
    proc.put(20, 10, 7)
    proc.put(30, 20, 50)
    sampler = MemorySampler(10, proc.root)
    sampler.sample()
    proc.end(20)
    proc.put(30, 1, 80)
    assert sampler.sample() == 85 << 10
    proc.end(30)
    assert sampler.sample() == 5 << 10
    assert sampler.peak_bytes == 85 << 10


def test_the_peak_counts_shared_pages_once(proc: Proc) -> None:
    for pid, parent, kib, share in ((10, 1, 50, 30), (20, 10, 40, 20)):
        proc.put(pid, parent, kib)
        (proc.root / str(pid) / "smaps_rollup").write_text(f"Rss: 99 kB\nPss_Anon: {share} kB\n")
    sampler = MemorySampler(10, proc.root)
    assert sampler.sample() == 90 << 10
    assert sampler.peak_bytes == 50 << 10


def test_memory_over_time_is_told_by_program(proc: Proc) -> None:
    proc.put(10, 1, 5)
    proc.put(20, 10, 7)
    sampler = MemorySampler(10, proc.root)
    began = time.time()
    for kilobytes in (7, 9, 8):
        proc.put(20, 10, kilobytes)
        sampler.sample()
    assert sampler.median_between(began, time.time() + 1) == {"p10": 5 << 10, "p20": 8 << 10}
    assert sampler.peak_between(began, time.time() + 1) == 14 << 10
    assert sampler.median_between(0, began) == {}


def test_a_number_that_another_process_gets_is_looked_at_again(proc: Proc) -> None:
    proc.put(10, 1, 5)
    proc.put(20, 1, 7)
    sampler = MemorySampler(10, proc.root)
    assert sampler.sample() == 5 << 10
    proc.end(20)
    sampler.sample()
    proc.put(20, 10, 7)
    assert sampler.sample() == 12 << 10


def test_a_run_is_measured(tmp_path: Path) -> None:
    script = "import os, time; x = b'1' * (64 << 20); time.sleep(0.5); print(len(os.sched_getaffinity(0)))"
    done = run(["-c", script], 1, tmp_path)
    assert done.output == "1\n"
    assert done.seconds > 0.5
    assert 64 << 20 < done.peak_bytes < 128 << 20


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"ended with 3:\nhalf done\nno luck"):
        run(
            ["-c", "import sys; print('half done'); print('no luck', file=sys.stderr); sys.exit(3)"],
            1,
            tmp_path,
        )


def test_pinning_ends() -> None:

    before = os.sched_getaffinity(0)
    with pinned(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_units_and_keys_are_counted(tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue" / "topic" / "0"
    queue.mkdir(parents=True)
    units = consumequeue.unit(0, 100, -7) + consumequeue.unit(100, 100, 0)
    (queue / f"{0:020d}").write_bytes(units + bytes(60))
    (queue / f"{100:020d}").write_bytes(units)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "1").write_bytes(IndexHeader(index_count=11).encode() + bytes(80))
    (tmp_path / "index" / "2").write_bytes(IndexHeader(index_count=0).encode() + bytes(80))
    assert count_units(tmp_path) == 4
    assert count_keys(tmp_path) == 10


def test_segments_come_in_log_order(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for base in (2000, 0, 1000):
        (tmp_path / "commitlog" / f"{base:020d}").write_bytes(b"")
    log = Log(tmp_path, "5.5.0", 2500, 2600, 3)
    assert [int(path.name) for path in log.segments] == [0, 1000, 2000]


def test_a_tree_that_is_faster_in_each_pair_is_beyond_noise() -> None:
    found = ratio([(2.0, 1.0), (4.0, 3.0), (2.0, 1.5), (3.0, 2.0), (2.0, 1.9), (5.0, 4.0)])
    assert (found.median, found.is_sure, found.chance) == (0.75, True, 2 / 64)


def test_pairs_that_disagree_or_are_few_are_within_noise() -> None:
    assert not ratio([(2.0, 1.0), (1.0, 2.0), (2.0, 2.1), (2.1, 2.0), (3.0, 2.0), (2.0, 3.0)]).is_sure
    assert not ratio([(2.0, 1.0)] * 4).is_sure
    assert ratio([(1.0, 1.0)] * 6).chance == 1
