"""A headless Chromium, spoken to by its DevTools protocol over a pair of pipes: no port, no library.

``--remote-debugging-pipe`` reads commands from descriptor 3 and writes answers and events to descriptor 4,
each a JSON document that ends with a NUL byte.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # 64 MiB in a container
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_SECONDS = 180
#: Gives the pipes the numbers that the protocol asks for, then becomes the browser.
_RENUMBERED = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, source in zip((3, 4), high):
    os.dup2(source, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def executable() -> str:
    """The browser: ``$CHROME``, or the first one found.

    Raises:
        AssertionError: there is none; ``make browser`` says what to install.
    """
    for name in (os.environ.get("CHROME"), *NAMES):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise AssertionError(
        f"no browser: none of {', '.join(NAMES)} is there; run `make browser`, or set CHROME"
    )


@dataclass
class Page:
    """A page that is open.

    Attributes:
        requests: addresses that it asked for.
        complaints: what was written to its console, and errors.
    """

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **parameters)

    def show(
        self, path: Path, *, width: int, height: int = 900, dark: bool = False, scale: float = 1
    ) -> None:
        """Load a file, in a window of this size."""
        self.requests.clear()
        self.complaints.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.browser.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        self.browser.wait(self.session, "Page.loadEventFired")
        # That may have been said of the page before, if it was still on its way.
        there = f"document.readyState === 'complete' && location.href === {json.dumps(path.as_uri())}"
        until = time.monotonic() + _SECONDS
        while not self.run(there):
            assert time.monotonic() < until, "the page isn't loaded"
            time.sleep(0.01)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; its policy doesn't hold for it."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def hear(self, event: dict[str, Any]) -> None:
        method, told = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(one.get("value")) for one in told["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])


class Browser:
    """The process and its two pipes."""

    def __init__(self, profile: Path) -> None:
        read_by_it, self._write = os.pipe()
        self._read, written_by_it = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _RENUMBERED,
                str(read_by_it),
                str(written_by_it),
                executable(),
                *_OPTIONS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(read_by_it, written_by_it),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._pages: dict[str, Page] = {}
        self.events: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)

    def open(self) -> Page:
        target = self.send("Target.createTarget", None, url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", None, targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        return page

    def send(self, method: str, session: str | None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError("the browser ended")

    def wait(self, session: str, method: str) -> None:
        def is_it(event: dict[str, Any]) -> bool:
            return event.get("sessionId") == session and event["method"] == method

        if any(is_it(event) for event in self.events):
            return
        for message in self._messages():
            if "method" in message and is_it(message):
                return

    def _messages(self) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._rest:
                first, _, self._rest = self._rest.partition(b"\0")
                message = json.loads(first)
                if "method" in message:
                    self.events.append(message)
                    page = self._pages.get(message.get("sessionId", ""))
                    if page is not None:
                        page.hear(message)
                yield message
            assert self._selector.select(max(until - time.monotonic(), 0)), "the browser doesn't answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece

    def close(self) -> None:
        for descriptor in (self._write, self._read):
            os.close(descriptor)
        self._selector.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile."""
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
