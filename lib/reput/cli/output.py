"""What commands say: results to stdout, everything else to stderr; as text for people or as JSON."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import typer
from rich import progress as rich_progress
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from reput.catalog import Cataloged
from reput.cli.process import INTERRUPTED, REFUSED
from reput.config.basis import Basis
from reput.errors import Fact, Finding, ReputError, Result
from reput.newer_python import Self
from reput.remote import with_urls
from reput.replay.state import FILLED, HIDDEN, KEPT
from reput.store.system import human
from reput.unforeseen import unforeseen
from reput.words import SCHEMA_VERSION, counted, visible

if TYPE_CHECKING:
    from reput.job import Summary
    from reput.job.plan import Preview
    from reput.output.writer import Progress

_LINE_EVERY_SECONDS = 5.0
_progress = True
_command = ""
_RATE_SECONDS, _RATE_BYTES = 1.0, 1 << 16
#: What reput means where it prints lines; in a text from the store they would begin another line or column.
_MEANT = "\t\n"
#: Names in a line, and lines of one kind, that people are shown.
_MOST = 20


class Output:
    """Where a command's result goes, and why it has none: text for people, or one JSON document on stdout.

    Within its ``with`` block a command does its work. Where that fails the output says why, and ends the
    command: with 2 for everything that is no result, with 130 when interrupted.

    Args:
        interrupted: what an interrupt leaves.
        failed: shows why the command was refused or failed; by default to stderr, and JSON to stdout, too.
        command: its name, for programs; by default as it was called.
    """

    def __init__(
        self,
        as_json: bool,
        *,
        interrupted: str = "the same command goes on from the last committed batch",
        failed: Callable[[ReputError], None] | None = None,
        command: str | None = None,
    ) -> None:
        self._as_json = as_json
        self._command = _command if command is None else command
        self._interrupted = interrupted
        self._failed = failed or self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            told(f"interrupted; {self._interrupted}")
            raise typer.Exit(INTERRUPTED) from None
        if isinstance(error, Exception):
            # A bug must not look like exit code 1, a run with findings.
            self._failed(error if isinstance(error, ReputError) else unforeseen(error))
            raise typer.Exit(REFUSED) from None

    def _error(self, error: ReputError) -> None:
        if self._as_json:
            self.put(error.document(), ())
        told(error)

    def put(self, facts: Mapping[str, object], lines: Iterable[str]) -> None:
        """Show the one or the other; the document says first of which command it is, and its schema."""
        head = {"command": self._command, "schema_version": SCHEMA_VERSION}
        printed(*([json.dumps({**head, **facts}, indent=2)] if self._as_json else lines))

    def end(self, code: int, facts: Mapping[str, object], lines: Iterable[str]) -> NoReturn:
        """Show what came of the command, and end it.

        Raises:
            typer.Exit: always; with ``code``.
        """
        self.put({"exit_code": code, **facts, "next_steps": facts.get("next_steps", [])}, lines)
        raise typer.Exit(code)

    def show(self, result: Result, lines: Iterable[str]) -> NoReturn:
        """The same of a result that knows its exit code and its facts."""
        self.end(result.exit_code, result.to_dict() if self._as_json else {}, lines)


def set_command(name: str) -> None:
    """Which command runs, as behind ``reput``: ``check``, ``dump index``; documents say it."""
    global _command
    _command = name


def printed(*lines: str) -> None:
    """Lines of a result, to stdout.

    What the terminal's encoding lacks, in a topic or a path, shows as escapes, and so does what would steer
    the terminal. Who closes the pipe (``| head``, ``| less``) has seen enough: the rest is dropped, and the
    command ends with its own exit code.

    Raises:
        SystemExit: the lines can't be written, to a full disk for instance; 2, for nobody has the result.
    """
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        for line in lines:
            print(_tamed(line))
        sys.stdout.flush()
    except BrokenPipeError:
        let_go_of_stdout()
    except OSError as error:
        unwritten(error)


def unwritten(error: OSError) -> NoReturn:
    """Say that stdout doesn't take what is to be printed, and end.

    Raises:
        SystemExit: always; 2.
    """
    let_go_of_stdout()
    told(f"the result can't be written to stdout; found {error.strerror}")
    raise SystemExit(REFUSED) from None


def let_go_of_stdout() -> None:
    """Send what is still in buffers nowhere, so that Python doesn't try to write it when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def show_progress(wanted: bool) -> None:
    """Whether progress, and what settings are based on, go to stderr."""
    global _progress
    _progress = wanted


