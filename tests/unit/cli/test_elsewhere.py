"""Commands for other hosts: the same options come out of their words; what they print is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reput.cli import app as cli
from reput.cli.many import command, result
from reput.errors import ReputError, StoreError
from reput.job.many import Job, Place
from reput.job.options import RebuildOptions
from reput.spark.command import Ended
from reput.verify.plan import VerifyOptions

PLACE = Place(Path("/a store"), "h")
CHECK = Job(PLACE, VerifyOptions(PLACE.path))


@pytest.mark.parametrize(
    "options",
    [
        RebuildOptions(PLACE.path, Path("/o")),
        RebuildOptions(
            PLACE.path,
            Path("/o"),
            broker_conf=Path("/c"),
            rocketmq_version="5.3.3",
            index=False,
            known_topics_only=True,
            max_bytes_per_trigger=12345,
        ),
        RebuildOptions(
            PLACE.path,
            Path("/o"),
            broker_conf=Path("/c"),
            rocketmq_version="5.3.3",
            conf_by_hand=False,
            version_by_hand=False,
        ),
        VerifyOptions(PLACE.path),
        VerifyOptions(PLACE.path, broker_conf=Path("/c"), rocketmq_version="5.3.3", index=False),
    ],
)
def test_the_same_options_come_out(
    options: RebuildOptions | VerifyOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def take(found: object, *_: object, **__: object) -> None:
        seen.append(found)
        raise StoreError("enough")

    monkeypatch.setattr("reput.job.rebuild", take)
    monkeypatch.setattr("reput.diagnosis.check.check", take)
    made = command(Job(PLACE, options), 3)
    done = CliRunner().invoke(cli.app, made.words, env=dict(made.variables))
    assert done.exit_code == 2
    assert seen == [options]
    assert "local[3]" in made.words
    assert "--master" not in command(Job(PLACE, options), None).words


def document(**facts: Any) -> str:
    return json.dumps({"command": "check", "schema_version": 2, "exit_code": 0, "next_steps": [], **facts})


def test_a_document_is_a_result() -> None:
    for code in (0, 1, 3, 4, 5):
        found = result(CHECK, Ended(code, document(exit_code=code, messages=3), ()))
        assert (found.exit_code, found.to_dict()) == (code, {"messages": 3, "next_steps": []})


def test_an_error_is_one() -> None:
    error = StoreError("no log", path="/s", offset=7, expected=1, found=2, next_step="Mount it")
    with pytest.raises(ReputError) as raised:
        result(CHECK, Ended(2, document(**error.document()), ()))
    assert str(raised.value) == f"on host h: {error}"


@pytest.mark.parametrize(
    ("ended", "found"),
    [
        (Ended(0, "", ()), "exit code 0"),
        (Ended(0, "[]", ()), "exit code 0"),
        (Ended(0, document()[:-1], ()), "exit code 0"),
        (Ended(1, document(), ()), "exit code 1"),
        (Ended(0, document(exit_code=1), ()), "exit code 0"),
        (Ended(0, document(command="rebuild"), ()), "exit code 0"),
        (Ended(0, document(schema_version=3), ()), "exit code 0"),
        (Ended(0, "{}", ()), "exit code 0"),
        (Ended(6, document(exit_code=6), ()), "exit code 6"),
        (Ended(130, "", ("reput: interrupted",)), "exit code 130; reput: interrupted"),
        (Ended(-9, document(), ()), "ended by SIGKILL"),
        (Ended(-99, "", ()), "ended by signal 99"),
    ],
)
def test_anything_else_is_none(ended: Ended, found: str) -> None:
    with pytest.raises(ReputError, match="reput check ended without a result") as raised:
        result(CHECK, ended)
    assert (raised.value.found, raised.value.path, raised.value.host) == (found, "/a store", "h")
