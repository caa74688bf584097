"""What a store's settings rest on: what was given, what the store shows, and what neither says.

What is given comes first, by an option or by the environment; then what the store shows; RocketMQ's defaults
come last, and are named. Where the store speaks against what is given, nothing is written over it: a run in
place is refused, and so is one beside it that was given nothing by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from reput.config.broker_conf import BrokerConf
from reput.config.dialect import Dialect, in_full, is_newer
from reput.config.evidence import LogRecords, Sizes, Switches, index_files, queue_files, switches
from reput.config.release import Release, release
from reput.errors import SettingsError
from reput.format import batchconsumequeue, consumequeue, names


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a store shows."""

    queues: Sizes  # queues, batch_queues, queue_ext, index: by the lengths of these files
    batch_queues: Sizes
    queue_ext: Sizes
    index: Sizes
    release: Release  # by what only some releases write
    switches: Switches  # by the newest units of some queues
    unread: tuple[str, ...]  # what couldn't be read, and so says nothing

    def sizes(self) -> Iterator[Sizes]:
        """All kinds of files."""
        yield from (self.queues, self.index, self.batch_queues, self.queue_ext)


def look(root: Path, commit_log_dirs: Iterable[Path], *, is_maped: bool = False) -> Evidence:
    """Look at a store: names, lengths, headers, a few index entries and the records that they lead to.

    ``is_maped``: broker.conf has a key as releases up to 4.5.1 spell it.
    """
    unread: list[str] = []
    found = []
    for directory, what, setting, unit in (
        (names.CONSUME_QUEUE, "queue file", "mappedFileSizeConsumeQueue", consumequeue.UNIT_LENGTH),
        (
            names.BATCH_CONSUME_QUEUE,
            "batch queue file",
            "mapperFileSizeBatchConsumeQueue",
            batchconsumequeue.UNIT_LENGTH,
        ),
        (names.CONSUME_QUEUE_EXT, "consumequeue_ext file", "mappedFileSizeConsumeQueueExt", 1),
    ):
        sizes, problem = queue_files(root, directory, what, setting, unit)
        found.append(sizes)
        unread += [] if problem is None else [problem]
    log = LogRecords(commit_log_dirs)
    index = index_files(root, log)
    shown, not_read = release(root, index, log, is_maped=is_maped)
    return Evidence(
        queues=found[0],
        batch_queues=found[1],
        queue_ext=found[2],
        index=index.sizes,
        release=shown,
        switches=switches(root, log),
        unread=tuple(dict.fromkeys((*unread, *index.unread, *not_read))),
    )


#: How a default is called where nothing else is known.
DEFAULT = "RocketMQ's default"
_CONF = "Give the broker.conf that this store was written with: -c FILE"
_VERSION = "Name the release that wrote this store: --rocketmq-version V"
_CONVERT = ". To give the store other files on purpose: reput rebuild --in-place --convert"


class Writes(Enum):
    """What a run does with the files that it derives."""

    NOTHING = "nothing"
    BESIDE = "beside the store"
    IN_PLACE = "in the store"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for, as far as it decides what contradicts."""

    writes: Writes = Writes.NOTHING  # where it writes
    index: bool = True  # it writes index files, too
    #: conf_by_hand, version_by_hand: broker.conf, and the release, if any, were given by an option,
    #: not by the environment
    conf_by_hand: bool = True
    version_by_hand: bool = True
    converts: bool = False  # the store is to have other files than it has


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The store speaks against a setting, or with two tongues."""

    setting: str  # its name in broker.conf, or that of the option
    shown: str  # what the store shows, in words, with figures
    used: str  # what was given instead; where nothing was, what a run needs to know
    next_step: str  # what settles it
    by_conf: bool  # broker.conf says otherwise; else the release that was given, or nothing was given
    given: bool = True  # something was given; else the store doesn't agree with itself
    directory: str = ""  # the files' directory in the store
    hides: bool = False  # by what is used instead, these files can't be read at all

    def __str__(self) -> str:
        if not self.given:
            return f"{self.setting}: {self.shown}"
        return f"{self.setting}: the store shows {self.shown}; given {self.used}"

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "setting": self.setting,
            "shown": self.shown,
            "used": self.used,
            "next_steps": [self.next_step],
        }