def noted(message: object) -> None:
    """A line of progress, to stderr, unless it isn't wanted."""
    if _progress:
        told(message)


def told(message: object) -> None:
    """A line about the run, to stderr; who closes that doesn't end the run."""
    with suppress(OSError, ValueError):
        print(f"reput: {_tamed(str(message))}", file=sys.stderr, flush=True)


def _tamed(text: str) -> str:
    return visible(with_urls(text), _MEANT)


def settings_lines(basis: Basis, *, files: bool = True) -> list[str]:
    """The line of a summary that says what was assumed, and what the store says against what was given.

    ``files``: sizes and switches matter, too, not only the release.
    """
    line = basis.line(files=files)
    return [] if line is None else [f"  settings   {inline(line)}"]


def settings_told(basis: Basis, *, files: bool = True) -> None:
    """The same, to stderr, of a command whose output is what was asked for and nothing else."""
    line = basis.line(files=files)
    if line is not None:
        noted(f"settings: {inline(line)}")


def inline(text: str) -> str:
    """A text from a store as part of a line.

    What would end the line, steer a terminal or can't be seen shows as escapes.
    """
    return visible(text)


def summary_lines(summary: Summary) -> list[str]:
    """What came of a rebuild, for people."""
    return [
        _headline(summary) + (", but no broker starts on it" if summary.stops else ""),
        *_stops(summary),
        *_facts(summary),
        *remarks(summary),
        *_salvaged(summary),
        *findings_lines(summary.findings),
    ]


def preview_lines(preview: Preview) -> Iterator[str]:
    """What a rebuild would do, for people."""
    does = "replace files of" if preview.in_place else f"rebuild {preview.output} from"
    yield f"Nothing was done. Would {does} {preview.store} as RocketMQ {preview.rocketmq_version} writes it"
    yield from settings_lines(preview.basis)
    if preview.finishes_swap:
        yield "  first      finish the replacing of files that was interrupted"
    if preview.continues:
        yield f"  continues  at {preview.start}, where an earlier run stopped"
    size = human(max(preview.likely_end - preview.start, 0))
    yield f"  log        {preview.start} to about {preview.likely_end}: some {size}"
    messages = f"{preview.estimated_messages:,} messages and {preview.estimated_keys:,} keys"
    yield f"  holds      some {messages} in all, by a sample"
    if preview.in_place:
        yield f"  replaces   {', '.join(preview.replaces) or 'nothing that is there'}; the old files are kept"
    free = human(preview.free_bytes)
    yield f"  needs      some {human(preview.needed_bytes)} of disk in all; {free} are free"
    for name, meant in preview.unknown_queues.items():
        yield f"  unknown    {_unknown(name, meant)}"
    yield "  not read   the log, but for that sample"


def _unknown(name: str, meant: str | None) -> str:
    said = f"neither config/topics.json nor a directory has {name}"
    return said if meant is None else f"{said}; did you mean {meant}?"


def warn_of_unknown(store: Path, chosen: Sequence[str] | None) -> None:
    """Say before a long run that a queue is perhaps misspelt; only the log tells whether there is one.

    Raises:
        SettingsError: a queue can't be understood.
    """
    if chosen:
        from reput.config.kept import unknown_queues
        from reput.replay.target import Selection

        for name, meant in unknown_queues(store, Selection.parse(chosen).queues).items():
            told(_unknown(name, meant))


