"""Pages in Chinese beside those in English: the same sections, blocks, links, names and figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import pages

_SUFFIX = ".zh-CN.md"
TRANSLATED = [
    pages.ROOT / "README.md",
    *(pages.ROOT / "docs" / f"{name}.md" for name in ("quickstart", "howto", "findings")),
]
_CODE = re.compile(r"`([^`]+)`")
_FIGURE = re.compile(r"(\d[\d,.]*(?<![,.]))(?: (million|万))?")
_TIMES = {"million": 1_000_000, "万": 10_000}

_named = pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.relative_to(pages.ROOT).as_posix())


@dataclass(frozen=True, slots=True)
class Section:
    """What stands between two headings: the level and anchor of the first one, and the text below it."""

    level: int
    anchor: str
    text: str


def _twin(page: Path) -> Path:
    return page.with_name(page.name.removesuffix(".md") + _SUFFIX)


def _sections(text: str) -> list[Section]:
    texts = re.split(r"^#+ .*$", text, flags=re.MULTILINE)[1:]
    return [Section(*one, below) for one, below in zip(pages.headings(text), texts, strict=True)]


def _blocks(text: str) -> list[str]:
    """Fenced blocks with their marks and fences, then the lines of indented ones."""
    rest, found = pages.cut(text)
    return found + re.findall(r"(?<=^\n)(?:^ {4}.*\n|^\n(?= {4}))+", rest, re.MULTILINE)


def _links(page: Path, text: str, *, from_english: bool) -> Counter[tuple[str, str]]:
    """Links as a Chinese page has them: to a Chinese page, and a Chinese heading, where there is one."""
    found: Counter[tuple[str, str]] = Counter()
    for path, anchor in pages.links(text):
        target = (page.parent / path).resolve() if path else page
        if from_english and target in TRANSLATED:
            english, chinese = (_sections(pages.prose(one)) for one in (target, _twin(target)))
            of = {one.anchor: other.anchor for one, other in zip(english, chinese, strict=False)}
            path, anchor = path and f"{path.removesuffix('.md')}{_SUFFIX}", of.get(anchor, anchor)
        found[path, anchor] += 1
    return found


def _differences(page: Path, english: str, chinese: str) -> Iterator[str]:
    """What one page has and its twin lacks, in words."""
    ours, theirs = _blocks(english), _blocks(chinese)
    if ours != theirs:
        lacking = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
        yield f"other blocks, or another order: only English {[*lacking[0]]}, only Chinese {[*lacking[1]]}"
    one_by_one = [_sections(pages.cut(text)[0]) for text in (english, chinese)]
    levels = [[one.level for one in sections] for sections in one_by_one]
    if levels[0] != levels[1]:
        yield f"other sections: {[[(one.level, one.anchor) for one in sections] for sections in one_by_one]}"
        return
    for here, there in zip(*one_by_one, strict=True):
        texts = [re.sub(r"\s+", " ", _without_head(one.text)) for one in (here, there)]
        pairs: dict[str, list[object]] = {
            "links": [_links(page, texts[0], from_english=True), _links(page, texts[1], from_english=False)],
            "names between backticks": [Counter(_CODE.findall(text)) for text in texts],
            "figures": [_figures(_CODE.sub("", _untargeted(text))) for text in texts],
            "items, rows": [
                [len(re.findall(mark, one.text, re.MULTILINE)) for mark in (r"^(?: *[-*]|\d\.) ", r"^\|")]
                for one in (here, there)
            ],
        }
        for what, (first, second) in pairs.items():
            if first != second:
                yield f"#{here.anchor}, #{there.anchor}: other {what}: {_only(first, second)}"


def _figures(text: str) -> set[str]:
    return {
        f"{round(float(figure) * _TIMES[unit]):,}" if unit else figure
        for figure, unit in _FIGURE.findall(text)
    }


def _without_head(text: str) -> str:
    """A text without the line that leads to the other language."""
    return re.sub(r"^(English \| .*|.* \| 简体中文)$", "", text, flags=re.MULTILINE)


def _untargeted(text: str) -> str:
    """A text without the targets of its links, and without HTML."""
    return re.sub(r"<[^>]*>", "", re.sub(r"\]\([^)]*\)", "]", text))


def _only(first: object, second: object) -> str:
    if isinstance(first, Counter | set) and isinstance(second, Counter | set):
        return f"only English {[*(first - second)]}, only Chinese {[*(second - first)]}"  # type: ignore[operator]
    return f"English {first}, Chinese {second}"


@_named
def test_twins_say_the_same(page: Path) -> None:
    english, chinese = (one.read_text(encoding="utf-8") for one in (page, _twin(page)))
    assert not [*_differences(page, english, chinese)], (
        f"{_twin(page).name}: mend what changed in one page only"
    )


def test_each_chinese_page_has_its_twin() -> None:
    found = [*pages.ROOT.glob(f"*{_SUFFIX}"), *(pages.ROOT / "docs").rglob(f"*{_SUFFIX}")]
    assert {*found} == {_twin(page) for page in TRANSLATED}


@_named
def test_each_page_begins_with_the_way_to_its_twin(page: Path) -> None:
    for one, line in (
        (page, f"English | [简体中文]({_twin(page).name})"),
        (_twin(page), f"[English]({page.name}) | 简体中文"),
    ):
        title, _, second = one.read_text(encoding="utf-8").splitlines()[:3]
        assert title.startswith("# ")
        assert second == line


@_named
def test_a_paragraph_in_chinese_is_one_line(page: Path) -> None:
    """Where a line ends within a paragraph a browser shows a space, which Chinese hasn't got."""
    text = pages.prose(_twin(page))
    assert re.findall(r"^.*[^\x00-\x7f]\n(?! *(?:[-*|<#]|\d\.))\S.*$", text, re.MULTILINE) == []


_ENGLISH = """# A page

English | [简体中文](made.zh-CN.md)

See [findings](findings.md#records), at most 4 MiB, with `--out`:

<!-- run -->
```console
$ reput check store
```

## More

- one

    make quick
"""
_CHINESE = """# 页面

[English](made.md) | 简体中文

见[发现项](findings.zh-CN.md#记录)。最多 4 MiB。用 `--out`。

<!-- run -->
```console
$ reput check store
```

## 更多

- 一

    make quick
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("reput check", "reput verify"),
        ("<!-- run -->\n", ""),
        ("    make quick", "    make test"),
        ("## 更多", "### 更多"),
        ("## 更多\n", ""),
        ("- 一\n", "- 一\n- 二\n"),
        ("4 MiB", "8 MiB"),
        ("`--out`", "`--output`"),
        ("#记录", "#段"),
        ("findings.zh-CN.md#记录", "findings.md#records"),
    ],
)
def test_a_difference_is_seen(before: str, after: str) -> None:
    page = pages.ROOT / "docs" / "made.md"
    assert [*_differences(page, _ENGLISH, _CHINESE)] == []
    assert before in _CHINESE
    assert [*_differences(page, _ENGLISH, _CHINESE.replace(before, after))]
