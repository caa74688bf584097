"""Names in a store that no broker gives: every command answers, or refuses in words of its own."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from reput.config.settings import StoreSettings
from reput.errors import ReputError
from reput.format import names
from reput.replay.runner import InlineRunner
from reput.verify.plan import VerifyOptions, prepare
from reput.verify.run import check
from tests.local import Store, rebuild_locally
from tests.rebuilds import Command, broker_conf, golden

QUEUE = f"{names.CONSUME_QUEUE}/t/2"


@pytest.mark.parametrize(
    ("directory", "name", "kind"),
    [
        (QUEUE, "-00000000000000000005", "copy"),
        (names.COMMIT_LOG, "-5", "copy"),
        (f"{names.BATCH_CONSUME_QUEUE}/b/0", str(2**63 - 1), "copy"),
        (f"{names.CONSUME_QUEUE}/t", "-0", "directory"),
        (names.CONSUME_QUEUE, "\udcff\n", "directory"),
    ],
)
@pytest.mark.slow
def test_an_odd_name(reput: Command, directory: str, name: str, kind: str, tmp_path: Path) -> None:
    store = golden("5.3.3-batch-queue", tmp_path)
    store.write_topics_json()
    root = store.root
    place = root / directory
    if not place.is_dir():  # of whichever queue there is
        place = next(path for path in sorted(root.glob(f"{Path(directory).parts[0]}/*/*")) if path.is_dir())
    odd = place / name
    if kind == "directory":
        odd.mkdir()
    else:
        shutil.copy(max(path for path in place.iterdir() if path.is_file()), odd)
    more = ["--broker-conf", broker_conf(store), "--rocketmq-version", store.version]
    for words in (
        ["check", root, *more],
        ["mend", root, *more],
        ["report", root, "--json", *more],
        ["stats", root, *more],
        ["dump", "commitlog", root, "--quiet"],
        ["dump", "consumequeue", root, "--quiet"],
        ["dump", "index", root, "--headers", *more],
        ["query", root, "--queue", "t:2", "--at", "0", *more],
        ["lag", root, *more],
        ["doctor", root, "--no-spark", *more],
    ):
        done = reput(*words)
        assert done.code in (0, 1, 2, 3, 4, 5)
        assert "doesn't foresee" not in done.stderr, words
    assert odd.exists()
    settings = StoreSettings.load(root, broker_conf(store), store.version)
    for work in (
        lambda: check(prepare(VerifyOptions(root, None, broker_conf(store), store.version)), InlineRunner()),
        lambda: rebuild_locally(Store(root, settings), tmp_path / "out"),
    ):
        with suppress(ReputError):  # anything else is a bug
            work()


def test_cut_segments_are_the_logs(reput: Command, tmp_path: Path) -> None:
    """None has the length that broker.conf gives, and none is left out."""
    store = golden("5.3.3-mixed", tmp_path)
    whole = json.loads(reput("check", store.root, "-c", broker_conf(store), "--json").stdout)
    for number, path in enumerate(sorted((store.root / names.COMMIT_LOG).iterdir())[:-1]):
        os.truncate(path, path.stat().st_size - 40 - number)
    last = max((store.root / names.COMMIT_LOG).iterdir())
    os.truncate(last, last.stat().st_size - 1)
    cut = json.loads(reput("check", store.root, "-c", broker_conf(store), "--json").stdout)
    assert cut["messages"] > whole["messages"] - 20
