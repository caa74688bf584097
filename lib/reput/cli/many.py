"""``reput check`` and ``reput rebuild`` with several stores: each where it lies, some at a time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput.caches import temporary
from reput.cli import app as commands
from reput.cli.arguments import BROKER_CONF_VARIABLE, VERSION_VARIABLE
from reput.cli.jvm import prepare_spark
from reput.cli.output import Output, at_most, inline, noted, table
from reput.cli.process import GRACE_SECONDS
from reput.cli.times import zone, zone_name
from reput.diagnosis.nightly import Again, Checked, check_again, row_of, that_count
from reput.errors import OutputError, ReputError, Result, SettingsError
from reput.job.many import REFUSED, Job, Once, Outcome, listed, plan_checks, plan_rebuilds, run_many, worst
from reput.job.options import RebuildOptions
from reput.spark.command import Command, Ended
from reput.spark.java import is_submitted
from reput.store.places import check_outside, lies_in
from reput.store.system import human
from reput.unforeseen import TRACEBACK
from reput.verify.proven import Proofs
from reput.words import SCHEMA_VERSION, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reput.cli.app import RebuildWords
    from reput.cli.check import CheckWords
    from reput.job.history import History, Row
    from reput.spark.on_host import HostRunner
    from reput.verify.plan import VerifyOptions

#: Of a store, and of a command that was refused or failed.
_CODES = (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Document(Result):
    """What a command printed as JSON."""

    code: int  # other than 2
    facts: dict[str, object]  # without what each document begins with
    kept: Proofs | None = None  # what it has proven; None for nothing

    @property
    def exit_code(self) -> int:
        """That of the command."""
        return self.code

    def to_dict(self) -> dict[str, object]:
        """The facts."""
        return self.facts


def run_on(host: str, runner: HostRunner, job: Job, again: Again | None = None) -> Document:
    """Do a job on its host.

    ``again``: what a check goes on from.

    Raises:
        ReputError: refused or failed there, or no executor is there.
    """
    try:
        ended = runner.run(host, lambda cores: command(job, cores, again))
    except ReputError as error:
        error.path = error.path or str(job.place.path)
        raise
    return _document_of(job, ended)


def run_here(job: Job, again: Again | None = None, server: str | None = None) -> Document:
    """Check a store on this host without Spark; ``server``: see :func:`_forks`, the rest :func:`run_on`."""
    return _document_of(job, replace(command(job, None, again), silent=True, server=server)())


def _document_of(job: Job, ended: Ended) -> Document:
    document = result(job, ended)
    return document if ended.kept is None else replace(document, kept=_proofs_of(job, ended.kept))


def _proofs_of(job: Job, data: bytes) -> Proofs:
    try:
        return Proofs.decode(data, job.place.path)
    except SettingsError as error:
        raise ReputError(
            "what was proven there can't be read here",
            path=job.place.path,
            expected=error.expected,
            found=error.found,
            next_step="See that its host has this release of reput",
            host=job.place.host,
        ) from error


def command(job: Job, cores: int | None, again: Again | None = None) -> Command:
    """The command that does a job by Spark with ``cores`` tasks at a time; None: without Spark."""
    options = job.options
    words, variables = [name(job), job.place.url or str(options.store)], dict[str, str]()
    conf = None if options.broker_conf is None else str(options.broker_conf)
    given = [("--broker-conf", BROKER_CONF_VARIABLE, conf, True)]
    given += [("--rocketmq-version", VERSION_VARIABLE, options.rocketmq_version, True)]
    if isinstance(options, RebuildOptions):
        words += ["--out", str(options.out), "--max-bytes-per-trigger", str(options.max_bytes_per_trigger)]
        words += ["--known-topics-only"] if options.known_topics_only else []
        by_hand = (options.conf_by_hand, options.version_by_hand)
        given = [(*one[:3], hand) for one, hand in zip(given, by_hand, strict=True)]
    for option, variable, value, hand in given:
        if value is not None and hand:
            words += [option, value]
        elif value is not None:
            variables[variable] = value
    words += [] if options.index else ["--no-index"]
    if TRACEBACK in os.environ:
        variables[TRACEBACK] = os.environ[TRACEBACK]
    if again is not None:
        words += ["--all"] if again.everything else []
        words += ["--digest"] if again.digests else []
    words += [] if cores is None else ["--master", f"local[{cores}]"]
    words += ["--json"]
    if again is None:
        return Command(tuple(words), variables)
    content = None if again.before is None else again.before.encode()
    return Command(tuple(words), variables, "--proofs", content)


def name(job: Job) -> str:
    """Of the command that does a job."""
    return "check" if job.is_check else "rebuild"


def result(job: Job, ended: Ended) -> Document:
    """What a command's document says.

    Raises:
        ReputError: that the command was refused or failed, or it printed no document.
    """
    try:
        document = json.loads(ended.stdout)
    except ValueError:
        document = None
    code = ended.code
    if not _is_document(job, code, document):
        raise ReputError(
            f"reput {name(job)} ended without a result",
            path=job.place.path,
            expected=f"a document of schema version {SCHEMA_VERSION}",
            found="; ".join((_how(code), *ended.last_lines)),
            next_step=(
                "Run it for this store alone, which says more. Where memory runs out, the system ends it"
                if job.place.host is None
                else "See the executor's stderr; the host needs memory for it, and this release of reput"
            ),
            host=job.place.host,
        )
    if "error" in document:
        steps = document.get("next_steps")
        raise ReputError(
            document["error"],
            **{key: document.get(key) for key in ("path", "offset", "expected", "found")},
            next_step=steps[0] if steps else None,
            host=job.place.host,
        )
    apart = ("command", "schema_version", "exit_code")
    return Document(code, {key: value for key, value in document.items() if key not in apart})


def _is_document(job: Job, code: int, document: object) -> bool:
    if not isinstance(document, dict) or code not in _CODES:
        return False
    # What ends a command before it has a name prints none.
    found = (document.get("exit_code"), document.get("schema_version"), document.get("command", name(job)))
    return found == (code, SCHEMA_VERSION, name(job))


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


How = Callable[[Job], Again | None]


def rebuild_several(output: Output, common: RebuildOptions, given: RebuildWords) -> None:
    """Rebuild stores, each to an output of its own, in one Spark session, and say what came of them.

    Raises:
        ReputError: refused; what fails of one store is that store's outcome.
        typer.Exit: at the end.
    """
    with output:
        if given.out_root is None:
            raise SettingsError(
                "where the outputs of several stores go is not clear",
                expected="--out-root DIR",
                found="none",
            )
        jobs = plan_rebuilds(listed(given.stores), given.out_root, common)
        outcomes = _done(jobs, "reput rebuild", given.master, given.at_once)
    out_root = str(given.out_root)
    facts = {"out_root": out_root, "stores": [outcome.to_dict() for outcome in outcomes]}
    code = worst(outcome.exit_code for outcome in outcomes)
    output.end(code, facts, _lines(outcomes, "Rebuilt", f" into {inline(out_root)}"))


def check_several(output: Output, common: VerifyOptions, given: CheckWords) -> None:
    """Diagnose stores, and say what came of them.

    Without --master and hosts each is a process of its own here, without Spark: what ends one, a lack of
    memory say, ends no other.

    Raises:
        ReputError: refused; what fails of one store is that store's outcome.
        typer.Exit: at the end.
    """
    with output:
        jobs = plan_checks(listed(given.stores), common)
        target = None if given.page is None else _target(given.page, jobs, given.history, force=given.force)
        with ExitStack() as held:
            # Before the history is opened, which starts threads.
            server = None if _needs_spark(jobs, given.master) else held.enter_context(_forks())
            kept = None if given.history is None else held.enter_context(_history(given.history, jobs))
            night = Night(kept, jobs, everything=given.everything, digests=given.digests)
            outcomes = _done(
                night.todo, "reput check", given.master, given.at_once, night.work, night.take, server
            )
            if target is not None:
                from reput.report.fleet import write
                from reput.report.numbers import Zone

                write(target, night.rows, night.earlier, Zone(zone(), zone_name()))
            night.end()  # last: a run whose page can't be written is continued, and only writes that
    code = worst(int(row["exit_code"]) for row in night.rows)
    facts: dict[str, object] = {"stores": night.documents}
    if kept is not None:
        facts |= {"history": str(kept.directory), "run": kept.run}
    output.end(code, facts, [*_lines(night.outcomes(outcomes), "Checked"), *night.lines(given.page)])


def _history(directory: Path, jobs: Sequence[Job]) -> History:
    """The history, which lies in no store.

    Raises:
        OutputError: it does.
    """
    from reput.job.history import History

    here = tuple(job.place.path for job in jobs if job.place.is_here)
    check_outside("a history", directory, here, "Name another directory with --history.")
    return History(directory)


def _target(page: Path, jobs: Sequence[Job], history: Path | None, *, force: bool) -> Path:
    """Where the page goes: in no store, and not into the history, which holds nothing else."""
    from reput.report.page import check_page

    if history is not None and lies_in(page, history):
        raise OutputError(
            "a page isn't written into the history",
            path=page,
            expected=f"a place outside of {history}",
            next_step="Name another file with --out",
        )
    return check_page(page, tuple(job.place.path for job in jobs if job.place.is_here), force=force)


def _done(
    jobs: Sequence[Job],
    application: str,
    master: str | None,
    at_once: int | None,
    how: How = lambda _job: None,
    listener: Callable[[Outcome], None] = lambda _outcome: None,
    server: str | None = None,
) -> list[Outcome]:
    """What came of all; a line on stderr for each.

    ``how``: what a job goes on from. ``listener``: gets each outcome before it is told. ``server``: see
    :func:`_forks`.
    """
    if not jobs:
        return []
    if needs_spark := _needs_spark(jobs, master):
        prepare_spark()
    if any(job.place.host is not None for job in jobs):
        _check_cluster(master)
    left = len(jobs)

    def told_of(outcome: Outcome) -> None:
        nonlocal left
        listener(outcome)
        left -= 1
        noted(f"{outcome.job.place}: exit code {outcome.exit_code}, {counted(left, 'store')} left")

    if not needs_spark:
        return run_many(jobs, lambda job: run_here(job, how(job), server), at_once or 1, told_of)
    session = Once(lambda: commands.start_spark(application, master))
    return run_many(jobs, _worker(session, how), at_once or 1, told_of)


def _needs_spark(jobs: Sequence[Job], master: str | None) -> bool:
    on_hosts = any(job.place.host is not None for job in jobs)
    return on_hosts or master is not None or is_submitted() or not all(job.is_check for job in jobs)


@contextmanager
def _forks() -> Iterator[str | None]:
    """Where a server listens that forks checks with all loaded; None where there can't be one."""
    from reput.diagnosis import check  # noqa: F401
    from reput.spark import fork_server
    from reput.verify import run  # noqa: F401

    with ExitStack() as held:
        try:
            path = held.enter_context(temporary("reput-forks-")) / "fork"
        except OSError:  # no room; each check loads by itself
            yield None
            return
        server = fork_server.begin(path, GRACE_SECONDS)
        try:
            yield None if server is None else str(path)
        except BaseException:
            if server is not None:
                server.let_go()  # checks under way end as this process does
            raise
        if server is not None:
            server.end()


