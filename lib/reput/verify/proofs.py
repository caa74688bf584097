"""A verification that reads only what isn't proven yet (:mod:`reput.verify.proven`).

It believes a file whose size, inode and times of change are as they were; of any other it reads the bytes
again. What then isn't as it was proven, is verified again, with the segments that it belongs to. Kept is only
what a broker writes in normal operation, and units that differ: a segment with any other finding is verified
each time.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

import reput
from reput.config.settings import RocksDBSettings, StoreSettings
from reput.derived.plain import QueueReader
from reput.format import names
from reput.format.consumequeue import UNIT_LENGTH
from reput.format.indexfile import ENTRY_LENGTH, FIRST_ORDINAL, IndexHeader
from reput.format.names import Queue
from reput.log.segments import Segment
from reput.newer_python import UTC
from reput.remote import remote_store, with_urls
from reput.remote.client import RemoteFile
from reput.remote.store import listed_file
from reput.replay.runner import Runner
from reput.scan.rules import Part
from reput.store.listing import entries_in
from reput.verify.index import Entries, IndexMap, mixed_entries
from reput.verify.index_file import BLOCKS_AT_ONCE, IndexInfo, block_starts
from reput.verify.plan import Plan, queues_on_disk
from reput.verify.proven import (
    FORMAT,
    Identity,
    IndexProof,
    Proofs,
    QueueProof,
    SegmentProof,
    identity_of,
    identity_of_segment,
    known_file,
)
from reput.verify.queue_files import Outside, Seen
from reput.verify.report import LOG, Difference, Note, Remembered, key_of
from reput.verify.tasks import PartChecked, sha256_of
from reput.verify.units import BLOCK, MODULUS, Blocks, Sum, added, sums_by, unit_sum
from reput.verify.waves import in_waves, of_each

__all__ = ["CHANGED", "GONE", "REPLACED", "Proofs", "Remembering"]
#: The kinds of findings about what was proven before, and of a note.
CHANGED, GONE, REPLACED = "sealed-segment-changed", "sealed-segments-gone", "sealed-segment-replaced"
#: A file that was changed less than this ago may change again without its times telling: a page that a broker
#: has mapped gets another time when it is written to after it was written back, which the kernel does after
#: 30 seconds and, as RocketMQ's os.sh sets it (vm.dirty_writeback_centisecs), after an hour.
RACY_NS = 2 * 3600 * 1_000_000_000
_QUEUES_AT_ONCE = 16


class Remembering:
    """One run's use of proofs: what it needn't read, and what it leaves.

    With ``read_all`` all bytes are read again and their digests and sums compared, whatever files' times say;
    with ``anew`` all is verified again, and what was told before is forgotten.

    Attributes:
        segments, skipped: how many segments there are, and how many weren't verified again.
        skipped_bytes: of log, in these.
        bytes_read: of log that was verified, and of log and files that were read to compare digests and sums.
        after: what the next run may believe, once this one has ended.
        findings: about what was proven before.
        settings: the store's; None before the run.
        ends: queueOffset of a queue's first message in the log and after its last, where all is sound.
    """

    def __init__(self, before: Proofs | None, *, read_all: bool = False, anew: bool = False) -> None:
        self._before = before or Proofs()
        self._read_all = read_all
        self._anew = anew
        self._is_believed = True
        self.after = Proofs()
        #: What was proven of segments that a finding is told of, and which of these hold it again.
        self._lost: dict[int, SegmentProof] = {} if anew else dict(self._before.lost)
        self._back: dict[int, SegmentProof] = {}
        self._valid: dict[int, SegmentProof] = {}
        self._started = 0
        self._added: set[int] = set()  # segments that this run has verified
        self._identities: dict[str, Identity] = {}
        self._queue_files: dict[tuple[str, int, int], Identity] = {}
        self._paths: dict[tuple[str, int, int], Path] = {}
        self._bases: dict[Queue, list[int]] = {}
        self._replaced: list[tuple[SegmentProof, Segment]] = []
        self._blocks: dict[str, Blocks] = {}
        self.settings: StoreSettings | None = None
        self.ends: dict[Queue, tuple[int, int]] = {}
        self.findings: list[Difference] = []
        self.segments = self.skipped = self.skipped_bytes = self.bytes_read = 0

    # --- before the log is read -----------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Look at what files say of themselves; what is read after this is what they held, or later."""
        self._plan = plan
        self.settings = plan.settings
        self._started = time.time_ns()
        store = plan.settings
        self.after.place = store.place if store.remote is not None else str(store.root.absolute())
        self.after.settings = _settings(plan)
        self.after.version = reput.__version__
        self.after.verified = datetime.now(UTC).isoformat(timespec="seconds")
        if self._before.settings != self.after.settings or _unbound(plan) is not None:
            # All is verified again. That the log has lost or changed what was proven is told all the same.
            self._before = replace(self._before, queue_files={}, seen={}, index_files={})
            self._is_believed = False
        self.segments = len(plan.log.segments)
        for segment in plan.log.segments:
            self._identities[str(segment.path)] = identity_of_segment(segment)
        root, size = plan.settings.root, plan.settings.consume_queue_file_size
        for entry in entries_in(root / names.INDEX):
            self._identities[entry.path] = identity_of(entry.path)
        for topic, queue_id in queues_on_disk(root / names.CONSUME_QUEUE, plan.selection):
            for entry in entries_in(names.queue_directory(root, topic, queue_id)):
                base = names.parse_offset_name(entry.name)
                if base is not None and base % size == 0:
                    key = (topic, queue_id, base)
                    path = self._paths[key] = Path(entry.path)
                    self._queue_files[key] = self._identities[str(path)] = identity_of(path)
                    self._bases.setdefault((topic, queue_id), []).append(base)

    def blocks_of(self, info: IndexInfo) -> Blocks | None:
        """The least and the greatest position in each block of an index file that is known already."""
        known = self._believed(info)
        return self._blocks.get(info.path) if known is None else known.blocks

    def header_of(self, path: str) -> IndexHeader | None:
        """An index file's header, if it is known already."""
        known = self._before.index_files.get(Path(path).name)
        if known is None or self._read_all or self._anew:
            return None
        return known.header if self._same(known.identity, self._identities.get(path)) else None

    def seen_of(self, queue: Queue) -> dict[int, Seen]:
        """What is known of a queue's files that are as they were, by their first byte."""
        if self._read_all or self._anew:
            return {}
        known = {base: self._before.seen.get((*queue, base)) for base in self._bases.get(queue, ())}
        return {
            base: seen
            for base, seen in known.items()
            if seen is not None
            and self._same(self._before.queue_files.get((*queue, base)), self._queue_files[(*queue, base)])
        }

    def is_sound(self, info: IndexInfo) -> bool:
        """Whether an index file is as it was when nothing was wrong with its chains."""
        known = self._believed(info)
        return known is not None and known.sound and known.before == info.previous_position

    def _believed(self, info: IndexInfo) -> IndexProof | None:
        known = self._before.index_files.get(Path(info.path).name)
        if known is None or self._read_all or self._anew or known.end != info.end:
            return None
        if known.before_time != info.previous_end:
            return None  # its first entry's time counts from there
        return known if self._same(known.identity, self._identities.get(info.path)) else None

    def _same(self, before: Identity, now: Identity) -> bool:
        return before is not None and before == now

    def compare(self, runner: Runner, infos: Sequence[IndexInfo]) -> None:
        """Find which segments needn't be verified again."""
        here = {segment.base: segment for segment in self._plan.log.segments}
        self._find_back(runner, here)
        self._tell_gone(here)
        old = {} if self._anew else self._before.segments | self._back
        known = {
            base: proof
            for base, proof in old.items()
            if base in here and self._is_sealed(here[base]) and proof.length == here[base].length
        }
        for base in sorted(old.keys() & here.keys() - known.keys()):
            if here[base].length != old[base].length:
                self._changed(old[base], here[base], base)
        changed = {
            base for base in known if not self._segment_same(known[base], here[base])
        } - self._back.keys()
        self._check_digests(runner, known, here, changed)
        for base in self._back:
            known.pop(base, None)  # queues and index may have changed since, and be as they were last night
        if not self._is_believed:
            known.clear()
        self._check_units(runner, known)
        self._check_entries(runner, known, infos)
        self._valid = known

    def _segment_same(self, proof: SegmentProof, segment: Segment) -> bool:
        return not self._read_all and self._same(proof.identity, self._identities[str(segment.path)])

    def _is_sealed(self, segment: Segment) -> bool:
        """Whether no broker writes to it any more: it is full, and another one follows it, or did once."""
        log = self._plan.log
        end = segment.base + segment.length
        followed = segment is not log.segments[-1] or (
            segment.base in self._before.segments or segment.base in self._lost
        )
        return followed and segment.length == log.segment_size and end <= self._plan.end

    def _find_back(self, runner: Runner, here: Mapping[int, Segment]) -> None:
        """End what was told of segments that hold again what was proven of them."""
        parts: list[Part] = []
        for base, proof in self._lost.items():
            segment, last = here.get(base), self._before.segments.get(base)
            if segment is None or segment.length != proof.length:
                continue
            if self._segment_same(proof, segment):
                self._back[base] = proof
            elif proof.sha256 and not (last is not None and self._segment_same(last, segment)):
                self._back[base] = proof
                parts += _parts_of(proof, segment)
        for part, found in zip(
            parts, in_waves(runner, [partial(sha256_of, one) for one in parts]), strict=True
        ):
            self.bytes_read += part.end - part.start
            if dict(self._lost[part.base].sha256)[part.end] != found:
                self._back.pop(part.base, None)
        if not self._anew:
            self.findings += self._before.told
        self._end_told()

    def _end_told(self) -> None:
        """A finding ends where all segments that it is of hold again what was proven of them."""

        def is_over(one: Difference) -> bool:
            of = [base for base, proof in self._lost.items() if _is_of(one, proof)]
            return bool(of) and all(base in self._back for base in of)

        self.findings = [one for one in self.findings if not is_over(one)]

    def _lose(self, proof: SegmentProof) -> None:
        """Keep what was proven before the first finding of a segment: what was told earlier has no other."""
        if not any(_is_of(one, proof) for one in self.findings):
            self._lost[proof.base] = proof

    def _check_digests(
        self, runner: Runner, known: dict[int, SegmentProof], here: Mapping[int, Segment], changed: set[int]
    ) -> None:
        """Read segments whose files say that they were changed; drop those that were."""
        parts: list[Part] = []
        for base in sorted(changed):
            proof, segment = known[base], here[base]
            if not proof.sha256:
                # Elsewhere. Where all bytes are wanted, they are verified anew: that reads no more.
                if not self._same(proof.identity, self._identities[str(segment.path)]):
                    self._replaced.append((proof, segment))
                del known[base]
                continue
            parts += _parts_of(proof, segment)
        tasks = [partial(sha256_of, part) for part in parts]
        for part, found in zip(parts, in_waves(runner, tasks), strict=True):
            self.bytes_read += part.end - part.start
            if part.base in known and dict(known[part.base].sha256)[part.end] != found:
                self._changed(known[part.base], here[part.base], part.start, part.end)
                del known[part.base]

    def _changed(self, proof: SegmentProof, segment: Segment, start: int, end: int | None = None) -> None:
        expected = f"the bytes that were verified on {self._before.verified}"
        found = f"others in {start} to {end}" if end is not None else "another file"
        if remote_store(segment.path) is not None:
            # Only of the object something is known, not of its bytes.
            expected = f"the object that was verified on {self._before.verified}"
            found = self._other_object(proof, segment)
        self._lose(proof)
        remark = "a broker doesn't write to a segment that another one follows; it was verified again"
        span = start, proof.end if end is None else end, 1
        self._tell(CHANGED, segment.path, (expected, found), span, start - proof.base, remark)

    def _tell(
        self,
        kind: str,
        path: Path,
        said: tuple[str, str],
        span: tuple[int, int, int],
        offset: int = 0,
        remark: str = "the log has lost its end, or was cut",
    ) -> None:
        place = with_urls(str(path))
        self.findings.append(Difference(kind, place, LOG, *said, *span, offset=offset, remark=remark))

    def _other_object(self, proof: SegmentProof, segment: Segment) -> str:
        was, now = known_file(proof.identity), known_file(self._identities[str(segment.path)])
        if was is None or now is None:
            return "another object"
        sizes = "" if was.size == now.size else f"{now.size} bytes, were {was.size}; "
        return f"another object ({sizes}{now.pin}, was {was.pin.removeprefix('ETag ')})"

    def settle(self) -> Iterator[Note]:
        """Tell objects that have taken a sealed segment's place: findings where they don't say the same.

        Of the bytes that were verified nothing is left to be compared with; what came of them is. So this is
        for when the log has been verified.
        """
        for base, proof in self._lost.items():
            now = self.after.segments.get(base)
            if not proof.sha256 and now is not None and self._says_the_same(proof, now):
                self._back[base] = proof
        self._end_told()
        for proof, segment in self._replaced:
            now = self.after.segments.get(proof.base)
            if now is None or not (proof.base in self._back or self._says_the_same(proof, now)):
                self._changed(proof, segment, proof.base)
                continue
            if proof.identity is None:
                continue  # it was too young for its time to tell whether it is another one
            name = names.offset_name(proof.base)
            text = f"{name} is {self._other_object(proof, segment)}; verified again, it is what it was"
            yield Note(REPLACED, text)

    def _says_the_same(self, proof: SegmentProof, now: SegmentProof) -> bool:
        if self._is_believed:
            return replace(now, identity=proof.identity) == proof
        # By other rules units and entries may differ, and the log's records don't.
        kept = ("messages", "message_bytes", "last_timestamp")
        return all(getattr(now, name) == getattr(proof, name) for name in kept)

    def _tell_gone(self, here: Mapping[int, Segment]) -> None:
        """Segments at the log's end that aren't there any more: those at its head have expired."""
        last = max(here)
        gone = [proof for base, proof in self._before.segments.items() if base > last]
        if gone and not self._anew:
            for proof in gone:
                self._lose(proof)
            first, end = min(one.base for one in gone), max(one.end for one in gone)
            path = self._plan.log.segments[-1].path.with_name(names.offset_name(first))
            expected = f"the segments up to {end} that were verified on {self._before.verified}"
            said = expected, f"a log that ends in {names.offset_name(last)}"
            self._tell(GONE, path, said, (first, end, len(gone)))

    def _check_units(self, runner: Runner, known: dict[int, SegmentProof]) -> None:
        """Read again the units of files that have changed; drop segments whose units aren't as they were."""
        size = self._plan.settings.consume_queue_file_size
        wanted: dict[Queue, list[tuple[int, int, int]]] = {}
        for base, proof in known.items():
            for queue, part in proof.queues.items():
                if self._read_all or not self._files_same(queue, part, size):
                    wanted.setdefault(queue, []).append((base, part.first, part.next))
        look = partial(_sums_of, self._plan.settings.root, size)
        for queue, sums in of_each(runner, look, sorted(wanted.items()), _QUEUES_AT_ONCE):
            for base, total in sums:
                if base in known:
                    part = known[base].queues[queue]
                    self.bytes_read += (part.next - part.first) * UNIT_LENGTH
                    if total != part.sum:
                        del known[base]

    def _files_same(self, queue: Queue, part: QueueProof, size: int) -> bool:
        at = part.first * UNIT_LENGTH // size * size
        while at < part.next * UNIT_LENGTH:
            key = (*queue, at)
            there = key in self._queue_files
            was_there = key in self._before.queue_files
            if there != was_there:
                return False
            if there and not self._same(self._before.queue_files[key], self._queue_files[key]):
                return False
            at += size
        return True

    def _check_entries(
        self, runner: Runner, known: dict[int, SegmentProof], infos: Sequence[IndexInfo]
    ) -> None:
        """Read again the entries of index files that have changed, as for units."""
        if not self._plan.index or not known:
            return
        other = [info for info in infos if self._believed(info) is None]
        bases = sorted(known)
        bounds = [(base, known[base].end) for base in bases]
        starts = [(info, first) for info in other for first in block_starts(info)]
        found: dict[int, dict[str, Sum]] = {base: {} for base in bases}
        tasks = [partial(_entries_of, info, first, bounds, tuple(infos)) for info, first in starts]
        for (info, _), (sums, blocks) in zip(starts, in_waves(runner, tasks), strict=True):
            name = Path(info.path).name
            known_blocks = self._blocks.get(info.path)
            self._blocks[info.path] = blocks if known_blocks is None else known_blocks.then(blocks)
            self.bytes_read += len(blocks.least) * BLOCK * ENTRY_LENGTH
            for base, (count, total) in sums.items():
                found[base][name] = added(found[base].get(name, (0, 0)), (count, total))
        believed = {Path(info.path).name for info in infos} - {Path(info.path).name for info in other}
        for base in bases:
            was = {name: one for name, one in known[base].index.items() if name not in believed}
            if was != found[base]:
                del known[base]

    # --- while the log is read ------------------------------------------------------------------------------

    def proof_of(self, base: int) -> SegmentProof | None:
        """What is known of a segment, if it needn't be verified again for its own sake."""
        return self._valid.get(base)

    def keep(self, proof: SegmentProof) -> None:
        """Take over what was proven before."""
        self.skipped += 1
        self.skipped_bytes += proof.length
        path = next(str(one.path) for one in self._plan.log.segments if one.base == proof.base)
        self.after.segments[proof.base] = replace(proof, identity=self._identities[path])

    def add(
        self,
        checked: Sequence[PartChecked],
        ranges: Sequence[tuple[int, int]],
        irregular: Set[Queue],
        infos: Sequence[IndexInfo],
    ) -> None:
        """Keep what was proven of a segment, if it is sealed and nothing but units of it differs."""
        base = checked[0].result.part.base
        segment = next(one for one in self._plan.log.segments if one.base == base)
        whole = ranges[0][0] == segment.base and ranges[-1][1] == segment.base + segment.length
        joined = all(one[1] == other[0] for one, other in pairwise(ranges))
        if not whole or not joined or not self._is_sealed(segment) or _unbound(self._plan):
            return
        last_unit, last_timestamp = (-1, 0), 0
        found: dict[Queue, QueueProof] = {}
        index: dict[str, Sum] = {}
        without: dict[bytes, tuple[int, int]] = {}
        for one in checked:
            batch, entries = one.batch, one.entries
            if batch.queues or batch.bad or any(batch.ranges.values()):
                return
            if entries is not None:
                if entries.missing or entries.problems or entries.duplicates:
                    return
                for number, (count, total) in entries.sums.items():
                    name = Path(infos[number].path).name
                    index[name] = added(index.get(name, (0, 0)), (count, total))
            columns = one.result.queues
            numbers = (
                columns.first,
                columns.next,
                columns.end,
                columns.last_position,
                columns.last_timestamp,
            )
            lists = [column.tolist() for column in numbers]
            for queue, first, after, end, position, stored in zip(columns.queues(), *lists, strict=True):
                if queue in irregular or queue not in one.queues:
                    return
                proof = found.setdefault(queue, QueueProof(first, 0, 0, 0))
                proof.next, proof.end = after, end
                proof.sum = (proof.sum + one.queues[queue].sum) % MODULUS
                proof.ranges += one.queues[queue].ranges
                last_unit = max(last_unit, (position, stored))
            if one.result.messages:
                last_timestamp = one.result.last_timestamp
            for bare, count, position in one.result.without_unit:
                seen = without.get(bare)
                without[bare] = (count, position) if seen is None else (seen[0] + count, seen[1])
        self._added.add(segment.base)
        self.after.segments[segment.base] = SegmentProof(
            segment.base,
            segment.length,
            self._identities[str(segment.path)],
            [(end, one.sha256) for (_, end), one in zip(ranges, checked, strict=True) if one.sha256],
            sum(one.result.messages for one in checked),
            sum(one.result.message_bytes for one in checked),
            last_timestamp,
            last_unit,
            [(topic, *seen) for topic, seen in without.items()],
            found,
            index,
        )

    def counts(self) -> Remembered:
        """What was read, and what wasn't."""
        return Remembered(
            self.segments,
            self.skipped,
            self.bytes_read,
            self.skipped_bytes,
            self._before.verified or None,
            self.after.first_seen,
            _unbound(self._plan),
        )

    def tell_cut(self, end: int) -> None:
        """Tell a log that ends within a segment that was proven: cut there, it is the last one now."""
        segment = self._plan.log.segments[-1]
        if end < segment.base + segment.length:
            self.after.segments.pop(segment.base, None)  # a broker goes on in it
        proof = None if self._anew else self._before.segments.get(segment.base)
        if proof is not None and end < proof.end:
            # That its bytes have changed says no more.
            self.findings = [
                one
                for one in self.findings
                if one.kind != CHANGED or not _is_of(one, proof) or one in self._before.told
            ]
            self._lose(proof)
            expected = f"the log up to {proof.end} that was verified on {self._before.verified}"
            said = expected, f"a log that ends at {end}"
            self._tell(GONE, segment.path, said, (end, proof.end, 1), end - segment.base)

    # --- at the end -----------------------------------------------------------------------------------------

    def finish(
        self,
        index: IndexMap,
        unsound: set[str],
        outside: Iterable[Outside],
        findings: Iterable[Difference],
    ) -> None:
        """Have :attr:`after` be what the next run may believe."""
        after = self.after
        after.told = list(self.findings)
        after.lost = {
            base: proof
            for base, proof in self._lost.items()
            if any(_is_of(one, proof) for one in self.findings)
        }
        if not _unbound(self._plan):
            self._keep_files(index, unsound, outside)
        for base in self._back.keys() & after.lost.keys() & after.segments.keys():
            # It is back, and another segment of the finding isn't.
            after.lost[base] = replace(after.lost[base], identity=after.segments[base].identity)
        known = self._before.first_seen
        for one in findings:
            finding = key_of(one)
            after.first_seen[finding] = known.get(finding, after.verified)

    def _keep_files(
        self,
        index: IndexMap,
        unsound: set[str],
        outside: Iterable[Outside],
    ) -> None:
        after = self.after
        for info, blocks in zip(index.infos, index.blocks, strict=True):
            is_sound = info.path not in unsound
            facts = info.header, info.end, blocks, info.previous_position, info.previous_end, is_sound
            after.index_files[Path(info.path).name] = IndexProof(self._settled(info.path), *facts)
        for segment in self._plan.log.segments:
            proof = after.segments.get(segment.base)
            if proof is None:
                continue
            name = str(segment.path)
            if segment.base in self._added and identity_of_segment(segment) != self._identities[name]:
                # Its digest may be of other bytes than were verified: the digest is taken last.
                del after.segments[segment.base]
            proof.identity = self._settled(name)
        for key, path in self._paths.items():
            after.queue_files[key] = self._settled(str(path))
        for each in outside:
            for base, seen in each.seen.items():
                if after.queue_files.get((each.topic, each.queue_id, base)) is not None:
                    after.seen[each.topic, each.queue_id, base] = seen

    def _settled(self, path: str) -> Identity:
        """A file's identity, if nothing can have changed since the run began without its telling."""
        was, elsewhere = self._identities.get(path), _elsewhere(path)
        if was is None:
            return None
        if elsewhere is not None:
            store = remote_store(path)
            return was if store is not None and elsewhere.is_settled(store.listed_at) else None
        is_racy = max(int(one) for one in was[1:3]) > self._started - RACY_NS
        return was if was == identity_of(path) and not is_racy else None


