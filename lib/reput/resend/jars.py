"""The jars of RocketMQ's Java client: an operator's own, or fetched once per user from Maven Central."""

from __future__ import annotations

import json
from pathlib import Path

from reput.errors import SettingsError
from reput.spark.jars import fetched
from reput.store.reading import unreadable

_LOCK = Path(__file__).with_name("client_jars.json")


def known() -> dict[str, dict[str, str]]:
    """By release, the SHA-256 of each jar, by ``group:artifact:version``."""
    found: dict[str, dict[str, str]] = json.loads(_LOCK.read_text(encoding="utf-8"))
    return found


def client_jars(directory: Path | None, release: str | None) -> list[Path]:
    """The jars for a class path.

    Args:
        directory: where they are, such as a broker's ``lib/``; None to fetch them.
        release: the broker's, where they are fetched.

    Raises:
        SettingsError: there are none in the directory, or it isn't known which to fetch.
        SparkError: they can't be fetched, or aren't what they should be.
    """
    if directory is not None:
        try:
            found = sorted(path for path in directory.iterdir() if path.suffix == ".jar")
        except OSError as error:
            raise unreadable("the client's directory", directory, error) from error
        if not any(path.name.startswith("rocketmq-client-") for path in found):
            raise SettingsError(
                "--client has no RocketMQ client",
                expected=f"a directory with rocketmq-client-….jar, such as a broker's lib/: {directory}",
                found="no such jar",
            )
        return found
    releases = known()
    if release not in releases:
        raise SettingsError(
            "it isn't known which client to send with",
            expected=f"--client DIR, such as the broker's lib/, or --rocketmq-version {', '.join(releases)}",
            found="neither" if release is None else f"--rocketmq-version {release}",
            next_step="A client of another 4.9 or 5.x release works with the broker, too.",
        )
    return fetched(
        f"client/{release}",
        f"the client of RocketMQ {release}",
        releases[release],
        "Give --client DIR with the broker's lib/ instead",
    )
