"""The store for a rebuild on a cluster, whose result is compared with the broker's own files."""

from __future__ import annotations

import json
import lzma
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from reput import demo
from reput.errors import StoreError
from reput.format import names

_CHECKOUT = Path(__file__).parents[2]
#: The script for spark-submit.
JOB = _CHECKOUT / "jobs" / "rebuild.py"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class TrialStore:
    """A store, and how it is to be read.

    Attributes:
        root: the store's directory, absolute.
        broker_conf: its broker's configuration file, None for what the store shows.
        rocketmq_version: the release that wrote it, None for the one that the store shows.
    """

    root: Path
    broker_conf: Path | None
    rocketmq_version: str | None

    @property
    def has_output(self) -> bool:
        """Whether the broker's own files are there, to compare with."""
        return (self.root / names.CONSUME_QUEUE).is_dir()

    def arguments(self, out: Path) -> list[str]:
        """The words of ``reput rebuild``."""
        words = [str(self.root), "--out", str(out)]
        if self.broker_conf is not None:
            words += ["--broker-conf", str(self.broker_conf)]
        if self.rocketmq_version is not None:
            words += ["--rocketmq-version", self.rocketmq_version]
        return words


def default_store(work: Path) -> TrialStore:
    """The small store that comes with reput, unpacked into ``work``."""
    found = open_store(demo.ARCHIVE, work)
    return replace(found, rocketmq_version=found.rocketmq_version or demo.VERSION)


def open_store(
    place: Path, work: Path, broker_conf: Path | None = None, rocketmq_version: str | None = None
) -> TrialStore:
    """The store at ``place``: its directory, or an archive, which is unpacked into ``work``.

    An archive holds either the store, with ``manifest.json`` beside the archive to say what wrote it with
    which settings, or ``store`` and ``broker.conf``.

    Raises:
        StoreError: it is missing.
    """
    if broker_conf is not None:
        broker_conf = broker_conf.absolute()
    if place.is_dir():
        return TrialStore(place.absolute(), broker_conf, rocketmq_version)
    root = work / "store"
    try:
        with tarfile.open(place, "r:xz") as archive:
            archive.extractall(root, filter="data")
        manifest_path = place.with_name(_MANIFEST)
        manifest = json.loads(manifest_path.read_bytes()) if manifest_path.is_file() else {}
    except (OSError, tarfile.TarError, lzma.LZMAError, ValueError) as error:
        raise StoreError(
            "there is no store here",
            path=place,
            expected="a directory with a commit log, or a packed one (.tar.xz)",
            found=str(error),
        ) from error
    if broker_conf is None and manifest.get("config"):
        broker_conf = work / "broker.conf"
        broker_conf.write_text("".join(map(_line, manifest["config"].items())), encoding="utf-8")
    elif broker_conf is None and (root / "broker.conf").is_file():
        broker_conf = root / "broker.conf"
    if (root / "store").is_dir():
        root = root / "store"
    return TrialStore(root, broker_conf, rocketmq_version or manifest.get("rocketmq"))


def _line(setting: tuple[str, object]) -> str:
    name, value = setting
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}\n"
