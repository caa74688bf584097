"""The pages as a site, by Sphinx: ``make site`` (docs/adr/0042-the-docs-as-a-site.md).

The pages are those that a reader of the repository sees; nothing here says again what stands in them. What
docs/README.md lists, in its order, is the navigation. Pages ``X.zh-CN.md`` are in the same site, and the same
search finds them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).parents[1]
CHINESE = ".zh-CN"

project = "reput"
author = "the authors of reput"
html_title = "reput"
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
#: Beside docs/: what other pages lead to.
OTHERS = [f"tests/{name}/README" for name in ("golden", "earlier", "vendored")]
include_patterns = ["*.md", "docs/**.md", *(f"{page}.md" for page in OTHERS)]
#: Lexers stumble over the … that stands for what varies; and a page may leave out a level of headings.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
#: A link to a heading that isn't there is a warning, and with -W an error.
myst_heading_anchors = 6
myst_enable_extensions = ["html_image"]
nitpicky = True
smartquotes = False

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_permalinks = True
html_static_path: list[str] = []
html_theme_options = {"top_of_page_buttons": []}

_ITEM = re.compile(r"^- .*(?:\n  .*)*$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)")
#: Listed by docs/data/decisions.md, and below docs/README.md in the navigation: they are many.
_BELOW = "Decisions"


class SearchBoth(SearchEnglish):
    """Words, and of Chinese text each two characters that stand side by side, for it has no spaces."""

    lang = "en"
    _chinese = re.compile("([\u4e00-\u9fff]+)")
    js_splitter_code = r"""
var splitQuery = (query) => query
    .split(/[^\p{Letter}\p{Number}_\p{Emoji_Presentation}]+/gu)
    .flatMap((word) => word.split(/([\u4e00-\u9fff]+)/))
    .flatMap((word) => /^[\u4e00-\u9fff]{3,}$/.test(word)
        ? Array.from({length: word.length - 1}, (_, at) => word.slice(at, at + 2))
        : [word])
    .filter((word) => word);
"""

    def split(self, input: str) -> list[str]:  # noqa: A002 - as Sphinx calls it
        """The words of a text."""
        found: list[str] = []
        for word in super().split(input):
            for part in filter(None, self._chinese.split(word)):
                if self._chinese.match(part):
                    found += [part, *(part[at : at + 2] for at in range(len(part) - 1))]
                else:
                    found.append(part)
        return found


def _sections() -> dict[str, list[str]]:
    """The pages that docs/README.md lists by the headings above them; each page once."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for section in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        links = (page for line in _ITEM.findall(text) for page in _PAGE.findall(line))
        pages = dict.fromkeys(
            page.removesuffix(".md") for page in links if CHINESE not in page and page[0] != "."
        )
        found[heading] = [page for page in pages if page not in seen]
        seen |= pages.keys()
    return found


def _tree(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation to the pages that lead to others."""
    sections = _sections()
    if page == "docs/README":
        below = sorted(f"adr/{path.stem}" for path in (ROOT / "docs" / "adr").glob("*.md"))
        source[0] += _tree(_BELOW, below) if below else ""
    elif page == root_doc:
        for heading, pages in sections.items():
            source[0] += _tree(heading, [f"docs/{one}" for one in pages])
        others = sorted(path.stem for path in ROOT.glob("*.md") if CHINESE not in path.name)
        others.remove(root_doc)
        source[0] += _tree("This project", ["docs/README", *others, *OTHERS])
        chinese = sorted(
            path.relative_to(ROOT).as_posix().removesuffix(".md")
            for place in (ROOT, ROOT / "docs")
            for path in place.rglob(f"*{CHINESE}.md")
            if place != ROOT or path.parent == ROOT
        )
        if chinese:
            source[0] += _tree("中文", chinese)


def _directories(app: Sphinx, doctree: document) -> None:
    """Leave links to directories of the repository their text: files are copied into a site, not these."""
    for link in list(doctree.findall(pending_xref)):
        place = Path(app.env.doc2path(link["refdoc"])).parent / link["reftarget"]
        if place.is_dir() and place.resolve().is_relative_to(ROOT):
            link.replace_self(link.children)


def _language(_app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Say of a page in Chinese that it is."""
    if page.endswith(CHINESE):
        context["language"] = "zh-CN"


def _front(app: Sphinx, error: Exception | None) -> None:
    """Lead from index.html to the README."""
    if error is None:
        to = f"{root_doc}.html"
        page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={to}">'
        page += f'<title>reput</title><a href="{to}">reput</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_search_language(SearchBoth)
    app.connect("source-read", _navigation)
    app.connect("doctree-read", _directories)
    app.connect("html-page-context", _language)
    app.connect("build-finished", _front)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