def _check_cluster(master: str | None) -> None:
    """Check that there may be executors on other hosts.

    Raises:
        SettingsError: the session will be a local one.
    """
    from reput.spark.sessions import master_of

    found = master_of(master)
    if found is not None and found.startswith("local"):
        raise SettingsError(
            "a store on a host needs a Spark executor there",
            expected="a cluster's master",
            found=found,
            next_step="Name it with --master, or run it by spark-submit; a path without a host is one here",
        )


def _worker(session: Callable[[], SparkSession], how: How) -> Callable[[Job], Result]:
    """What does a job, here or on its host; ``session`` gives the one that all share."""
    from reput.config.stand_in import borrowed
    from reput.diagnosis.check import check
    from reput.job.rebuilding import rebuild

    def start() -> HostRunner:
        from reput.spark.on_host import HostRunner

        return HostRunner(session().sparkContext)

    runner = Once(start)

    def work(job: Job) -> Result:
        again = how(job)
        if job.place.host is not None:
            return run_on(job.place.host, runner(), job, again)
        if isinstance(job.options, RebuildOptions):
            return rebuild(job.options, session)
        known = {} if again is None else again.known_files
        with borrowed(job.options.store, derived=True, known=known) as store:
            options = replace(job.options, store=store)
            return check(options, session) if again is None else check_again(options, again, session)

    return work


