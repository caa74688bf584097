"""The page in Chinese: all that it says is in its catalogue, and nothing else is."""

# ruff: noqa: RUF001 - texts in Chinese have its punctuation

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.report import language, numbers, page
from reput.report.facts import Facts
from reput.report.gather import GatherOptions, gather
from reput.report.language import CHINESE, ENGLISH, in_language, of_environment, said
from reput.report.page import render
from tests.compat.damage import DAMAGES, Copy
from tests.golden.store import unpack
from tests.report.made import HOSTILE, MORNING, Elements, hostile_store

LIB = Path(language.__file__).parents[1]
#: Where facts of a page get their texts: modules, or functions of one.
SOURCES = {
    "report/charts.py": (),
    "report/gather.py": (),
    "report/page.py": ("_remarks", "_sentences", "_tiles"),
    "report/queues.py": (),
    "broker/config_files.py": (),
    "config/kept.py": ("step_without",),
    "derived/files.py": (),
    "broker/snapshot.py": (),
    "recovery/losses.py": (),
    "recovery/refusals.py": ("outside_step",),
    "recovery/plan.py": (
        "deleted_topics",
        "unread",
        "_ahead",
        "brings_back",
    ),
    "errors.py": ("STAND_IN",),
    "diagnosis/check.py": (),
    "diagnosis/verdict.py": (
        "TITLES",
        "where",
        "WORDS",
        "_AREAS",
        "verdict",
        "of_two",
        "_nothing_wrong",
        "_filled",
        "_gone",
        "_are_gone",
        "_wrong",
        "_stops",
        "_unknown",
    ),
    "diagnosis/findings.py": (),
    "log/segments.py": (
        "_committed",
        "_files",
        "_one_for_each_place",
        "_odd_name",
        "_wrong_lengths",
        "_gaps",
        "choose_file",
        "_away",
    ),
    "scan/part.py": (),
    "scan/extent.py": (),
    "replay/altered.py": ("_candidate", "_unit_there", "altered_message"),
    "replay/placing.py": (),
    "store/lock.py": ("_process", "_lock_holder"),
    "verify/batch.py": ("__str__", "_NAMES", "_said", "_wrong", "_difference"),
    "verify/explain.py": ("REMARKS", "target"),
    "verify/index.py": ("compare_entries", "_check_times", "_header_problems", "_tell", "_missing"),
    "verify/index_file.py": (),
    "verify/queue_check.py": ("_record", "_unit"),
    "verify/queue_files.py": ("series_files",),
    "verify/rocksdb_index.py": ("compare", "_listed", "_text_of", "_said"),
    "verify/rocksdb_queues.py": (
        "find",
        "_end_problem",
        "_check_checkpoint",
        "_foreign",
        "not_checked",
        "_said",
    ),
    "verify/run.py": ("unsafe_topics", "_check_checkpoint", "_not_checked"),
    "verify/tasks.py": ("_passed_over",),
    "verify/units.py": (),
}
_WORD = re.compile(r"(?<![\w/.-])[a-z]{3,}(?![\w/.(-])")
#: Texts of these modules that are on no page, or are no words.
_ELSEWHERE = {"size and tagsCode"}


def _texts(node: ast.AST) -> Iterator[str]:
    """Literal texts below a node, ``{}`` for what is put in; without docstrings, errors and logs."""
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name.endswith("Error") or name in ("_say", "say", "command", "check_free"):
            return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):
        yield "".join(piece.value if isinstance(piece, ast.Constant) else "{}" for piece in node.values)  # type: ignore[misc]
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from _texts(child)


def _of_source(name: str) -> set[str]:
    """What a module's texts say: those with an English word."""
    tree = ast.parse((LIB / name).read_text(encoding="utf-8"))
    nodes: list[ast.AST] = [tree]
    if SOURCES[name]:
        named = {_name(node): node for node in ast.walk(tree)}
        nodes = [named[one] for one in SOURCES[name]]
    found = {text for node in nodes for text in _texts(node)}
    return {text for text in found - _ELSEWHERE if _WORD.search(text)}


