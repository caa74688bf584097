"""What a browser shows of the composition, as one picture."""

from __future__ import annotations

import base64
import io
import json
import time
from pathlib import Path

from PIL import Image

from tests.compose.podman import ContainersError
from tests.compose.story import JUPYTER, MASTER, METRICS, TOKEN
from tests.report.browser import Page, browsing

_WIDTH = 1000
#: "Restart the kernel and run all cells", and yes.
_RUN_ALL = (
    '.jp-NotebookPanel-toolbar [data-jp-item-name="restart-and-run"] jp-button',
    ".jp-Dialog .jp-mod-accept",
)
#: Without the question whether one wants news.
_HAS_RUN = """
(document.querySelector('.Toastify') || document.head).style.display = 'none',
document.body.innerText.includes('/store/broker')
"""
_ONLY_REPUTS = """
document.body.style = 'white-space: pre; font: 13px monospace',
document.body.innerText = document.body.innerText.split('\\n')
    .filter(line => line.startsWith('reput_') && !line.includes('bucket')).join('\\n')
"""
#: Title, address, height, what says that it is there, what is clicked then, what says that it is done.
_PAGES = (
    (
        "Spark's master",
        f"{MASTER}/",
        560,
        "document.body.innerText.includes('Running Applications (1)')",
        (),
        "true",
    ),
    (
        "Jupyter: offsets.ipynb, run on the broker's store",
        f"{JUPYTER}/lab/tree/offsets.ipynb?token={TOKEN}",
        700,
        "document.querySelectorAll('.jp-Notebook .jp-OutputArea-output').length > 3",
        _RUN_ALL,
        _HAS_RUN,
    ),
    (
        "Metrics",
        f"{METRICS}/metrics",
        300,
        "document.body.innerText.includes('reput_')",
        (),
        _ONLY_REPUTS,
    ),
)
_SECONDS = 120


def take(place: Path, picture: Path) -> None:
    """Write a PNG of all three pages, one below the other.

    Raises:
        ContainersError: a page isn't there in time.
    """
    shown = []
    with browsing(place / "browser") as browser:
        for title, address, height, there, clicked, done in _PAGES:
            page = browser.open()  # one that asks whether it may be left isn't left
            _open(page, address, height, there)
            for selector in clicked:
                _click(page, selector)
            _wait(page, done)
            shown.append((title, base64.b64encode(page.picture()).decode()))
        html = "".join(
            f'<p>{title}</p><img src="data:image/png;base64,{data}" width="{_WIDTH}">'
            for title, data in shown
        )
        style = "body{margin:0;font:16px sans-serif}p{margin:8px}img{display:block;border:1px solid #999}"
        whole = place / "pictures.html"
        whole.write_text(f"<style>{style}</style>{html}", encoding="utf-8")
        page = browser.open()
        _open(page, whole.as_uri(), 900, "[...document.images].every(one => one.complete)")
        # Few colours, for a small file.
        Image.open(io.BytesIO(page.picture(whole=True))).convert("RGB").quantize(48).save(
            picture, optimize=True
        )


def _open(page: Page, address: str, height: int, there: str) -> None:
    size = {"width": _WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.send("Emulation.setDeviceMetricsOverride", **size)
    page.send("Page.navigate", url=address)
    _wait(page, f"document.readyState === 'complete' && {there}")


def _click(page: Page, selector: str) -> None:
    """As a mouse would."""
    found = f"document.querySelector({json.dumps(selector)})"
    _wait(page, found)
    box = page.run(
        f"(one => ({{x: one.x + one.width / 2, y: one.y + one.height / 2}}))({found}.getBoundingClientRect())"
    )
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)


def _wait(page: Page, holds: str) -> None:
    until = time.monotonic() + _SECONDS
    while not page.run(f"Boolean(({holds}))"):
        if time.monotonic() > until:
            raise ContainersError(f"not so in the browser after {_SECONDS} s: {holds}")
        time.sleep(0.5)
    time.sleep(2)