class Night:
    """What is checked in one run, and its rows.

    ``history``: None without one: then all is compared, and rows are of this run alone.

    Attributes:
        rows: of all stores, in their order, once all are done.
        documents: what --json prints of each.
        earlier: rows of the runs before, in the order of time.
    """

    def __init__(
        self, history: History | None, jobs: Sequence[Job], *, everything: bool = False, digests: bool = False
    ) -> None:
        self._history = history
        self._jobs = jobs
        self._everything, self._digests = everything, digests
        self._rows: dict[str, Row] = {}
        self._documents: dict[str, dict[str, object]] = {}
        self._last: dict[str, Row | None] = {}
        self.earlier: list[Row] = []
        self.todo = list(jobs)
        if history is None:
            return
        history.begin(_asked(jobs, "all" if everything else "digest" if digests else ""))
        for job in jobs:
            row = history.done(job.place)
            if row is None or row["exit_code"] == 2:  # what was refused may be there now
                self._last[str(job.place)] = history.last(job.place)
                continue
            self.todo.remove(job)
            self._take_row(job, row, _document(row))
        if len(self.todo) < len(jobs):
            noted(f"run {history.run} goes on: {counted(len(self.todo), 'store')} left")
        self.earlier = history.rows([job.place for job in jobs], _TREND)
        self.earlier = [row for row in self.earlier if row["run"] != history.run]

    def work(self, job: Job) -> Again | None:
        """What a job goes on from; None without a history."""
        if self._history is None:
            return None
        try:
            before = self._history.proofs(self._last[str(job.place)])
        except ReputError:
            if not self._everything:
                raise
            before = None
        return Again(before, self._everything, self._digests)

    def take(self, outcome: Outcome) -> None:
        """Commit the row of a store."""
        job = outcome.job
        last = self._last.get(str(job.place))
        document = outcome.to_dict()
        row = row_of(outcome, document, last)
        if self._history is not None:
            before = None if last is None else last["proofs"]
            row = self._history.add(job.place, row, _proofs(outcome), before)
        self._take_row(job, row, document)

    def outcomes(self, done: Sequence[Outcome]) -> list[Outcome]:
        """Those of all stores, in their order: what came of a run, and rows that were there already."""
        made = {str(one.job.place): one for one in done}
        return [made.get(str(job.place)) or _resumed(job, self._rows[str(job.place)]) for job in self._jobs]

    def _take_row(self, job: Job, row: Row, document: dict[str, object]) -> None:
        self._rows[str(job.place)] = row
        self._documents[str(job.place)] = document

    def end(self) -> None:
        """All are done."""
        if self._history is not None:
            self._history.end()

    @property
    def rows(self) -> list[Row]:
        """Those of all stores, in their order."""
        return [self._rows[str(job.place)] for job in self._jobs]

    @property
    def documents(self) -> list[dict[str, object]]:
        """What ``--json`` prints of each store, in their order."""
        return [self._documents[str(job.place)] for job in self._jobs]

    def lines(self, page: Path | None) -> Iterator[str]:
        """What is said of the run besides its stores."""
        if self._history is not None:
            read = sum(row.get("bytes_read") or 0 for row in self.rows)
            skipped = sum(row.get("bytes_skipped") or 0 for row in self.rows)
            yield f"  read       {human(read)}; {human(skipped)} of log as it was when it was compared"
            whole = sum(_is_whole(document) for document in self.documents)
            if whole:
                yield (
                    f"  whole      {counted(whole, 'store')} each time: what is in RocksDB, or in "
                    "consumequeue_ext, isn't bound to segments that were compared"
                )
            asked = sum(row.get("requests") or 0 for row in self.rows)
            if asked:
                fetched = sum(row.get("bytes_fetched") or 0 for row in self.rows)
                yield f"  fetched    {human(fetched)} by {counted(asked, 'request')}"
            done = len(self._jobs) - len(self.todo)
            if done:
                yield f"  continued  {counted(done, 'store')} had their rows already"
            yield f"  history    run {self._history.run} in {inline(str(self._history.directory))}"
        if page is not None:
            yield f"  page       {inline(str(page))}"


