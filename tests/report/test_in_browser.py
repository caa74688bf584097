"""The page in a browser: wide, on a phone, in the dark, on paper, and with names that would break out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reput.report import GatherOptions, gather
from reput.report.language import CHINESE
from reput.report.page import render
from tests.golden.store import unpack
from tests.report.browser import Page, browsing
from tests.report.made import HOSTILE, hostile_store, many_queues

pytestmark = [pytest.mark.slow, pytest.mark.proof]

DESKTOP, PHONE = 1200, 390

#: What is wider than the window, and may not be: all but what lies in a box that scrolls by itself.
_TOO_WIDE = """[...document.querySelectorAll("body *")].filter((one) =>
    !one.closest(".scroll, .skip, .hidden") && one.getBoundingClientRect().right > innerWidth + 1
).map((one) => one.tagName + "." + one.getAttribute("class") + ": " + one.textContent.slice(0, 60))"""

#: The lowest contrast, as WCAG reckons it, of a text with what lies behind it.
_CONTRAST = """(() => {
  const parse = (text) => {
    const found = text.match(/[\\d.]+/g).map(Number);
    return [...found.slice(0, 3), found[3] ?? 1];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  let least = [99, ""];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    const text = walk.currentNode.data.trim();
    if (!text || one.closest("svg, script, style") || !one.getClientRects().length) continue;
    const pair = [light(parse(getComputedStyle(one).color)), light(behind(one))];
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (contrast < least[0]) least = [contrast, text.slice(0, 40)];
  }
  return least;
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser.open()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a store that a real broker wrote, which was damaged since."""
    directory = tmp_path_factory.mktemp("report")
    store = unpack("5.5.0-mixed", directory / "store")
    conf = store.write_broker_conf(directory / "broker.conf")
    with (store.root / "commitlog" / f"{65536 * 3:020d}").open("r+b") as segment:
        segment.seek(30_000)
        segment.write(b"\xff" * 2000)
    facts = gather(GatherOptions(store.root, conf, "5.5.0"))
    path = directory / "report.html"
    path.write_bytes(render(facts))
    (directory / "report-zh.html").write_bytes(render(facts, language=CHINESE))
    return path


def _pixels(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8[height, width, 3]: a PNG of eight bits a colour, as Chromium writes it."""
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    channels = {2: 3, 6: 4}[png[25]]
    data, at = b"", 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        if kind == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height + 1, width + 1, channels), np.uint8)
    for number in range(height):
        line, kind = rows[number, 1:].reshape(width, channels), rows[number, 0]
        up = out[number, 1:]
        if kind == 0:
            out[number + 1, 1:] = line
        elif kind == 1:
            out[number + 1, 1:] = np.cumsum(line, axis=0, dtype=np.uint8)
        elif kind == 2:
            out[number + 1, 1:] = line + up
        else:
            _one_by_one(out, number, line, int(kind))
    return out[1:, 1:, :3]


def _one_by_one(out: np.ndarray[Any, Any], number: int, line: np.ndarray[Any, Any], kind: int) -> None:
    above, here = out[number].astype(int).tolist(), [[0] * line.shape[1]]
    for column, pixel in enumerate(line.tolist()):
        left, up, corner = here[-1], above[column + 1], above[column]
        if kind == 3:
            guess = [(a + b) // 2 for a, b in zip(left, up, strict=True)]
        else:
            guess = [_paeth(*three) for three in zip(left, up, corner, strict=True)]
        here.append([(value + add) & 255 for value, add in zip(pixel, guess, strict=True)])
    out[number + 1] = here


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))


def _assert_rendered(page: Page, path: Path, *, dark: bool) -> None:
    assert page.requests == [path.as_uri()]
    assert page.complaints == []
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run(_TOO_WIDE) == []
    contrast, text = page.run(_CONTRAST)
    assert contrast >= 4.5, text
    pixels = _pixels(page.picture())
    ground = int(pixels[-1, 0].sum())
    assert (ground < 150) is dark
    # Text, badges, lines: a picture of many colours, most of which is ground.
    assert len(np.unique(pixels.astype(int) @ (1 << 16, 1 << 8, 1))) > 100
    assert 0.02 < float((np.abs(pixels.astype(int).sum(axis=2) - ground) > 60).mean()) < 0.9


