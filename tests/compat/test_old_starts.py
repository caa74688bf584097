"""Stores of releases before 4.5, damaged: what a start would lose is said, mended, and not lost then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reput.broker.predict import predict
from reput.broker.snapshot import take
from reput.diagnosis.check import check
from reput.diagnosis.verdict import Effect, Remedy
from reput.job.options import RebuildOptions
from reput.mending import mend
from reput.verify.plan import VerifyOptions
from tests.compat import damage
from tests.compat.damage import Copy, Damage
from tests.compat.outcome import Written, outcome
from tests.compat.starts import QUEUE_FILE, SEGMENT, Bench, Case, expected
from tests.levels import tried

pytestmark = pytest.mark.compat

#: The damage, how the broker ended, and what a start loses by it: of 4.3.1, and of 4.4.0.
CASES: tuple[tuple[Damage, str | None, str, str], ...] = (
    (damage.queues_gone, None, "queues-stay-lost", "queues-stay-lost"),
    (damage.short_segment, None, "unloaded-files", "unloaded-files"),
    (damage.short_last_segment, "killed", "unloaded-files", "unloaded-files"),
    (damage.short_queue_file, None, "unloaded-files", "unloaded-files"),
    (damage.stray_in_front_of_queue, None, "unloaded-files", "unloaded-files"),
    (damage.log_shorter, None, "past-log-end", ""),
    (damage.longer_size, "killed", "log-end-moved", ""),
    (damage.shorter_size, "killed", "log-end-moved", ""),
    (damage.stray_in_front, None, "", ""),
    (damage.topic_gone, None, "", ""),
)


@pytest.mark.parametrize("version", tried("4.3.1", more=["4.0.0", "4.2.0", "4.4.0"]))
def test_what_a_start_would_lose_is_mended(version: str, tmp_path: Path) -> None:
    bench = Bench(version, tmp_path)
    try:
        written = Written.of(Copy(bench.stopped, SEGMENT, QUEUE_FILE))
        made, wrong = [], []
        for harm, crash, old, new in CASES:
            copy = bench.copy(harm.__name__, crash=crash)
            harm(copy)
            kind = new if version == "4.4.0" else old
            options = VerifyOptions(copy.root, None, bench.conf, version)
            found = {one.kind: (one.effect, one.remedy) for one in check(options).left}
            if kind and found.get(kind) != (Effect.LOSES, Remedy.MEND):
                wrong.append((harm.__name__, "said", found))
            survivors = written.survivors(copy.root)
            mend(RebuildOptions(copy.root, broker_conf=bench.conf, rocketmq_version=version), apply=True)
            left = check(options)
            if left.mendable:
                wrong.append((harm.__name__, "left", left.left))
            prediction = predict(take(bench.settings(copy.root)))
            made.append((survivors, Case(harm.__name__, copy.root, expected(prediction))))
        bench.open_all([case for _, case in made])
        for survivors, case in made:
            came = outcome(written, survivors, case.seen, case.root, case.error)
            lost = len(written.records) - len(survivors)
            # The place of a message that the damage took shows the next one.
            if not replace(came, repeated=max(came.repeated - lost, 0)).sound:
                wrong.append((case.name, "after", came))
        assert not wrong, "\n".join(map(str, wrong))
    finally:
        bench.close()