@dataclass(frozen=True, slots=True)
class _Resumed(Result):
    """What came of a store that has its row already."""

    row: Row

    @property
    def exit_code(self) -> int:
        return int(self.row["exit_code"])

    def to_dict(self) -> dict[str, object]:
        """What its row says; numbers of queues and files aren't in it."""
        return {
            "summary": self.row["summary"],
            "messages": self.row["messages"],
            "findings": self.row["findings"] or 0,
            "next_steps": self.row["next_steps"] or [],
        }


def _resumed(job: Job, row: Row) -> Outcome:
    refused = int(row["exit_code"]) == REFUSED
    return Outcome(job, ReputError(row["summary"]) if refused else _Resumed(row), row["seconds"])


def _asked(jobs: Sequence[Job], how_much: str) -> str:
    """What is asked of a run, so that it isn't continued by one that something else is asked of."""
    of_each = [
        (str(job.place), job.options.index, job.options.rocketmq_version, job.options.broker_conf)
        for job in jobs
    ]
    return json.dumps([how_much, *sorted(of_each, key=lambda one: one[0])], default=str)


def _proofs(outcome: Outcome) -> Proofs | None:
    """What an outcome proves; None for nothing."""
    result = outcome.result
    if isinstance(result, Checked):
        return result.proofs
    return result.kept if isinstance(result, Document) else None


