"""Access keys: from a file or the environment, never from a command line, which others can read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from reput.errors import SettingsError
from reput.store.reading import unreadable

ACCESS_VARIABLE, SECRET_VARIABLE = "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY"
_LINE = re.compile(r"\s*[\"']?(accessKey|secretKey)[\"']?\s*[:=]\s*[\"']?(.*?)[\"']?\s*")
_MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """What a broker with access control asks for. The secret isn't shown."""

    access: str
    secret: str = field(repr=False)

    def hide(self, text: str) -> str:
        """A text without either of them."""
        for word in (self.secret, self.access):
            text = text.replace(word, "***")
        return text


def access_keys(file: Path | None) -> AccessKeys | None:
    """The keys in a file, else those of the environment; None without any.

    Args:
        file: has ``accessKey: …`` and ``secretKey: …`` in lines of their own, as RocketMQ's
            conf/tools.yml, or with ``=``.

    Raises:
        SettingsError: one of the two is missing.
        StoreError: the file can't be read.
    """
    if file is None:
        where = f"{ACCESS_VARIABLE} and {SECRET_VARIABLE}"
        found = {"accessKey": os.environ.get(ACCESS_VARIABLE), "secretKey": os.environ.get(SECRET_VARIABLE)}
        if not any(found.values()):
            return None
    else:
        where = str(file)
        try:
            with file.open("rb") as opened:
                text = opened.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise unreadable("the file of access keys", file, error) from error
        found = {}
        for line in text.splitlines():
            if one := _LINE.fullmatch(line):
                found[one[1]] = one[2]
    access, secret = found.get("accessKey"), found.get("secretKey")
    if not access or not secret:
        missing = [name for name in ("accessKey", "secretKey") if not found.get(name)]
        raise SettingsError(
            "the access keys aren't whole",
            expected=f"accessKey and secretKey in {where}",
            found=f"no {' and no '.join(missing)}",
        )
    return AccessKeys(access, secret)
