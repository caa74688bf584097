"""JSON as a broker's fastjson writes and takes it, as far as the files below ``config/`` need it.

fastjson writes whole numbers as keys of a map without quotes (``{0:5,1:7}``), takes control characters inside
strings, and Java puts U+FFFD in the place of what isn't UTF-8 (``ConfigManager``, ``MixAll.file2String``;
rocketmq-all-4.9.7, 5.3.3, and 5.5.0, which has fastjson2, by running it).
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from reput.errors import SettingsError
from reput.store.reading import read_file

T = TypeVar("T")

# A string is passed over as a whole: what looks like a key in it is none.
_STRING_OR_KEY = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|([{,]\s*)(-?\d+)(?=\s*:)', re.ASCII | re.DOTALL)


def parse(data: bytes) -> object:
    """The document in a file.

    Raises:
        ValueError: it is none; where and why.
        RecursionError: it is too deep.
    """
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return json.loads(_STRING_OR_KEY.sub(_quoted, text), strict=False)


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found[2] is None else f'{found[1]}"{found[2]}"'


def of_either(
    path: Path,
    what: str,
    take: Callable[[bytes, Path], T],
    absent: tuple[type[OSError], ...] = (FileNotFoundError,),
) -> T | None:
    """What a file says, or the ``.bak`` beside it (``ConfigManager.load``); None when neither holds a byte.

    Args:
        what: is in it, for people.
        take: reads the bytes of one of them.
        absent: by these errors there is no file.

    Raises:
        SettingsError: neither can be read, or ``take`` refuses, and at least one is there.
    """
    broken: SettingsError | None = None
    for one in (path, path.with_name(path.name + ".bak")):
        try:
            data = read_file(one)
            if data:
                return take(data, one)
        except absent:
            continue
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                continue  # File.exists() says no
            found = SettingsError(f"this file of {what} can't be read", path=one, found=error.strerror)
            broken = broken or found
        except SettingsError as error:
            broken = broken or error
    if broken is not None:
        raise broken
    return None
