"""The broker's own files below ``config/``, as far as they decide whether it starts.

Source: ``ConfigManager.load``, ``BrokerController`` (rocketmq-all-4.9.7, 5.3.3): a file that can't be read is
tried in its backup, and when that can't be read either, the broker doesn't start. A missing or empty file and
a missing or empty backup are no trouble.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from reput.format import names
from reput.recovery.problem import Problem
from reput.settings import StoreSettings

#: What a broker loads before or after its store, the same in 4.9.7 and 5.3.3.
FILES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")

# fastjson writes whole numbers as keys without quotes.
_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)", re.ASCII)


def config_problems(settings: StoreSettings) -> Iterator[Problem]:
    """Files that keep the broker from starting, and those that it reads from their backup."""
    for name in FILES:
        path = settings.root / names.CONFIG / name
        broken = _broken(path)
        if broken is None:
            continue
        backup = path.with_name(name + ".bak")
        stops = _broken(backup) is not None
        yield Problem(
            kind="broken-config",
            path=str(path),
            expected="a JSON object",
            found=broken,
            outcome="its .bak can't be read either, and the broker doesn't start"
            if stops
            else "the broker takes its .bak, or nothing when there is none",
            next_step="Bring the file back from a copy, or move it and its .bak away to go on without them.",
            stops=stops,
        )


def _broken(path: Path) -> str | None:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None  # File.exists() says no
    except OSError as error:
        return error.strerror
    if not text:
        return None
    try:
        found = _parsed(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None if isinstance(found, dict) else type(found).__name__


def _parsed(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return json.loads(_BARE_KEY.sub(r'\1"\2"\3', text), strict=False)
