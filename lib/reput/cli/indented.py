"""Documents with indented lines, as ``json.dumps(value, indent=2)`` writes them, in less time.

With an indent Python's encoder makes each token by itself. Here its one in C writes whatever holds no other
list or object, such as the row of a queue, with the line breaks as its separators.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache

_INDENT = "  "
#: What is written in one word; a list or an object only without anything in it.
_PLAIN = frozenset({str, int, float, bool, type(None)})
_HOLDS = (dict, list, tuple)


def indented(value: object) -> str:
    """A document's text.

    Raises:
        TypeError, ValueError: as ``json.dumps``.
    """
    return _text(value, 0)


def _text(value: object, depth: int) -> str:
    inside: Iterable[object]
    if isinstance(value, dict):
        inside, ends = value.values(), "{}"
    elif isinstance(value, (list, tuple)):
        inside, ends = value, "[]"
    else:
        return json.dumps(value)
    begin = "\n" + _INDENT * (depth + 1)
    if _PLAIN.issuperset(map(type, inside)) or not any(isinstance(one, _HOLDS) and one for one in inside):
        if not value:
            return ends
        text = f"{begin}{_encoder(depth)(value)[1:-1]}"
    elif isinstance(value, dict):
        named = (f"{_key(key)}: {_text(one, depth + 1)}" for key, one in value.items())
        text = begin + f",{begin}".join(named)
    else:
        text = begin + f",{begin}".join([_text(one, depth + 1) for one in inside])
    return f"{ends[0]}{text}\n{_INDENT * depth}{ends[1]}"


@cache
def _encoder(depth: int) -> Callable[[object], str]:
    """What writes a list or an object that holds no other, without the line breaks at its ends."""
    encoder = json.JSONEncoder(separators=(",\n" + _INDENT * (depth + 1), ": "))
    return encoder.encode


def _key(key: object) -> str:
    """A name; numbers are names, too, as ``json.dumps`` has them."""
    return json.dumps(key) if isinstance(key, str) else json.dumps({key: 0})[1:-4]
