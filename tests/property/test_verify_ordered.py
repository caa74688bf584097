"""Damage to what is written in log order is found, all of it and nothing else: against a slow twin."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from reput.format import names
from tests import slow_rebuild, slow_verify
from tests.laid_out import RESTART, TOPICS, VERSIONS, Log, Spec, lay_out, specs, without_light
from tests.levels import examples
from tests.local import in_log_order, outputs, rebuild_locally, write_store
from tests.memory import scratch
from tests.property.test_verify import CONF, QUEUE_FILES, Blow, expanded, verified
from tests.slow_verify import InOrder

EXT_FILES, BATCH_FILES = "consumequeue_ext/*/*/*", "batchconsumequeue/*/*/*"
BATCH = TOPICS[2].decode()
EXT_FILE, BATCH_FILE = 90, 92
_shares = st.floats(0, 1, allow_nan=False)
blows = st.builds(
    Blow,
    files=st.sampled_from([QUEUE_FILES, EXT_FILES, EXT_FILES, BATCH_FILES, BATCH_FILES]),
    file=_shares,
    how=st.sampled_from(["byte", "byte", "zero", "copy", "shift", "swap", "remove", "cut", "rename"]),
    at=_shares,
    byte=st.integers(1, 255),
)


#: A batch topic that was deleted and created again: 4 units, two files, then 5.
AGAIN = [*[Spec(topic=2)] * 4, Spec(topic=2, jump=RESTART), *[Spec(topic=2)] * 4]


def struck(blow: Blow) -> Blow:
    """The same, by units of the files that it hits."""
    unit = 46 if blow.files == BATCH_FILES else 20
    return replace(blow, unit=unit)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(specs, min_size=1, max_size=16),
    st.sampled_from(VERSIONS),
    st.integers(0, 2),
    st.lists(blows.map(struck), max_size=4),
    st.sampled_from([150, 700, 100_000]),
)
@example([Spec(topic=2)] * 9, "5.5.0", 0, [struck(Blow(BATCH_FILES, 0.5, "swap", 0.0))], 150)
@example([Spec(topic=2)] * 9, "5.5.0", 0, [struck(Blow(BATCH_FILES, 0.5, "zero", 0.0))], 700)
@example(AGAIN, "5.5.0", 0, [struck(Blow(BATCH_FILES, 0.0, "remove"))] * 2, 150)
@example(AGAIN, "5.5.0", 0, [struck(Blow(BATCH_FILES, 0.0, "remove"))] * 3, 700)
@example([Spec(tags=True)] * 9, "5.3.3", 0, [struck(Blow(EXT_FILES, 0.5, "swap", 0.0))], 700)
@example([Spec(tags=True)] * 9, "5.3.3", 1, [struck(Blow(EXT_FILES, 0.9, "remove"))], 700)
@example([Spec(tags=True)] * 9, "4.9.7", 0, [struck(Blow(QUEUE_FILES, 0.0, "byte", 0.6, 64))], 150)
def test_damage_is_found_as_by_the_slow_twin(
    log: list[Spec], version: str, expired: int, damage: list[Blow], part_bytes: int
) -> None:
    laid = lay_out(without_light(log, version), segment_size=1100, long_topics=not version.startswith("4."))
    rules = slow_rebuild.Settings(version=version, multi_dispatch=True, lmq=True, index=False)
    batch = [] if version.startswith("4.") else [BATCH]
    with scratch() as place:
        root = place / "store"
        left = _write(root, laid, version, batch, expired)
        for blow in damage:
            blow.strike(root)
        twin = slow_verify.verify(root, left, rules, InOrder(EXT_FILE, frozenset(batch), BATCH_FILE))
        report = verified(root, version, part_bytes)
    findings = report.findings
    batched = Counter[tuple[str, int, str]]()
    for one in findings:
        if one.topic in batch and one.kind.endswith("-unit"):
            batched[str(one.topic), one.queue_id or 0, one.kind] += one.count
    assert batched == twin.batch
    assert expanded([one for one in findings if one.topic not in batch]) == twin.units
    files = {(one.kind, one.topic, one.queue_id) for one in findings if one.kind.startswith("queue-file")}
    assert files == twin.files
    if not damage:
        assert not report.findings
        assert {note.kind for note in report.not_checked} <= {"queue-ext", "switched-off"}


def _write(root: Path, log: Log, version: str, batch: list[str], expired: int) -> list[tuple[int, bytes]]:
    """A store as a broker leaves it, without the first ``expired`` segments; what is left of the log."""
    store = write_store(root, log.segments, version=version, enable_multi_dispatch=True, enable_lmq=True)
    out = root.parent / "out"
    state = rebuild_locally(in_log_order(store, *batch), out, index=False)
    for path, data in outputs(out).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    # Of a queue that was shifted before the log's start nothing tells any more where its units belong.
    odd = any(finding.topic for finding in state.findings)
    left = log.segments[0 if odd else min(expired, len(log.segments) - 1) :]
    for base, _ in log.segments:
        if base < left[0][0]:
            (root / names.COMMIT_LOG / names.offset_name(base)).unlink()
    table: dict[str, object] = {topic.decode(errors="replace"): {} for topic in TOPICS} | {
        "short": {},
        "plain": {},
        "plain2": {},
    }
    table |= {topic: {"attributes": {"queue.type": "BatchCQ"}} for topic in batch}
    (root / names.CONFIG).mkdir()
    (root / names.CONFIG / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    conf = f"{CONF}mappedFileSizeCommitLog={len(log.segments[0][1])}\nmessageIndexEnable=false\n"
    conf += f"enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt={EXT_FILE}\n"
    (root.parent / "broker.conf").write_text(f"{conf}mapperFileSizeBatchConsumeQueue={BATCH_FILE}\n")
    return left
