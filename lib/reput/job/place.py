"""Where a store is: a path here, a host and a path on it, or a URL."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reput.errors import SettingsError
from reput.remote.place import is_url, url_of

_ON_HOST = re.compile(r"(?P<host>\[[^\]/]*\]|[^/:]*):(?P<path>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A store's place.

    Attributes:
        path: its directory; absolute and without ``..`` if it is on a host. Of a URL, what ``Path`` makes.
        host: a name in lower case, or an address; None for this process's own file system, and for a URL.
    """

    path: Path
    host: str | None = None

    def __str__(self) -> str:
        if self.host is None:
            return self.url or str(self.path)
        return f"[{self.host}]:{self.path}" if ":" in self.host else f"{self.host}:{self.path}"

    @property
    def url(self) -> str | None:
        """The store's URL, if it is in an object store or in HDFS."""
        return url_of(self.path) if self.host is None and is_url(self.path) else None

    @property
    def is_here(self) -> bool:
        """Whether it is a directory of this host."""
        return self.host is None and self.url is None

    @classmethod
    def parse(cls, word: str) -> Place:
        """The place that a word names: ``PATH``, ``HOST:/PATH``, ``[IPV6]:/PATH`` or a URL.

        As with scp, a colon ahead of the first slash ends a host; nothing is looked up.

        Raises:
            SettingsError: the host or its path, or the URL, can't be understood.
        """
        # A host's path may begin with two slashes; a scheme that nobody knows is a host, then.
        if "://" in word and is_url(word):
            return cls(Path(url_of(word)))
        found = _ON_HOST.fullmatch(word)
        if found is None:
            return cls(Path(word))
        host, path = _host(found["host"]), found["path"]
        if host is None or not path.startswith("/"):
            raise SettingsError(
                "a store's place can't be understood",
                expected="HOST:/PATH, where /PATH begins at the host's root",
                found=word,
                next_step=f"If it is a path on this host: ./{word}",
            )
        if _is_everywhere(host):
            raise SettingsError(
                "each host calls itself so",
                expected="a name or an address by which other hosts know it",
                found=host,
                next_step="A path without a host is one here",
            )
        return cls(Path("/" + posixpath.normpath(path).lstrip("/")), host)


def _host(text: str) -> str | None:
    """A name or an address in its usual spelling; None if it is neither."""
    bare = text.removeprefix("[").removesuffix("]")
    with suppress(ValueError):
        return str(ipaddress.ip_address(bare))
    name = bare.lower().removesuffix(".")
    return name if bare == text and _NAME.fullmatch(name) else None


def _is_everywhere(host: str) -> bool:
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")