def _unbound(plan: Plan) -> str | None:
    """What the store has that no sum binds, in words; None without it."""
    if plan.settings.rocksdb != RocksDBSettings():
        return "what is in RocksDB isn't bound to segments that were verified"
    return f"{names.CONSUME_QUEUE_EXT} isn't bound to segments that were verified" if plan.queue_ext else None


def _elsewhere(path: str) -> RemoteFile | None:
    """What a segment, or a file of queues or index, stands for; None for one here."""
    store = remote_store(path)
    listed = listed_file(path)
    return listed if listed is not None or store is None else store.file_at(path)


def _is_of(one: Difference, proof: SegmentProof) -> bool:
    """Whether a finding about what was proven before is of this segment."""
    return one.first < proof.end and proof.base < one.end


def _parts_of(proof: SegmentProof, segment: Segment) -> list[Part]:
    """What each digest of a segment is of."""
    starts = [proof.base, *(end for end, _ in proof.sha256)]
    return [
        Part(str(segment.path), proof.base, segment.length, segment.length, start=start, end=end)
        for start, (end, _) in zip(starts, proof.sha256, strict=False)
    ]


def _settings(plan: Plan) -> str:
    """What the result depends on besides the files' bytes, as a digest."""
    facts = [
        reput.__version__,
        FORMAT,
        plan.settings.fingerprint(),
        plan.log.segment_size,
        plan.index,
        sorted(plan.selection.batch),
        sorted(plan.options.queues),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _sums_of(
    root: Path, file_size: int, wanted: tuple[Queue, list[tuple[int, int, int]]]
) -> tuple[Queue, list[tuple[int, int]]]:
    """The sum of each range of a queue, with the base that it goes by."""
    queue, ranges = wanted
    with QueueReader(root, file_size) as reader:
        return queue, [
            (base, unit_sum(first, reader.read(*queue, first, end - first))) for base, first, end in ranges
        ]


def _entries_of(
    info: IndexInfo, first: int, bounds: Sequence[tuple[int, int]], infos: Sequence[IndexInfo]
) -> tuple[dict[int, Sum], Blocks]:
    """By segment, how many of some blocks' entries point into it and their sum; and where these point to."""
    ordinal = FIRST_ORDINAL + first * BLOCK
    words = info.read(ordinal, min(info.end - ordinal, BLOCK * BLOCKS_AT_ONCE))
    position = words["position"].astype(np.int64)
    mixed = mixed_entries(Entries.of(info, ordinal + np.arange(len(words)), words), infos)
    bases, ends = np.array(bounds, np.int64).T
    at = np.searchsorted(bases, position, "right") - 1
    at[position >= ends[at]] = -1
    sums = {int(bases[number]): one for number, one in sums_by(at, mixed).items() if number >= 0}
    return sums, Blocks.of(position)