def _is_whole(document: dict[str, object]) -> bool:
    remembered = document.get("remembered")
    return isinstance(remembered, dict) and remembered.get("whole") is not None


def _document(row: Row) -> dict[str, object]:
    """What --json prints of a store that has its row already."""
    facts = {key: value for key, value in row.items() if key not in ("time", "proofs", "run")}
    return {**facts, "time": row["time"].isoformat(), "resumed": True}


#: Earlier runs that a page shows of each store.
_TREND = 60
_NUMBERS = ("code", "messages", "log", "queues", "index", "findings", "seconds")


def _lines(outcomes: Sequence[Outcome], did: str, where: str = "") -> Iterator[str]:
    done = sum(not isinstance(outcome.result, ReputError) for outcome in outcomes)
    yield f"{did} {done:,} of {counted(len(outcomes), 'store')}{where}"
    yield from table((*_NUMBERS, "store"), [_row(outcome) for outcome in outcomes], _NUMBERS)
    for outcome in outcomes:
        if isinstance(outcome.result, ReputError):
            yield f"  failed     {outcome.result}"
        elif outcome.exit_code:
            facts: Any = outcome.to_dict()
            on_host = "" if outcome.job.place.host is None else f"on {outcome.job.place.host}: "
            if outcome.job.is_check:
                yield f"  found      {on_host}{facts['summary']}"
            else:
                yield f"  findings   of {inline(str(outcome.job.place))}: in --json, and in its ledger"
            steps = facts["next_steps"]
            yield from at_most(f"  next       {on_host}", steps, "             and {} more; --json has all")


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _row(outcome: Outcome) -> tuple[str, ...]:
    facts: tuple[str, ...] = ("",) * 5
    if not isinstance(outcome.result, ReputError):
        found: Any = outcome.result.to_dict()
        findings = found["findings"]
        log = "" if found.get("bytes") is None else human(found["bytes"])
        queues, index = (_number(found.get(name)) for name in ("queues", "index_files"))
        count = findings if isinstance(findings, int) else len(that_count(findings))
        facts = (_number(found["messages"]), log, queues, index, f"{count:,}")
    return str(outcome.exit_code), *facts, f"{outcome.seconds:.1f}", str(outcome.job.place)