def _headline(summary: Summary) -> str:
    whose = f"{summary.store} as RocketMQ {summary.rocketmq_version} writes it"
    if summary.followed:
        return f"Followed {whose}, up to {summary.end}"
    if summary.kept is not None:
        return f"Rebuilt and replaced the files of {whose}"
    if summary.in_place:
        return f"Replaced nothing in {summary.store}: the log has no message for what was asked"
    if not summary.new_messages and summary.messages:
        return f"Nothing to do: {summary.output} has all of {whose}"
    return f"Rebuilt {summary.output} from {whose}"


def _facts(summary: Summary) -> list[str]:
    rate = human(int(summary.new_bytes / max(summary.seconds, 1e-9)))
    batches = counted(summary.batches, "batch", "batches")
    index = f"{counted(summary.index_files, 'file')} with {counted(summary.index_entries, 'key')}"
    if not summary.index_files:
        index = "none"
    messages = f"{counted(summary.messages, 'message')}, {human(summary.bytes)}"
    lines = [
        *settings_lines(summary.basis),
        f"  log        {summary.start} to {summary.end}: {messages}",
        f"  queues     {counted(summary.queues, 'queue')} with {counted(summary.units, 'unit')}",
        f"  index      {index}",
    ]
    if summary.new_messages == summary.messages:
        lines.append(f"  took       {summary.seconds:.1f} s in {batches}, {rate}/s")
    elif summary.new_messages:
        new = f"{counted(summary.new_messages, 'message')}, {human(summary.new_bytes)}"
        lines.append(f"  new        {new}; the rest was there already")
        lines.append(f"  took       {summary.seconds:.1f} s, {rate}/s")
    if summary.catalog is not None:
        done = summary.catalog
        lines.append(f"  catalog    {counted(done.messages, 'message')}, {done.added:,} of them new")
        lines += cataloged_apart(done)
    if summary.kept:
        lines.append(f"  replaced   the old files are kept in {summary.kept}")
    return lines


def cataloged_apart(done: Cataloged) -> list[str]:
    """What should be known of a run on a table of messages, where there is something."""
    lines = []
    if done.removed:
        versions = ", ".join(str(version) for version in done.removed_after)
        lines.append(
            f"  taken out  {counted(done.removed, 'message')} that the log doesn't hold any more; "
            f"the table has them in version {versions}"
        )
    if done.expired:
        lines.append(
            f"  unread     {human(done.expired)} that the broker had deleted before they were cataloged"
        )
    if done.retired:
        lines.append(f"  retired    {counted(done.retired, 'message')} of days that the table isn't to keep")
    if done.vacuumed:
        lines.append(f"  vacuumed   {counted(done.vacuumed, 'file')} taken out of the table a week ago")
    if done.findings:
        lines.append(
            f"  lacks      {counted(len(done.findings), 'range')} of the log; do what `reput check` says, "
            "then run the same command again"
        )
    return lines


def remarks(summary: Summary) -> list[str]:
    """Lines about queues and topics that aren't as one may expect."""
    lines = []
    if summary.absent_queues:
        lines.append(f"  absent     the log has no message for {listed(summary.absent_queues)}")
        if summary.did_you_mean:
            meant = [f"{one} for {name}" for name, one in summary.did_you_mean.items()]
            lines.append(f"             Did you mean {listed(meant)}?")
    if summary.carried_queues:
        lines += [
            f"  expired    the log has no message any more for {listed(summary.carried_queues)}",
            "             The last file was carried over, as a broker keeps it, so that offsets go on.",
        ]
    if summary.doubtful_queues:
        lines += [
            f"  doubtful   expected in the log and not found: messages of {listed(summary.doubtful_queues)}",
            "             The carried file points at them; consumers get what lies there, or nothing.",
        ]
    gone = [
        f"{queue} begins at offset 0 again: {reason}" for queue, reason in summary.vanished_queues.items()
    ]
    lines += at_most("  gone       ", gone, "             and {} more queues; --json lists all")
    if summary.unknown_topics:
        lines += [
            f"  unknown    not in config/topics.json: {listed(summary.unknown_topics)}",
            "             A deleted topic comes back with its files; --known-topics-only leaves it out.",
        ]
    left_out = [
        f"{topic}: {counted(count, 'message')} got no units" for topic, count in summary.without_units.items()
    ]
    lines += at_most("  left out   ", left_out, "             and {} more topics; --json lists all")
    if summary.left_alone:
        lines.append(f"  as it was  {listed(summary.left_alone)}: the commit log alone doesn't hold them")
    return lines


