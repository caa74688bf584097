"""The option ``where``: filters as text, so that they reach the source whatever Spark does with its own.

It is a JSON list of conditions that must all hold: ``[["topic", "=", "orders"], ["queueId", "in", [0, 1]]]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from reput.errors import SettingsError
from reput.newer_python import time_of_iso
from reput.source.filters import Wanted, milliseconds
from reput.spark.stack import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

#: A column, how it is compared, and with what; nothing for ``is not null``.
Condition = Sequence[Any]

_COMPARED: Mapping[str, Callable[[tuple[str, ...], Any], Filter]] = {
    "=": EqualTo,
    "==": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "in": lambda path, values: In(path, tuple(values)),
}
_IS_NOT_NULL = "is not null"
_FORM = '[["column", "=", value], …], compared by ' + ", ".join((*_COMPARED, _IS_NOT_NULL))


def text_of(conditions: Iterable[Condition]) -> str:
    """The option's text.

    Raises:
        SettingsError: a value is neither text, number nor a time with its zone, nor some of them.
    """
    return json.dumps([[*condition[:2], *map(_plain, condition[2:])] for condition in conditions])


def parse(text: str | None, columns: Mapping[str, str]) -> Wanted:
    """What the option asks for.

    Args:
        text: the option; None for all.
        columns: those that can be asked, with their types.

    Raises:
        SettingsError: it can't be read, or asks for something else.
    """
    wanted = Wanted()
    if text is None:
        return wanted
    try:
        conditions = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError("where can't be read", expected=_FORM, found=repr(text)) from error
    if not isinstance(conditions, list):
        raise SettingsError("where is no list", expected=_FORM, found=repr(text))
    for condition in conditions:
        narrower = wanted.and_(_filter(condition, columns), columns)
        if narrower is None:
            raise SettingsError(
                "where compares with something of another type",
                expected="text, whole numbers, or times such as 2026-01-31T08:00:00Z",
                found=json.dumps(condition),
            )
        wanted = narrower
    return wanted


def _filter(condition: Any, columns: Mapping[str, str]) -> Filter:
    is_list = isinstance(condition, list) and len(condition) in (2, 3) and isinstance(condition[1], str)
    how = condition[1].strip().lower() if is_list else ""
    if len(condition if is_list else ()) != (2 if how == _IS_NOT_NULL else 3) or (
        how != _IS_NOT_NULL and how not in _COMPARED
    ):
        raise SettingsError("where has no such condition", expected=_FORM, found=json.dumps(condition))
    name = condition[0]
    if not isinstance(name, str) or name not in columns:
        raise SettingsError(
            "where can't ask for this column",
            expected=f"one of {', '.join(columns)}" if columns else "no where, with this content",
            found=name,
            next_step="Ask Spark for the others, with .where()",
        )
    if how == _IS_NOT_NULL:
        return IsNotNull((name,))
    value = condition[2]
    if (how == "in") != isinstance(value, list):
        raise SettingsError("where has no such condition", expected=_FORM, found=json.dumps(condition))
    if columns[name] == "timestamp":
        value = [_time(one) for one in value] if isinstance(value, list) else _time(value)
    return _COMPARED[how]((name,), value)


def _time(value: object, what: str = "where") -> datetime:
    try:
        time = time_of_iso(value) if isinstance(value, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise SettingsError(
            f"{what} has a time that can't be told",
            expected="a date and time with its zone, e.g. 2026-01-31T08:00:00Z",
            found=value,
        )
    return time


def moment(text: str, what: str) -> int:
    """A time as a condition has it, in ms, rounded up.

    Args:
        what: is called so in the error.

    Raises:
        SettingsError: it can't be told.
    """
    return milliseconds(_time(text, what))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str | int):
        return value
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    raise SettingsError(
        "where compares with something of another type",
        expected="text, a whole number, a time, or some of one sort",
        found=repr(value),
    )