def _name(node: ast.AST) -> str:
    """Of a function, or of a module's variable."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return node.name if isinstance(node, ast.FunctionDef) else ""


def _pieces(text: str) -> list[str]:
    """What stands between holes, joints and ends of sentences, as far as it has an English word."""
    return [one.strip() for one in re.split(r"\{\w*\}|[;,.:()`]|[0-9]+ ", text) if _WORD.search(one)]


CATALOGUE = language.catalogue(CHINESE)


@pytest.mark.parametrize("name", SOURCES)
def test_each_text_of_a_fact_has_a_translation(name: str) -> None:
    """That of each piece of it; a text that changes, or is added, is missing."""
    texts = {text for text in _of_source(name) if " " in text.strip()}
    assert texts
    known = {piece for text in CATALOGUE.texts for piece in _pieces(text)}
    every = "\n".join([*known, *CATALOGUE.counted, *CATALOGUE.page])
    missing = {text: piece for text in texts for piece in _pieces(text) if piece not in every}
    assert not missing, f"templates/zh.toml lacks, or has otherwise: {missing}"


def test_no_translation_is_of_a_text_that_is_gone() -> None:
    every = "\n".join([*page._STRETCHES, *(text for name in SOURCES for text in _of_source(name))])
    gone = {text for text in CATALOGUE.texts for piece in _pieces(text) if piece not in every}
    assert not gone


def test_each_label_has_a_translation_and_no_other() -> None:
    environment = page._environment()
    source = "".join(page._source(name) for name in ("macros.html.j2", "report.html.j2"))
    messages = [found[2] for found in environment.extract_translations(source) if found[2]]
    tree = ast.parse((LIB / "report" / "page.py").read_text(encoding="utf-8"))
    tiles = [ast.literal_eval(node.args[0]) for node in ast.walk(tree) if _is_tile(node)]
    assert len(tiles) > 5
    labels = {
        *(message if isinstance(message, str) else str(message[0]) for message in messages),
        *tiles,
        *(title for _, title in page._SECTIONS),
        *(word for words in (page._WORDS, page._STRETCHES, page._OF_SCRIPT) for word in words.values()),
    }
    assert {re.sub(r"%\(\w+\)s", "{}", label).replace("%%", "%") for label in labels} == {*CATALOGUE.page}


def _is_tile(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Tile"


@pytest.mark.parametrize("table", ["page", "texts"])
def test_a_translation_has_all_that_is_put_in(table: str) -> None:
    for english, chinese in getattr(CATALOGUE, table).items():
        holes = re.findall(r"\{[nt]?\}", english)
        filled = chinese.format(*(f"<{number}>" for number in range(len(holes))))
        assert all(f"<{number}>" in filled for number in range(len(holes))), english
        assert re.findall(r"`|</?[a-z]+", english) == re.findall(r"`|</?[a-z]+", chinese), english


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("1,234 messages", "1,234 条消息"),
        ("a start of RocketMQ 5.5.0 loses 3 messages; the log is damaged (bad-magic)",
         "RocketMQ 5.5.0 启动会丢失3 条消息；CommitLog 已损坏（bad-magic）"),
        ("1 message is gone for good; the places of 2 messages that are lost are filled",
         "1 条消息已永久丢失；已丢失的2 条消息的位置已填补"),
        ("`reput mend a.b, c` says what it would change; with --apply it does.",
         "`reput mend a.b, c` 说明会改动什么；加上 --apply 就执行。"),
        ("messages:3 queueOffset 1 to 2", "messages:3 queueOffset 1 到 2"),
        ("physical offset 7", "物理偏移量 7"),
        ("no words of ours", "no words of ours"),
    ],
)  # fmt: skip
def test_a_text_is_said_anew(text: str, chinese: str) -> None:
    with in_language(CHINESE):
        assert said(text) == chinese
    assert said(text) == text


def test_numbers_and_times_are_said_anew() -> None:
    day = 86_400_000
    with in_language(CHINESE):
        assert [numbers.short(value) for value in (250, 1500, 12_500, 25_000_000, 3e8)] == [
            "250",
            "1,500",
            "1.25 万",
            "2,500 万",
            "3 亿",
        ]
        assert numbers.span(day + 7_200_000) == "1 天 2 小时"
        assert numbers.time_ticks(MORNING, MORNING + 5 * day)[0][1] == "2026年11月20日"
        assert numbers.time_ticks(MORNING, MORNING + 7_200_000)[0][1] == "11月20日 00:00"
    assert [numbers.short(value) for value in (250, 1500, 25_000_000)] == ["250", "1.5 k", "25 M"]
    assert numbers.time_ticks(MORNING, MORNING + 5 * day)[0][1] == "Nov 20, 2026"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ENGLISH),
        ({"LANG": "zh_CN.UTF-8"}, CHINESE),
        ({"LANG": "zh_CN"}, CHINESE),
        ({"LANG": "zh_TW.UTF-8"}, ENGLISH),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, ENGLISH),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "zh_CN.GB18030", "LC_MESSAGES": "C"}, CHINESE),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, CHINESE),
    ],
)
def test_the_language_is_that_of_the_locale(environment: dict[str, str], expected: str) -> None:
    assert of_environment(environment) == expected


def _damaged(directory: Path, number: int) -> Facts:
    """A store with one kind of damage."""
    golden = unpack("5.5.0-mixed", directory / "store")
    conf = golden.write_broker_conf(directory / "broker.conf")
    sizes = (
        int(str(golden.config[name])) for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue")
    )
    DAMAGES[number](Copy(golden.root, *sizes))
    return gather(GatherOptions(golden.root, conf, "5.5.0"))


@pytest.mark.parametrize("number", range(len(DAMAGES)), ids=lambda number: DAMAGES[number].__name__)
def test_a_damaged_store_is_described_in_chinese(number: int, tmp_path: Path) -> None:
    facts = _damaged(tmp_path, number)
    shown = Elements(render(facts, language=CHINESE))
    assert shown.values["lang"] == ["zh-CN"]
    texts = {
        text for tag, found in shown.texts.items() if tag not in ("code", "style", "script") for text in found
    }
    errors = {note.split(": ", 1)[1] for note in facts.not_seen if ": " in note}
    english = {text for text in texts if re.search("[a-z]{3,} [a-z]{2,}", text)}
    left = {text for text in english if not any(one in text for one in errors)}
    assert not left
    assert [*Elements(render(facts)).tags] == [*shown.tags]


def test_names_are_never_translated(tmp_path: Path) -> None:
    facts = gather(GatherOptions(hostile_store(tmp_path / "store")))
    english, chinese = (Elements(render(facts, language=one)) for one in (ENGLISH, CHINESE))
    assert [text for text in english.texts["bdi"] if text in HOSTILE] == [
        text for text in chinese.texts["bdi"] if text in HOSTILE
    ]
    assert english.tags == chinese.tags
    assert english.attributes == chinese.attributes
