"""Reading from an object store or HDFS: names with sizes, and ranges of what was pinned.

Credentials are the environment's. What a server answers is never shown whole: S3's refusals repeat the key's
id, the signature and what was signed.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from reput.errors import RemoteStoreError, ReputError, SettingsError
from reput.next_command import install_step
from reput.remote.place import HDFS

if TYPE_CHECKING:
    from hdfs_native import FileStatus
    from obstore import ObjectMeta


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
    """A client for a store's URL (:func:`reput.remote.place.url_of`).

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