def _stops(summary: Summary) -> Iterator[str]:
    if summary.stops:
        yield from fact_lines("stops at", summary.stops, Path(summary.store))
        yield from step_lines([], list(dict.fromkeys(problem.next_step for problem in summary.stops)))


def _salvaged(summary: Summary) -> list[str]:
    words = {
        KEPT: ("damaged range kept in lost-and-found", "damaged ranges kept in lost-and-found"),
        FILLED: ("place of a lost message filled", "places of lost messages filled"),
        HIDDEN: ("message that no queue shows", "messages that no queue shows"),
    }
    said = [counted(count, *words[kind]) for kind, count in summary.salvaged.items() if count]
    return [f"  salvaged   {', '.join(said)}: the ledger lists them"] if said else []


def findings_lines(findings: Sequence[Finding]) -> list[str]:
    """What a rebuild found in the log, for people."""
    if not findings:
        return ["  findings   none: every byte of the log was understood"]
    more = "    and {} more; --json prints all, and the ledger has them"
    return [f"  findings   {len(findings):,}", *at_most("    ", findings, more)]


def at_most(lead: str, items: Sequence[object], more: str) -> Iterator[str]:
    """A line for each of the first items, and one that says how many more there are, in place of its {}."""
    yield from (f"{lead}{item}" for item in items[:_MOST])
    if len(items) > _MOST:
        yield more.format(f"{len(items) - _MOST:,}")


def fact_lines(title: str, facts: Sequence[Fact], root: Path) -> Iterator[str]:
    """A section of a result: how many facts, and the first of them, each path once.

    ``root``: the store that the result names; paths in it are shown relative to it.
    """
    if not facts:
        yield f"  {title:<10} none"
        return
    yield f"  {title:<10} {len(facts):,}"
    of_path: dict[str, list[str]] = {}
    for fact in facts:
        path = Path(fact.path)
        shown = str(path.relative_to(root)) if path != root and path.is_relative_to(root) else fact.path
        of_path.setdefault(shown, []).append(f"{fact.kind}: {fact.said}")
    lines = [
        f"{path}: {found[0]}" if len(found) == 1 else "\n      ".join([f"{path}:", *found])
        for path, found in of_path.items()
    ]
    yield from at_most("    ", lines, "    and {} more; --json prints all")


def step_lines(not_read: Sequence[str], next_steps: Sequence[str]) -> Iterator[str]:
    """What wasn't looked at, and what to do next: the lines behind a verdict."""
    for number, what in enumerate(not_read):
        yield f"  {'' if number else 'not read':<10} {what}"
    for number, step in enumerate(next_steps[:_MOST]):
        yield f"  {'' if number else 'next':<10} {step}"
    if len(next_steps) > _MOST:
        yield f"  {'':<10} and {len(next_steps) - _MOST:,} more; --json prints all"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_MOST])
    return shown if len(names) <= _MOST else f"{shown} and {len(names) - _MOST:,} more"


def age(ms: int) -> str:
    """``8 ms``, ``12.3 s``, ``4 min``, ``5.6 h``, ``78 d``; 0 ms for what lies in the future."""
    if ms < 1000:
        return f"{max(ms, 0)} ms"
    seconds = ms / 1000
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            value = seconds / unit
            return f"{value:,.1f} {name}" if value < 10 else f"{value:,.0f} {name}"
    return f"{seconds:.1f} s"


