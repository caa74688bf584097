"""Times on the command line: what their words mean, in which zone, and how they are shown."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from reput.errors import SettingsError
from reput.newer_python import UTC, time_of_iso

# From 2001 to 2286. Fewer or more digits are seconds, or a date that somebody wrote in another order.
_MS_DIGITS = 13
_SECONDS = re.compile("[0-9]{10}", re.ASCII)
_AGO = re.compile("([0-9]{1,9})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DAYS_AGO = {"today": 0, "yesterday": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: None for the machine's own.
_zone: tzinfo | None = None


def use_zone(name: str | None) -> None:
    """Choose the zone in which times are read and shown; None for the machine's own, which TZ names.

    Raises:
        SettingsError: no such zone is known here.
    """
    global _zone
    try:
        _zone = None if name is None else UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise SettingsError(
            "--tz can't be understood", expected="a zone such as UTC or Asia/Shanghai", found=name
        ) from error


def time_of(option: str, text: str | None) -> int | None:
    """Ms since 1970 of a time, in one of the forms that the help of ``--since`` names.

    Raises:
        SettingsError: it is none of these; names the option.
    """
    if text is None:
        return None
    if text == "0" or (text.isascii() and text.isdecimal() and len(text) == _MS_DIGITS):
        return int(text)
    try:
        when = _said(text)
    except (ValueError, OverflowError):
        raise SettingsError(
            f"{option} can't be understood",
            expected=f"ms since 1970 in {_MS_DIGITS} digits, 2026-11-21T10:00:00.123Z, 2026/11/21 10:00, "
            "10m, today or yesterday",
            found=text,
            next_step="Seconds since 1970 are to be multiplied by 1000" if _SECONDS.fullmatch(text) else None,
        ) from None
    since = when - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def zone() -> tzinfo | None:
    """The zone in which times are read and shown; None for the machine's own."""
    return _zone


def _said(text: str) -> datetime:
    now = _here(datetime.now(UTC))
    if text == "now":
        return now
    if text in _DAYS_AGO:
        day = now.date() - timedelta(days=_DAYS_AGO[text])
        return _in_zone(datetime.combine(day, datetime.min.time()))
    if ago := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    return _in_zone(time_of_iso(text.replace("/", "-")))


def _in_zone(when: datetime) -> datetime:
    """A time as said; one without a zone is in the chosen one."""
    if when.tzinfo is not None:
        return when
    return when.astimezone() if _zone is None else when.replace(tzinfo=_zone)


def _here(when: datetime) -> datetime:
    return when.astimezone(_zone)


def moment(ms: int) -> str:
    """A time with its zone, to the millisecond; as it is, where that is no time that a calendar has."""
    try:
        text = _here(datetime.fromtimestamp(ms / 1000, UTC)).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def second(ms: int) -> str:
    """A time to the second, in a column whose head names the zone; otherwise as :func:`moment`."""
    try:
        return f"{_here(datetime.fromtimestamp(ms // 1000, UTC)):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(ms)


def asked_times(since: int | None, until: int | None) -> str:
    """Which half-open range of times was asked for: ``from … on``, ``before …`` or ``from … to …``."""
    if since is None:
        return "" if until is None else f"before {moment(until)}"
    return f"from {moment(since)} {'on' if until is None else f'to {moment(until)}'}"


def held_times(times: tuple[int, int] | None) -> str:
    """Which times a log has, of its first and last message; None without one."""
    return "the log has none" if times is None else f"the log has {moment(times[0])} to {moment(times[1])}"


def zone_name() -> str:
    """The zone of times that don't name it themselves: ``UTC``, ``+08:00``, or by name with summer time."""
    now = datetime.now(UTC)
    offset, *others = {f"{_here(now + timedelta(days=days)):%z}" for days in (0, 91, 182, 273)}
    if others:
        return "/".join(time.tzname) if _zone is None else str(_zone)
    return "UTC" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}"
