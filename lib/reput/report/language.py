"""The language of a page.

Facts are in English, as ``--json`` prints them; a page in another language says them anew. Its catalogue,
``templates/LANGUAGE.toml``, has a text of that language beside each English one: what stands on the page
anyway, texts of facts, and words for what is counted. In a text ``{}`` stands for what is taken over as it
is, such as a name or a command, ``{n}`` for a number, and ``{t}`` for a text that is said anew, too. Texts
joined by commas or semicolons are found one by one. What isn't in the catalogue, such as the words of an
error, stays English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

from reput.newer_python import tomllib

#: Of pages; each but English has a catalogue.
LANGUAGES = ENGLISH, CHINESE = ("en", "zh")
#: As HTML names them.
TAGS = {ENGLISH: "en", CHINESE: "zh-CN"}

_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
_HOLE = re.compile(r"\{([nt]?)\}")
_FOUND = {"": "(.+?)", "n": r"(-?[0-9][0-9.,]*)", "t": "(.+?)"}
_COUNTED = re.compile(r"(-?[0-9][0-9,]*) (.+)")
_NAMED = re.compile(r"%\((\w+)\)s")
_JOINTS = {"; ": "；", ", ": "，"}  # noqa: RUF001 - as Chinese has them

_language: ContextVar[str] = ContextVar("_language", default=ENGLISH)


@contextmanager
def in_language(name: str) -> Iterator[None]:
    """Say texts in one of :data:`LANGUAGES`."""
    before = _language.set(name)
    try:
        yield
    finally:
        _language.reset(before)


def current() -> str:
    """The one that texts are said in."""
    return _language.get()


def of_environment(environment: Mapping[str, str]) -> str:
    """The language of a user's locale: Chinese for ``zh_CN``, else English."""
    locale = next((environment[name] for name in _VARIABLES if environment.get(name)), "")
    return CHINESE if re.split("[.@]", locale)[0] == "zh_CN" else ENGLISH


def said(text: str) -> str:
    """An English text in the page's language."""
    if current() == ENGLISH:
        return text
    found = catalogue(current()).said(text)
    return text if found is None else found


def gettext(message: str) -> str:
    """A label, or a template's text with its variables as ``%(name)s``, in the page's language."""
    if current() == ENGLISH:
        return message
    text = catalogue(current()).page.get(_NAMED.sub("{}", message).replace("%%", "%"))
    if text is None:
        return message
    return text.replace("%", "%%").format(*(f"%({name})s" for name in _NAMED.findall(message)))


class _Pattern(NamedTuple):
    """A text with holes: what it looks like, their kinds, and what to say instead."""

    like: re.Pattern[str]
    kinds: tuple[str, ...]
    text: str


class Catalogue:
    """What is said in another language.

    Attributes:
        page: what stands in templates, and labels, by the English text.
        texts: those of facts.
        counted: words behind a number, by the English one in the singular.
    """

    def __init__(self, page: Mapping[str, str], texts: Mapping[str, str], counted: Mapping[str, str]) -> None:
        self.page = page
        self.texts = texts
        self.counted = counted
        with_holes = [english for english in texts if _HOLE.search(english)]
        # The one that says the most comes first.
        with_holes.sort(key=lambda english: -len(_HOLE.sub("", english)))
        self._patterns = [_pattern(english, texts[english]) for english in with_holes]
        self.said = lru_cache(maxsize=1 << 14)(self._said)

    def _said(self, text: str) -> str | None:
        """The text in the other language; None where it isn't known."""
        return self._known(text) or self._matched(text, lambda found: self.said(found) or found)

    def _known(self, text: str) -> str | None:
        """A text that stands there as it is, or a number with a noun that does; else None."""
        if text in self.texts:
            return self.texts[text]
        number = _COUNTED.fullmatch(text)
        if number is not None:
            word = self.counted.get(number[2]) or self.counted.get(number[2].removesuffix("s"))
            if word is not None:
                return f"{number[1]} {word}"
        return self._matched(text, self._known) or self._joined(text)

    def _matched(self, text: str, say: Callable[[str], str | None]) -> str | None:
        for pattern in self._patterns:
            match = pattern.like.fullmatch(text)
            if match is None:
                continue
            filled = [
                say(found) or (None if " " in found else found) if kind == "t" else found
                for kind, found in zip(pattern.kinds, match.groups(), strict=True)
            ]
            if None not in filled:
                return pattern.text.format(*filled)
        return None

    def _joined(self, text: str) -> str | None:
        for joint, other in _JOINTS.items():
            for at in (match.start() for match in re.finditer(joint, text)):
                first = self._known(text[:at])
                rest = None if first is None else self._known(text[at + len(joint) :])
                if rest is not None:
                    return f"{first}{other}{rest}"
        return None


def _pattern(english: str, text: str) -> _Pattern:
    pieces = _HOLE.split(english)
    like = "".join(_FOUND[piece] if number % 2 else re.escape(piece) for number, piece in enumerate(pieces))
    # What stands in brackets doesn't reach into the clause behind them.
    like = like.replace(r"\((.+?)\)", r"\(((?:(?!\); ).)+?)\)")
    return _Pattern(re.compile(like, re.DOTALL), tuple(pieces[1::2]), text)


@cache
def catalogue(language: str) -> Catalogue:
    """That of one of :data:`LANGUAGES` but English."""
    text = (files("reput.report") / "templates" / f"{language}.toml").read_text(encoding="utf-8")
    return Catalogue(**tomllib.loads(text))