def table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[str]) -> Iterator[str]:
    """Lines of a table, each column as wide as what is in it; on a narrower terminal a line for each cell.

    ``rows``: texts, in the same order; none can begin another line. ``numbers``: the columns that are set to
    the right.
    """
    tamed = [tuple(map(inline, row)) for row in (names, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*tamed, strict=True)]
    right = [name in set(numbers) for name in names]
    if 0 < _columns() < 2 + sum(widths) + 2 * (len(widths) - 1):
        head, *body = tamed
        label = max(map(cell_len, head))
        for number, row in enumerate(body):
            yield from [""] if number else []
            yield from (
                f"  {_cell(name, label, False)}  {cell}" for name, cell in zip(head, row, strict=True)
            )
        return
    for row in tamed:
        cells = starmap(_cell, zip(row, widths, right, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()


def _columns() -> int:
    """How wide the terminal is; 0 where a table goes elsewhere."""
    return shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0


def _cell(text: str, width: int, right: bool) -> str:
    blank = " " * (width - cell_len(text))
    return blank + text if right else text + blank


class TailDisplay:
    """How a tail is doing, on stderr: a line every few seconds while there is something new."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._bytes = 0

    def update(self, done: int, messages: int, cursor: int, stored_ms: int) -> None:
        """Say how far the tail is.

        Args:
            done: bytes of log since the start.
            messages: messages since the start.
            cursor: physical offset that it has reached.
            stored_ms: storeTimestamp of the last message, ms.
        """
        now = time.monotonic()
        since = now - self._said
        if since < _LINE_EVERY_SECONDS or done == self._bytes:
            return
        rate = human(int((done - self._bytes) / since))
        stored = age(int(time.time() * 1000) - stored_ms)
        self._said, self._bytes = now, done
        noted(f"at {cursor}, {messages:,} messages, {rate}/s, the last one stored {stored} ago")


class ProgressDisplay:
    """Progress on stderr: a bar on a terminal, a line every few seconds elsewhere.

    ``doing``: what is being done. ``what``: what is counted besides bytes, in the singular.
    """

    def __init__(self, doing: str = "rebuilding", what: str = "message") -> None:
        self._doing, self._what = doing, what
        console = Console(stderr=True)
        self._bar = (
            rich_progress.Progress(
                TextColumn("[progress.description]{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            if console.is_terminal and _progress
            else None
        )
        self._task = self._bar.add_task("starting", total=None, facts="") if self._bar else None
        self._began: float | None = None
        self._begun_at = self._last = 0
        self._said = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, what: str) -> None:
        """Show what is being done before there is progress to show: a phase with a speed of its own."""
        self._began = None
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what)
        else:
            noted(what)

    def read(self, done: int, total: int) -> None:
        """As :meth:`update`, of bytes alone."""
        self.update(done, 0, total)

    def derived(self, progress: Progress, total: int) -> None:
        """As :meth:`update`, of what was derived from a log."""
        self.update(progress.bytes_done, progress.messages, total)

    def update(self, done: int, messages: int, total: int) -> None:
        """Show how far the run is: bytes of the log, messages, and bytes in all, 0 where that isn't known."""
        now = time.monotonic()
        if self._began is None or done < self._last:
            # The clock starts with the first part: what came before it was Spark's start, or another phase.
            self._began, self._begun_at = now, done
            if self._bar is not None and self._task is not None:
                self._bar.reset(self._task)
        self._last = done
        elapsed, since = now - self._began, done - self._begun_at
        facts = counted(messages, self._what)
        # What is known of the first moments, or of a few bytes, is no rate.
        known = elapsed >= _RATE_SECONDS and since >= _RATE_BYTES
        if known:
            facts += f", {human(int(since / elapsed))}/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, description=self._doing, completed=done, total=total or None, facts=facts
            )
        elif now - self._said >= _LINE_EVERY_SECONDS:
            self._said = now
            left = f", {age(int(elapsed / since * (total - done) * 1000))} left" if known and total else ""
            noted(f"{human(done)}{f' of {human(total)}' if total else ''}, {facts}{left}")