@pytest.mark.parametrize("name", ["report.html", "report-zh.html"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_page_is_seen(page: Page, report: Path, width: int, dark: bool, name: str) -> None:
    path = report.with_name(name)
    page.show(path, width=width, dark=dark)
    assert page.run("innerWidth") == width
    _assert_rendered(page, path, dark=dark)
    # Each drawing has room, and something in it.
    boxes = page.run("""[...document.querySelectorAll("svg")].map((one) => {
        const box = one.getBoundingClientRect();
        return [box.width, box.height, one.querySelectorAll("rect, path").length]; })""")
    assert len(boxes) >= 6
    assert all(wide > 100 and high >= 10 and drawn for wide, high, drawn in boxes)


def test_a_column_is_sorted_by_a_click(page: Page, report: Path) -> None:
    page.show(report, width=DESKTOP)
    column = (
        """[...document.querySelectorAll("#topics tbody tr")].map((row) => Number(row.cells[1].dataset.v))"""
    )
    head = 'document.querySelectorAll("#topics thead th")[{}]'
    by_page = page.run(column)
    assert by_page == sorted(by_page, reverse=True)
    assert len(set(by_page)) > 2
    page.run(f"{head.format(1)}.querySelector('button').click()")
    assert page.run(column) == by_page
    assert page.run(f"{head.format(1)}.getAttribute('aria-sort')") == "descending"
    page.run(f"{head.format(1)}.querySelector('button').click()")
    assert page.run(column) == sorted(by_page)
    page.run(f"{head.format(0)}.querySelector('button').click()")
    names = page.run("""[...document.querySelectorAll("#topics tbody th")].map((one) => one.textContent)""")
    assert names == sorted(names, key=str.lower)
    assert page.run(f"{head.format(1)}.getAttribute('aria-sort')") is None


def test_rows_are_filtered_by_typing(page: Page, report: Path) -> None:
    page.show(report, width=DESKTOP)
    page.run("""(() => { const input = document.querySelector("#queues input");
        input.value = "payments 1"; input.dispatchEvent(new Event("input")); })()""")
    rows = page.run("""[...document.querySelectorAll("#queues tbody tr")].filter((row) => !row.hidden)
        .map((row) => row.textContent.toLowerCase())""")
    assert rows
    assert all("payments" in row and "1" in row for row in rows)
    said = page.run("""document.querySelector("#queues [role=status]").textContent""")
    assert said == f"{len(rows)} of 47 rows"


@pytest.mark.parametrize("section", ["lag", "topics", "queues"])
def test_tables_are_stacked_on_a_narrow_phone(page: Page, report: Path, section: str) -> None:
    page.show(report, width=360)
    box = f"document.querySelector('#{section} .scroll')"
    if not page.run(f"Boolean({box})"):
        assert section == "lag", "this store has no consumers"
        return
    assert page.run(f"{box}.scrollWidth <= {box}.clientWidth"), "nothing of it has to be scrolled to"
    cut = f"""[...{box}.querySelectorAll("td, th")].filter((one) => one.getClientRects().length)
        .filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.textContent)"""
    assert page.run(cut) == []
    page.run(f"""(() => {{ const input = document.querySelector("#{section} input");
        input.value = "payments"; input.dispatchEvent(new Event("input")); }})()""")
    seen = f"""[...{box}.querySelectorAll("tbody tr")].filter((row) => row.getClientRects().length)
        .map((row) => row.textContent.toLowerCase())"""
    assert all("payments" in row for row in page.run(seen))


def test_a_bar_is_read_off_by_pointing(page: Page, report: Path) -> None:
    page.show(report, width=DESKTOP)
    text = page.run("""(() => { const bar = document.querySelector("g.slices[data-what=messages] rect");
        bar.dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
        return document.getElementById("readout-messages").textContent; })()""")
    assert " UTC: " in text
    assert " messages " in text


def test_the_script_speaks_the_language_of_the_page(page: Page, report: Path) -> None:
    page.show(report.with_name("report-zh.html"), width=DESKTOP)
    page.run("""(() => { const input = document.querySelector("#queues input");
        input.value = "payments 1"; input.dispatchEvent(new Event("input")); })()""")
    assert page.run("""document.querySelector("#queues [role=status]").textContent""").startswith(
        "47 行中的 "
    )
    text = page.run("""(() => { const bar = document.querySelector("g.slices[data-what=messages] rect");
        bar.dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
        return document.getElementById("readout-messages").textContent; })()""")
    assert " 消息 " in text
    assert page.run("""document.querySelector("#queues input").placeholder""") == "筛选这些行"


def test_page_is_read_without_its_script(page: Page, report: Path) -> None:
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.show(report, width=DESKTOP)
        assert page.complaints == []
        text = page.run("document.body.innerText")
    finally:
        page.send("Emulation.setScriptExecutionDisabled", value=False)
    for words in ("What to do next", "Payments", "queues of", "bad-", "Message sizes"):
        assert words in text
    assert "Filter these rows" not in text


def test_page_is_printed(page: Page, report: Path) -> None:
    page.show(report, width=DESKTOP)
    page.send("Emulation.setEmulatedMedia", media="print", features=[])
    seen = """[...document.querySelectorAll({!r})].filter((one) => one.getClientRects().length).length"""
    assert page.run(seen.format("nav, .tools")) == 0
    assert page.run(seen.format("h2")) == 9
    assert page.run("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_hostile_names_do_nothing(page: Page, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(render(gather(GatherOptions(hostile_store(tmp_path / "store")))))
    page.show(path, width=width)
    _assert_rendered(page, path, dark=False)
    assert page.run("window.broken") is None
    assert page.run("document.scripts.length") == 2
    names = page.run("""[...document.querySelectorAll("#topics tbody bdi")].map((one) => one.textContent)""")
    assert {name for name in HOSTILE if name.isprintable()} <= set(names)
    assert len(names) == len(HOSTILE)


def test_the_policy_stops_what_would_slip_through(page: Page, tmp_path: Path) -> None:
    html = render(many_queues(2)).replace(
        b"</main>",
        b"<script>window.broken=1</script><img src=x onerror=window.broken=1>"
        b"<img src=http://127.0.0.1:9/x.png></main>",
    )
    path = tmp_path / "report.html"
    path.write_bytes(html)
    page.show(path, width=DESKTOP)
    assert page.run("window.broken") is None
    assert any("Content Security Policy" in one for one in page.complaints)


def test_thousands_of_queues_stay_usable(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(render(many_queues(100_000)))
    page.show(path, width=PHONE)
    assert page.run("document.querySelectorAll('#queues tbody tr').length") == 1000
    milliseconds = page.run("""(() => { const begun = performance.now();
        document.querySelector("#queues thead button").click();
        document.body.getBoundingClientRect();
        return performance.now() - begun; })()""")
    assert milliseconds < 2000
    assert page.run(_TOO_WIDE) == []
