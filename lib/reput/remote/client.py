"""Reading from an object store or HDFS: names with sizes, and ranges of what was pinned.

Credentials are the environment's. What a server answers is never shown whole: S3's refusals repeat the key's
id, the signature and what was signed.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from reput.errors import RemoteStoreError, ReputError, SettingsError, UnsupportedError
from reput.words import install_step

if TYPE_CHECKING:
    from hdfs_native import FileStatus
    from obstore import ObjectMeta


# Credentials, tries and what is said of failures are as for what is only read.

_AT_ONCE = 1000  # keys of one request that deletes


class Found(NamedTuple):
    """An object's bytes, by what a later version of it is told from this one, and its age.

    ``written_at`` is by the server's clock, in seconds since 1970.
    """

    data: bytes
    version: Any
    written_at: float


class Objects:
    """Objects below a URL, by obstore and what the environment says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = object_store(url)
        self._minds_conditions = False

    def put(self, name: str, data: Any) -> None:
        """Write an object; on return it is there."""
        import obstore

        tried(self._place(name), lambda: obstore.put(self._store, name, data), "written")

    def get(self, name: str) -> Found | None:
        """An object; None if there is none."""
        import obstore

        def got() -> Found | None:
            try:
                result = obstore.get(self._store, name)
            except FileNotFoundError:
                return None
            written_at = result.meta["last_modified"].timestamp()
            return Found(bytes(result.bytes()), _version(result.meta), written_at)

        return tried(self._place(name), got)

    def swap(self, name: str, data: bytes, expected: Any) -> Any:
        """Write an object if it still is the expected version; the new version, or None if it isn't.

        After a failure of the network None may be the answer although the object was written. ``expected`` is
        that of :class:`Found`, or what this has returned; None for an object that isn't there yet.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def swapped() -> Any:
            mode: Any = "create" if expected is None else expected
            try:
                return _version(obstore.put(self._store, name, data, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError):
                return None
            except FileNotFoundError:
                if expected is None:
                    raise  # there is no such bucket
                return None

        return tried(self._place(name), swapped, "written")

    def check_conditions(self, name: str, version: Any) -> None:
        """See that the server minds conditions, without which two writers undo each other's commits.

        Once is enough for a process, and not more than Google takes writes of one object in a second. It is
        tried on an object that is there, and that nobody needs. UnsupportedError where it doesn't.
        """
        if self._minds_conditions:
            return
        # Google's is told by its generation, a number; where there are both, S3 and Azure compare the ETag.
        other = {name: "1" if name == "version" else f'"{secrets.token_hex(16)}"' for name in version}
        for expected in (None, other):
            if self.swap(name, b"", expected) is not None:
                raise UnsupportedError(
                    "the server writes an object although a condition forbids it",
                    path=self._place(name),
                    expected="writes with If-None-Match and If-Match, as S3 has them since the end of 2024",
                    found="If-None-Match is ignored" if expected is None else "If-Match is ignored",
                    next_step="Take a server that has them, or a table in a local directory",
                )
        self._minds_conditions = True

    def names(self, prefix: str) -> list[tuple[str, int]]:
        """The names and sizes of objects whose names begin with the directories ``prefix``."""
        import obstore

        def listed() -> list[tuple[str, int]]:
            return [
                (entry["path"], entry["size"])
                for entries in obstore.list(self._store, prefix or None)
                for entry in entries
            ]

        return tried(self._place(prefix), listed)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that aren't there count as removed."""
        import obstore

        left = list(names)
        while left:
            some, left = left[:_AT_ONCE], left[_AT_ONCE:]

            def removed(some: list[str] = some) -> None:
                try:
                    obstore.delete(self._store, some)
                except FileNotFoundError:
                    for name in some:
                        try:
                            obstore.delete(self._store, name)
                        except FileNotFoundError:
                            continue

            tried(self._place(some[0]), removed, "removed")

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}"


def _version(meta: Any) -> Any:
    named = {"e_tag": meta["e_tag"], "version": meta.get("version")}
    return {name: value for name, value in named.items() if value is not None}


_clients: dict[tuple[int, str], Objects] = {}


def objects(url: str) -> Objects:
    """This process's client for what lies below a URL."""
    key = os.getpid(), url
    if key not in _clients:
        _clients[key] = Objects(url)
    return _clients[key]


