"""Conditions of writes, as Google's object store knows them: by generation, not by ETag."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from reput.errors import UnsupportedError
from reput.remote.client import Objects


class _Google(BaseHTTPRequestHandler):
    """Google's XML API, as far as needed; one that is deaf doesn't know conditions of writes."""

    kept: ClassVar[dict[str, tuple[bytes, int]]] = {}
    writes: ClassVar[list[str | None]] = []
    deaf_to: ClassVar[str | None] = None

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        expected, (_, now) = self.headers["x-goog-if-generation-match"], self.kept.get(self.path, (b"", 0))
        self.writes.append(expected)
        is_deaf = self.deaf_to == ("create" if expected == "0" else "update")
        if expected is not None and int(expected) != now and not is_deaf:
            self._answer(412, b"")
            return
        self.kept[self.path] = data, now + 1001
        self._answer(200, b"")

    def do_GET(self) -> None:
        self._answer(200, self.kept[self.path][0])

    def _answer(self, status: int, body: bytes) -> None:
        generation = self.kept[self.path][1]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"e{generation}"')
        self.send_header("x-goog-generation", str(generation))
        self.send_header("Last-Modified", self.date_time_string())
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    monkeypatch.setattr(_Google, "kept", {})
    monkeypatch.setattr(_Google, "writes", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Google) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        key = {"gcs_base_url": f"http://127.0.0.1:{server.server_port}", "disable_oauth": True}
        key |= {"client_email": "", "private_key": "", "private_key_id": ""}
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        yield Objects("gs://bucket/table")
        server.shutdown()


def test_a_server_that_minds_generations_is_taken_and_asked_once(objects: Objects) -> None:
    version = objects.swap("note.json", b"note", None)
    objects.check_conditions("note.json", version)
    assert _Google.writes == ["0", "0", "1"]
    objects.check_conditions("note.json", version)
    assert _Google.writes == ["0", "0", "1"]
    found = objects.get("note.json")
    assert found is not None
    assert (found.data, found.version) == (b"note", version)


@pytest.mark.parametrize(("deaf_to", "named"), [("create", "If-None-Match"), ("update", "If-Match")])
def test_one_that_does_not_is_refused(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, deaf_to: str, named: str
) -> None:
    monkeypatch.setattr(_Google, "deaf_to", deaf_to)
    version = objects.swap("note.json", b"note", None)
    with pytest.raises(UnsupportedError, match=f"found {named} is ignored"):
        objects.check_conditions("note.json", version)
