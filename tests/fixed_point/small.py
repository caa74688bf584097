"""The smallest stores that the real one wrote, to be damaged where no JVM runs."""

from __future__ import annotations

import pytest

from reput.config.settings import StoreSettings
from tests.compat.conf import conf_text
from tests.fixed_point.cases import Original
from tests.golden.store import unpack

STORES = ("tiny", "no-keys", "restart")
VERSIONS = ("4.9.7", "5.3.3", "5.5.0")


def small(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Original]:
    """By release and name."""
    found = {}
    for version in VERSIONS:
        for name in STORES:
            place = tmp_path_factory.mktemp(f"{version}-{name}")
            golden = unpack(f"{version}-{name}", place / "store")
            conf = place / "broker.conf"
            conf.write_text(conf_text(golden.config), encoding="utf-8")
            settings = StoreSettings.load(golden.root, conf, version)
            size = int(str(golden.config["mappedFileSizeCommitLog"]))
            found[version, name] = Original(
                golden.root, conf, version, size, settings.consume_queue_file_size
            )
    return found