#: What obstore reads: S3 and what speaks like it, Google Cloud Storage, Azure.
OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
HDFS = "hdfs"
SCHEMES = (*OBJECT_STORES, HDFS)
#: What would steer a shell or JSON, or is taken away from a URL before it is looked up.
_NOT_IN_URLS = re.compile(r"""[?#%"'\\\s\x00-\x1f\x7f]""")
#: `Path` has made one slash of two.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")


def is_url(text: str | Path) -> bool:
    """Whether a STORE is a URL, and not a path here; also after it has become a :class:`Path`."""
    return _URL.match(str(text)) is not None


def check_here(place: str | Path) -> None:
    """Refuse a URL where a directory is needed, since something is written there, or its files are opened."""
    if is_url(place):
        raise UnsupportedError(
            "this needs a directory of this host",
            path=url_of(place),
            next_step="docs/remote.md has what reads stores elsewhere; copy or mount it for the rest",
        )


def url_of(text: str | Path) -> str:
    """A store's URL, without a slash at its end; SettingsError if none can be read, or it has a password."""
    url = _URL.sub(r"\1://", str(text), count=1).rstrip("/")
    try:
        parts = urlsplit(url)
    except ValueError:  # says what was given, with a password in it
        raise SettingsError("the URL of a store can't be understood", expected="s3://BUCKET/PATH") from None
    # Before anything shows it: what stands behind ? may be a key.
    if parts.password is not None or _NOT_IN_URLS.search(url) is not None:
        raise SettingsError(
            "a URL of a store has no password, and none of ?, #, %, quotes, backslashes and blanks",
            expected=f"{parts.scheme}://BUCKET/PATH",
            next_step="Give credentials in the environment (docs/remote.md)",
        )
    if parts.scheme.lower() not in SCHEMES:
        raise SettingsError(
            "no store can be read from here",
            path=url,
            expected=f"a directory, or a URL of {', '.join(SCHEMES)}",
            found=f"{parts.scheme}:",
            next_step="Mount it, or copy the store",
        )
    if not parts.netloc:
        raise SettingsError(
            "the URL of a store names no bucket or host", path=url, expected="s3://BUCKET/PATH"
        )
    return url


class Spent(NamedTuple):
    """What a store's server was asked."""

    requests: int = 0  # each try of each; a listing counts as one for each :data:`LISTED` names
    fetched: int = 0  # bytes of files that came

    def __add__(self, other: tuple[int, ...]) -> Spent:  # type: ignore[override]
        return Spent(self.requests + other[0], self.fetched + other[1])


#: Names in one answer of S3's ListObjectsV2, at most.
LISTED = 1000

_lock = threading.Lock()
_spent: dict[str, Spent] = {}


def count(url: str, requests: int = 1, fetched: int = 0) -> None:
    """Note what was asked of a store."""
    add({url: Spent(requests, fetched)})


def add(found: dict[str, Spent]) -> None:
    """Note what a task had noted."""
    with _lock:
        for url, more in found.items():
            _spent[url] = _spent.get(url, Spent()) + more


def taken() -> dict[str, Spent]:
    """What was noted in this process, which forgets it: it goes with a task's result to who adds it there."""
    with _lock:
        found = dict(_spent)
        _spent.clear()
    return found


def begin(url: str) -> None:
    """Forget what was asked of a store by an earlier run."""
    with _lock:
        _spent.pop(url, None)


def total(url: str) -> Spent:
    """What this process and finished tasks have asked of a store since :func:`begin`."""
    with _lock:
        return _spent.get(url, Spent())


_LOG = logging.getLogger(__name__)

#: Bytes of one request.
RANGE = 8 << 20
#: Seconds to wait before a request is tried again; how long one may take, and a connection.
_WAITS = (0.5, 1.0, 2.0, 4.0)
_TIMEOUT, _CONNECT_TIMEOUT = 60.0, 10.0
_CODE, _MESSAGE = re.compile(r"<Code>([^<]{1,100})</Code>"), re.compile(r"<Message>([^<]{1,300})</Message>")
_STATUS = re.compile(r"status code: ([0-9]{3}[A-Za-z ]*)")
#: Trying again doesn't help: the request itself was refused.
_REFUSED = re.compile(r"status code: 4(?!08|29)[0-9]{2}|^InvalidArgument")
#: Else a NameNode that is down is tried for minutes, and nothing is said. Twice: there may be two of them.
_HDFS_SETTINGS = {
    "dfs.client.failover.max.attempts": "2",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "500",
    "dfs.client.socket-timeout": f"{_TIMEOUT * 1000:.0f}",
}
#: What an object that has become shorter is answered with.
_NO_SUCH_RANGE = re.compile(r"status code: 416|InvalidRange|[Rr]ange")
_SKEWED = "RequestTimeTooSkewed"
#: How a pin begins that is only a time.
_BY_TIME = "changed at "
#: A file that was changed less than this ago may change again and keep its time, which servers count in
#: seconds or milliseconds. So may an older one where the server's clock is behind: S3 takes 15 minutes.
_RACY_SECONDS = 15 * 60