@dataclass(frozen=True, slots=True)
class Basis:
    """What settings rest on."""

    release: str | None = None  # which release is assumed and why, in words; None where one was given
    #: what is assumed of files and switches and why, in words; empty where broker.conf was given
    files: tuple[str, ...] = ()
    #: where the store speaks against what was given, or against itself
    contradictions: tuple[Contradiction, ...] = ()
    evidence: Evidence | None = None  # what the store shows; None where nobody looked
    offered: Path | None = None  # a broker.conf near the store, where none was given; it isn't read
    releases: tuple[str, ...] = ()  # all with the rules that are used, the oldest first
    given: str | None = None  # the release that was given
    #: where topics, groups and offsets are read and why, in words; empty for JSON files alone
    kept: tuple[str, ...] = ()
    #: what neither was given nor is shown by any file; a broker with another value doesn't load what
    #: is written by RocketMQ's default
    unproven: tuple[Contradiction, ...] = ()

    @property
    def given_in_full(self) -> str | None:
        """The release that was given, of a line the newest; None when none was."""
        return in_full(self.given)

    @property
    def rocketmq_version(self) -> str | None:
        """The release in full: as given, else the newest with the rules that are used; None without rules."""
        if self.given_in_full in self.releases:
            return self.given_in_full
        return self.releases[-1] if self.releases else None

    @property
    def assumed(self) -> tuple[str, ...]:
        """All that wasn't given."""
        return self.files if self.release is None else (self.release, *self.files)

    def line(self, *, files: bool = True) -> str | None:
        """One line for people; None where nothing was assumed and nothing contradicts.

        Without ``files``, only the release matters, no sizes and switches.
        """
        said = list(self.assumed if files else self.assumed[: self.release is not None])
        said += self.kept if files else ()
        said += [f"BUT {one}" for one in self.contradictions if files or not one.by_conf]
        if self.offered is not None and said:
            said.append(f"a broker.conf lies at {self.offered}: give it with -c if it is this broker's")
        return "; ".join(said) or None

    @property
    def hiding(self) -> tuple[Contradiction, ...]:
        """What keeps files from being read as what they are."""
        return tuple(one for one in self.contradictions if one.hides)

    def refuse_hidden(self, directory: Path) -> None:
        """Refuse to read files that aren't as the settings say, in the words of check: SettingsError."""
        for one in self.hiding:
            if one.directory == directory.name:
                text, step = "these settings aren't those of this store", one.next_step
                raise SettingsError(text, path=directory, expected=one.used, found=one.shown, next_step=step)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "rocketmq_releases": list(self.releases),
            "assumed": [*self.assumed, *self.kept],
            "contradictions": [one.to_dict() for one in self.contradictions],
            "broker_conf_nearby": None if self.offered is None else str(self.offered),
        }

    def refuse(self, asked: Asked, root: Path) -> None:
        """Refuse to write what the store speaks against."""
        if asked.writes is Writes.NOTHING:
            return
        found = [one for one in self.contradictions if _counts(one, asked)]
        if asked.writes is Writes.IN_PLACE and not asked.converts:
            found += [one for one in self.unproven if _counts(one, asked)]
        if not found:
            return
        steps = dict.fromkeys(one.next_step for one in found)
        offered = "" if self.offered is None else f" (there is {self.offered})"
        convert = _CONVERT if asked.writes is Writes.IN_PLACE and any(one.given for one in found) else ""
        given = any(one.given for one in found)
        raise SettingsError(
            "these settings aren't those of this store" if given else "the store doesn't tell its settings",
            path=root,
            expected="; ".join(one.shown if one.given else one.used for one in found),
            found="; ".join(one.used if one.given else one.shown for one in found),
            next_step=". ".join(steps) + offered + convert,
        )


def _counts(one: Contradiction, asked: Asked) -> bool:
    if one.directory == names.INDEX and not asked.index:
        return False
    if not one.given:
        return True
    if asked.writes is Writes.IN_PLACE:
        return not asked.converts
    return not (asked.conf_by_hand if one.by_conf else asked.version_by_hand)


