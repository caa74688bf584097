"""broker.conf as a broker reads it: how a text becomes a value, and which keys a release knows.

Source: ``MixAll.properties2Object`` (rocketmq-all-4.9.7, 5.3.3).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from reput.config.dialect import Dialect
from reput.config.java_properties import Property, parse
from reput.errors import SettingsError
from reput.store.reading import read_file

INT_MAX = 2**31 - 1
#: Keys that had one p less up to 4.5.1 (``MessageStoreConfig``).
_MAPED = {f"mappedFileSize{what}": f"mapedFileSize{what}" for what in ("CommitLog", "ConsumeQueue")}
INTEGER = re.compile(r"[+-]?[0-9]{1,99}", re.ASCII)
#: What String.trim takes away: every character up to the space.
JAVA_WHITE = "".join(map(chr, range(0x21)))


class BrokerConf:
    """broker.conf as one version of the broker sees it: keys that it doesn't know are not there."""

    def __init__(self, entries: Mapping[str, Property], path: Path | None, rules: Dialect) -> None:
        self.entries = entries
        self.path = path
        self.rules = rules

    @property
    def maped(self) -> list[str]:
        """Its keys as releases up to 4.5.1 spell them."""
        return [key for key in _MAPED.values() if key in self.entries]

    @property
    def is_maped(self) -> bool:
        """Whether it is spelled as up to 4.5.1, and not in the new way as well."""
        return bool(self.maped) and not any(key in self.entries for key in _MAPED)

    def spelled(self, key: str) -> str:
        """A key as this release spells it."""
        return _MAPED.get(key, key) if self.rules.maped_settings else key

    def respelled(self, key: str) -> str:
        """A key that this release spells otherwise, as it does."""
        return next((new if key == old else old for new, old in _MAPED.items() if key in (new, old)), key)

    @property
    def passed_over(self) -> list[str]:
        """Those of its keys that this release spells otherwise, and doesn't read."""
        return [key for key in _MAPED if key in self.entries] if self.rules.maped_settings else self.maped

    def entry(self, key: str) -> Property | None:
        """The line of a key; None without one, or where this release doesn't know it."""
        key = self.spelled(key)
        return None if key in self.rules.unknown_settings else self.entries.get(key)

    def text(self, key: str) -> str | None:
        """A String setter's value."""
        entry = self.entry(key)
        if entry is None:
            return None
        return entry.value.strip(JAVA_WHITE) if self.rules.trims_text_settings else entry.value

    def integer(self, key: str, default: int, *, least: int, most: int = INT_MAX) -> int:
        """An int setter's value (Integer.parseInt): no white space around it."""
        value = self.optional_integer(key, default=default, least=least, most=most)
        return default if value is None else value

    def optional_integer(
        self, key: str, *, default: int | None = None, least: int, most: int = INT_MAX
    ) -> int | None:
        """The same; None without a line. ``default`` is told to the user alone."""
        entry = self.entry(key)
        if entry is None:
            return None
        expected = f"a whole number from {least} to {most}, nothing around it"
        if INTEGER.fullmatch(entry.value) is None or not -INT_MAX - 1 <= int(entry.value) <= INT_MAX:
            instead = "its default" if default is None else f"its default, {default}"
            raise self.error(
                entry,
                f"{key} isn't a number",
                expected,
                f"The broker passes over such a value without a word and uses {instead}: "
                "write the number that it should use, or remove the line.",
            )
        value = int(entry.value)
        if not least <= value <= most:
            raise self.error(entry, f"{key} is out of range", expected, "No broker can run with it.")
        return value

    def switch(self, key: str, default: bool) -> bool:
        """A boolean setter's value (Boolean.parseBoolean), but only what is surely meant."""
        entry = self.entry(key)
        if entry is None:
            return default
        if entry.value.lower() not in ("true", "false"):
            raise self.error(
                entry,
                f"{key} isn't a switch",
                "true or false, nothing around it",
                "The broker takes everything but true for false: write which one is meant.",
            )
        return entry.value.lower() == "true"

    def error(
        self, entry: Property, problem: str, expected: str, next_step: str | None = None
    ) -> SettingsError:
        """What is wrong with a line."""
        return SettingsError(
            f"line {entry.line}: {problem}",
            path=self.path,
            expected=expected,
            found=f"{entry.key}={entry.value!r}",
            next_step=next_step,
        )


def read(path: Path) -> dict[str, Property]:
    """What stands in a broker.conf.

    Raises:
        SettingsError: it can't be read.
    """
    try:
        data = b"" if str(path) == os.devnull else read_file(path)
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError("this broker.conf can't be read", path=path, found=found) from error
    return parse(data, path)
