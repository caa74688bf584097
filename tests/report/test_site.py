"""The docs as a site: built strictly, read from its folder, without network, on a desk and a phone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.report.browser import Page, browsing

ROOT = Path(__file__).parents[2]
DESKTOP, PHONE = 1440, 390
#: A page in Chinese, whatever others there are.
CHINESE = "docs/probe.zh-CN.md"
TEXT = "# 试验\n\n恢复被截断的索引文件。[英文](quickstart.md)\n"


def build(tree: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    return subprocess.run(
        [*command, "-c", str(tree / "docs"), str(tree), str(out)],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, and what they lead to."""
    tree = tmp_path_factory.mktemp("site") / "tree"
    others = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/README.md")]
    for name in ("docs", "conf", "notebooks", *others):
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    for path in (*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "docker-compose.yml"):
        shutil.copy(path, tree / path.name)
    (tree / CHINESE).write_text(TEXT, encoding="utf-8")
    return tree


@pytest.fixture(scope="module")
def site(tree: Path) -> Path:
    done = build(tree, tree.parent / "out")
    assert done.returncode == 0, done.stderr
    return tree.parent / "out"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser.open()


def found(page: Page, site: Path, words: str, *, width: int) -> list[str]:
    """The pages that a search finds, as a reader of any page gives it."""
    page.show(site / "docs" / "quickstart.html", width=width)
    page.run(f"""(() => {{
        const search = document.querySelector("form.sidebar-search-container input[name=q]");
        search.value = {json.dumps(words)};
        search.form.submit();
    }})()""")
    until = time.monotonic() + 30
    said = "document.querySelector('#search-results .search-summary, #search-results p')?.textContent ?? ''"
    answer = ""
    while not answer.startswith(("Search finished", "Your search did not")):
        assert time.monotonic() < until, answer
        time.sleep(0.05)
        with suppress(AssertionError):  # while it goes from one page to the other there is nothing to ask
            answer = str(page.run(said))
    listed = page.run("[...document.querySelectorAll('#search-results ul.search a')].map((one) => one.href)")
    return [link.partition("#")[0].partition("?")[0].removeprefix(f"{site.as_uri()}/") for link in listed]


@pytest.mark.proof
@pytest.mark.slow
def test_every_page_is_there_and_a_search_finds_it_in_both_languages(page: Page, site: Path) -> None:
    pages = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    there = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert pages <= there
    assert {"README.html", "CHANGELOG.html", "docs/probe.zh-CN.html"} <= there
    assert 'lang="zh-CN"' in (site / "docs" / "probe.zh-CN.html").read_text(encoding="utf-8")
    assert 'lang="en"' in (site / "docs" / "probe.html").with_name("quickstart.html").read_text(
        encoding="utf-8"
    )

    assert "url=README.html" in (site / "index.html").read_text(encoding="utf-8")
    assert "docs/catalog.html" in found(page, site, "ledger", width=DESKTOP)
    assert found(page, site, "nonesuchword", width=DESKTOP) == []
    for words in ("索引文件", "截断", "被截断的索引"):
        assert "docs/probe.zh-CN.html" in found(page, site, words, width=PHONE)
    assert "docs/probe.zh-CN.html" not in found(page, site, "火星", width=PHONE)
    assert all(address.startswith(("file:", "data:")) for address in page.requests)


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_pages_fit_a_desk_and_a_phone(page: Page, site: Path, width: int) -> None:
    for name in (
        "README",
        "docs/howto",
        "docs/data/recovery-matrix",
        "docs/catalog",
        "docs/formats/commitlog",
    ):
        page.show(site / f"{name}.html", width=width)
        assert page.run("innerWidth") == width, name
        assert page.run("document.documentElement.scrollWidth") <= width, name
        assert page.run("[...document.images].every((one) => one.complete && one.naturalWidth > 0)"), name
        seen = page.run("getComputedStyle(document.querySelector('.sidebar-drawer')).left")
        assert (seen == "0px" or not seen.startswith("-")) is (width == DESKTOP), seen
        assert page.complaints == []
        assert all(address.startswith(("file:", "data:")) for address in page.requests)


@pytest.mark.slow
def test_a_link_that_leads_nowhere_and_a_page_that_nobody_lists_fail(tree: Path, tmp_path: Path) -> None:
    small = tmp_path / "tree"
    (small / "docs").mkdir(parents=True)
    shutil.copy(tree / "docs" / "conf.py", small / "docs")
    (small / "README.md").write_text("# reput\n\n[one](docs/one.md#there), [gone](docs/gone.md)\n")
    (small / "docs" / "README.md").write_text("# Docs\n\n## Begin\n\n- [One](one.md)\n\n## Decisions\n\n")
    (small / "docs" / "one.md").write_text("# One\n\n## Here\n")
    (small / "docs" / "two.md").write_text("# Two\n")
    for wrong in ("gone.md", "there", "two.md"):
        done = build(small, tmp_path / "out")
        assert done.returncode != 0
        assert wrong in done.stderr, done.stderr