class Weighing:
    """Gathers what settings rest on while they are read; ``conf`` without a path: none was given."""

    def __init__(self, evidence: Evidence, conf: BrokerConf, version: str | None) -> None:
        self._evidence = evidence
        self._conf = conf
        self._version = version
        self._said: str | None = None
        self._assumed: list[str] = []
        self._contradictions: list[Contradiction] = []
        self._unproven: list[Contradiction] = []
        self._release(conf.rules, version)
        if version is not None and is_newer(version):
            self._assumed.append(f"RocketMQ {version} is newer than all that is known: as {conf.rules.name}")
        if conf.passed_over:
            keys = " and ".join(conf.passed_over)
            release = in_full(version) or conf.rules.versions[-1]
            self._assumed.append(f"RocketMQ {release} doesn't read {keys}, which it spells otherwise")

    def sizes(self, sizes: Sizes, values: tuple[int, ...], directory: str) -> tuple[int, ...]:
        """The values to go by, of ``values`` that broker.conf or RocketMQ's defaults say."""
        given = self._conf.path is not None
        if not given and sizes.shown is not None:
            self._assumed.append(str(sizes))
            return sizes.shown
        if not sizes.looked_at:
            # Of what a plain store hasn't got, nothing need be said.
            if not given and directory in (names.CONSUME_QUEUE, names.INDEX):
                self._assumed.append(f"{sizes}: {DEFAULT}, {sizes.of(values)}")
                settings, default = ", ".join(sizes.settings), f"{sizes}, which would show it"
                asked = f"a broker.conf that says which {' and '.join(sizes.units)}"
                self._unproven.append(
                    Contradiction(settings, default, asked, _CONF, True, given=False, directory=directory)
                )
            return values
        if given and self._agrees(sizes, values):
            return values
        named = [key for key in sizes.settings if self._conf.entry(key) is not None]
        keys = [self._conf.spelled(key) for key in sizes.settings]
        used = ", ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        used = used if named else f"{used}, {DEFAULT}"
        self._contradict(
            ", ".join(keys),
            str(sizes),
            used if given else f"a broker.conf that says which {' and '.join(sizes.units)}",
            directory,
            given=given,
            hides=given or sizes.near is None,
        )
        if given:
            return values
        return sizes.near or (sizes.counts[0][0] if sizes.counts else values)

    def switch(self, key: str, shown: bool | None, why: str, directory: str) -> bool:
        """A switch; what the store can't show is as broker.conf says, or RocketMQ's default."""
        value = self._conf.switch(key)
        if shown is None or shown is value:
            return value
        text = f"{key}={str(shown).lower()}, for {why}"
        if self._conf.path is None:
            self._assumed.append(text)
            return shown
        default = "" if self._conf.entry(key) is not None else f", {DEFAULT}"
        self._contradict(key, text, f"{key}={str(value).lower()}{default}", directory)
        return value

    def unknown(self, setting: str, why: str, directory: str) -> None:
        """What decides bytes here and can't be told from the store; nothing where broker.conf is given."""
        if self._conf.path is None:
            self._contradict(setting, why, f"a broker.conf with {setting}", directory, given=False)

    def basis(self, root: Path, kept: tuple[str, ...] = ()) -> Basis:
        """All that the settings rest on."""
        offered = _nearby(root) if self._conf.path is None and root.is_dir() else None
        return Basis(
            self._said,
            tuple(self._assumed),
            tuple(self._contradictions),
            self._evidence,
            offered,
            self._conf.rules.versions,
            self._version,
            kept,
            tuple(self._unproven),
        )

    def _agrees(self, sizes: Sizes, values: tuple[int, ...]) -> bool:
        if sizes.shown is not None:
            # A single file that is shorter than it should be has been cut.
            alone = sizes.counts[0][1] == 1
            return sizes.shown == values or (alone and sizes.bytes_of(sizes.shown) < sizes.bytes_of(values))
        if sizes.length is not None:
            return sizes.bytes_of(values) == sizes.length
        return not sizes.counts or any(seen == values for seen, _ in sizes.counts)

    def _release(self, rules: Dialect, version: str | None) -> None:
        release = self._evidence.release
        if version is None and not release.is_mixed:
            self._said = release.told
        elif version is None or not release.allows(rules):
            used = "the release whose files a run is to write" if version is None else f"RocketMQ {version}"
            self._contradictions.append(
                Contradiction(
                    "--rocketmq-version",
                    str(release),
                    used,
                    _VERSION,
                    by_conf=False,
                    given=version is not None,
                )
            )

    def _contradict(
        self, setting: str, shown: str, used: str, directory: str, *, given: bool = True, hides: bool = False
    ) -> None:
        """The store speaks against what broker.conf says, or a broker.conf is needed; see Contradiction."""
        step, passed = _CONF, self._conf.passed_over
        if passed:  # keys of other releases
            keys = " and ".join(self._conf.respelled(key) for key in passed)
            step = f"{_VERSION}. If it was this one, it reads {keys}"
        self._contradictions.append(
            Contradiction(setting, shown, used, step, True, given=given, directory=directory, hides=hides)
        )


def _nearby(root: Path) -> Path | None:
    """A broker.conf that lies where a broker's often does; it may be another's."""
    for place in (root, root / "conf", root / names.CONFIG, root.parent, root.parent / "conf"):
        try:
            if (place / "broker.conf").is_file():
                return place / "broker.conf"
        except (OSError, ValueError):
            continue
    return None