_Found = TypeVar("_Found")


class RemoteFile(NamedTuple):
    """A file of a store elsewhere, as it was when it was listed."""

    name: str  # relative to the store, with slashes
    size: int  # bytes
    pin: str  # what changes when the file does: the ETag, or the time of the last change
    changed_at: float = 0.0  # that time, seconds since 1970

    def is_settled(self, at: float) -> bool:
        """Whether the pin will tell each change after the listing that it is from.

        That was begun ``at`` this time or later: seconds since 1970, by this host's clock.
        """
        return not self.pin.startswith(_BY_TIME) or self.changed_at < at - _RACY_SECONDS


class Client(Protocol):
    """One store elsewhere."""

    def list(self) -> Iterator[RemoteFile]:
        """All files."""
        ...

    def read(self, file: RemoteFile, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a file; RemoteStoreError also where it isn't what was listed."""
        ...


def client(url: str) -> Client:
    """A client for a store's URL (:func:`reput.remote.client.url_of`).

    Raises SettingsError where what reads such stores isn't installed, or the environment doesn't say enough.
    """
    return _Hdfs(url) if urlsplit(url).scheme == HDFS else _ObjectStore(url)


def object_store(url: str) -> Any:
    """What obstore knows an object store's URL by."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise _not_installed(url, "obstore") from None
    try:
        return from_url(
            url,
            # Told, and bounded, by this module.
            retry_config={"max_retries": 0},
            client_options={
                "timeout": f"{_TIMEOUT:g}s",
                "connect_timeout": f"{_CONNECT_TIMEOUT:g}s",
                # Given options hide the environment's.
                "allow_http": allows_http(),
            },
        )
    except (BaseError, ValueError) as error:
        raise SettingsError(
            "the store can't be reached",
            path=url,
            found=in_few_words(error),
            next_step="Check the URL, and the credentials in the environment (docs/remote.md)",
        ) from None


def allows_http() -> bool:
    """Whether the environment allows requests without TLS."""
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")


class _ObjectStore:
    def __init__(self, url: str) -> None:
        self._url = url
        self._store = object_store(url)

    def list(self) -> Iterator[RemoteFile]:
        import obstore

        def listed() -> list[RemoteFile]:
            return [
                RemoteFile(entry["path"], entry["size"], _pin(entry), entry["last_modified"].timestamp())
                for entries in obstore.list(self._store)
                for entry in entries
            ]

        found = tried(self._url, listed)
        count(self._url, max(-(-len(found) // LISTED), 1))
        yield from found

    def read(self, file: RemoteFile, start: int, stop: int) -> memoryview:
        import obstore

        place = f"{self._url}/{file.name}"
        options: Any = {"range": (start, stop)}

        def got() -> memoryview:
            count(self._url)
            try:
                result = obstore.get(self._store, file.name, options=options)
            except Exception as error:
                if _NO_SUCH_RANGE.search(str(error)) is not None:
                    meta = obstore.head(self._store, file.name)
                    _check_pin(place, file, meta["size"], _pin(meta))
                raise
            # Compared here: not every server minds If-Match.
            _check_pin(place, file, result.meta["size"], _pin(result.meta))
            data = memoryview(result.bytes())
            count(self._url, 0, len(data))
            return _whole(data, stop - start)

        return tried(place, got)


def _whole(data: memoryview, length: int) -> memoryview:
    if len(data) != length:
        raise OSError(f"{len(data)} of {length} bytes came")
    return data


def _pin(meta: ObjectMeta) -> str:
    tag = meta["e_tag"]
    # Listings have milliseconds, answers don't.
    return f"ETag {tag}" if tag else f"{_BY_TIME}{meta['last_modified']:%Y-%m-%dT%H:%M:%S%z}"


class _Hdfs:
    def __init__(self, url: str) -> None:
        try:
            from hdfs_native import Client as Native
        except ImportError:
            raise _not_installed(url, "hdfs-native") from None
        parts = urlsplit(url)
        self._url, self._root = url, parts.path or "/"
        try:
            self._client = Native(f"{parts.scheme}://{parts.netloc}", _HDFS_SETTINGS)
        except (OSError, ValueError, RuntimeError) as error:
            raise SettingsError(
                "the store can't be reached",
                path=url,
                found=in_few_words(error),
                next_step="Check the URL, and HADOOP_CONF_DIR (docs/remote.md)",
            ) from None

    def list(self) -> Iterator[RemoteFile]:
        def listed() -> list[RemoteFile]:
            prefix = self._root.rstrip("/") + "/"
            return [
                RemoteFile(
                    entry.path.removeprefix(prefix),
                    entry.length,
                    _changed_at(entry),
                    entry.modification_time / 1000,
                )
                for entry in self._client.list_status(self._root, recursive=True)
                if not entry.isdir
            ]

        found = tried(self._url, listed)
        count(self._url, max(-(-len(found) // LISTED), 1))
        yield from found

    def read(self, file: RemoteFile, start: int, stop: int) -> memoryview:
        place, path = f"{self._url}/{file.name}", f"{self._root.rstrip('/')}/{file.name}"

        def got() -> memoryview:
            count(self._url)
            try:
                data = memoryview(self._client.read(path).read_range(start, stop - start))
                count(self._url, 0, len(data))
                return _whole(data, stop - start)
            finally:
                # After the bytes: who has changed it before they were read is seen, and why some are missing.
                now = self._client.get_file_info(path)
                _check_pin(place, file, now.length, _changed_at(now))

        return tried(place, got)


def _changed_at(status: FileStatus) -> str:
    return f"{_BY_TIME}{status.modification_time} ms"


def tried(place: str, attempt: Callable[[], _Found], done: str = "read") -> _Found:
    """What an attempt gives; tried again, and said, where the network or the server may have failed.

    ``done`` says what it does, for errors.
    """
    for tries, wait in enumerate((*_WAITS, None), 1):
        try:
            return attempt()
        except ReputError:
            raise
        except FileNotFoundError:
            raise RemoteStoreError(
                "it isn't there",
                path=place,
                found="no such object, bucket or directory",
                next_step="Check the URL; if it was there when the run began, somebody has deleted it",
            ) from None
        except Exception as error:  # noqa: BLE001 - obstore and hdfs-native raise several kinds, and OSError
            words = in_few_words(error)
            if wait is None or _REFUSED.search(str(error)):
                raise _failed(place, words, tries, done) from None
            _LOG.warning("%s: %s; trying again in %g s", place, words, wait)
            time.sleep(wait)
    raise AssertionError  # the loop returns or raises


def _failed(place: str, words: str, tries: int, done: str) -> RemoteStoreError:
    step = "Check the network and the server, then run the same command again"
    if _SKEWED in words:
        step = "Set this host's clock: signatures hold for some minutes"
    elif tries == 1:
        step = f"Check the URL, the credentials in the environment, and what may be {done} (docs/remote.md)"
    return RemoteStoreError(
        f"it can't be {done}",
        path=place,
        found=words if tries == 1 else f"{words}, {tries} times",
        next_step=step,
    )


def _check_pin(place: str, file: RemoteFile, size: int, pin: str) -> None:
    if (size, pin) != (file.size, file.pin):
        raise RemoteStoreError(
            "it has changed since the run was planned",
            path=place,
            expected=f"{file.size} bytes, {file.pin}",
            found=f"{size} bytes, {pin}",
            next_step="Let nobody write to the store meanwhile, and run the same command again",
        )


def in_few_words(error: Exception) -> str:
    """What went wrong, without the server's whole answer."""
    text = str(error)
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    told = [one[1].strip(" .") for one in (status, code, message) if one is not None]
    if told:
        return ": ".join(told)
    first = next(iter(text.split("\n\nDebug source", 1)[0].splitlines()), "") or type(error).__name__
    return re.sub(r"\?\S*", "", first)[:300]  # an Azure token is in the query


def _not_installed(url: str, package: str) -> SettingsError:
    return SettingsError(
        "what reads such stores isn't installed",
        path=url,
        expected=f"the package {package}",
        next_step=install_step("remote"),
    )
