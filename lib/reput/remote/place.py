"""URLs of stores: ``s3://bucket/broker-a/store``, ``hdfs://namenode:8020/broker-a/store``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from reput.errors import SettingsError, UnsupportedError

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
