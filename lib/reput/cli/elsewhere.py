"""One store of several, done by a command of its own here or on its host, and what came of it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reput.cli.arguments import BROKER_CONF_VARIABLE, VERSION_VARIABLE
from reput.diagnosis.nightly import Again
from reput.errors import ReputError, SettingsError
from reput.job.many import Job
from reput.job.options import RebuildOptions
from reput.spark.on_host import Command, Ended
from reput.unforeseen import TRACEBACK
from reput.verify.proven import Proofs
from reput.words import SCHEMA_VERSION

if TYPE_CHECKING:
    from reput.spark.on_host import HostRunner

#: Of a store, and of a command that was refused or failed.
_CODES = (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Document:
    """What a command printed as JSON.

    Attributes:
        exit_code: other than 2.
        facts: without what each document begins with.
        kept: what it has proven; None for nothing.
    """

    exit_code: int
    facts: dict[str, object]
    kept: Proofs | None = None

    def to_dict(self) -> dict[str, object]:
        """The facts."""
        return self.facts


def run_on(host: str, runner: HostRunner, job: Job, again: Again | None = None) -> Document:
    """Do a job on its host.

    Args:
        again: what a check goes on from.

    Raises:
        ReputError: refused or failed there, or no executor is there.
    """
    try:
        ended = runner.run(host, lambda cores: command(job, cores, again))
    except ReputError as error:
        error.path = error.path or str(job.place.path)
        raise
    return _document(job, ended)


def run_here(job: Job, again: Again | None = None) -> Document:
    """Check a store on this host without Spark; arguments and errors as for :func:`run_on`."""
    return _document(job, replace(command(job, None, again), silent=True)())


def _document(job: Job, ended: Ended) -> Document:
    document = result(job, ended)
    return document if ended.kept is None else replace(document, kept=_proofs(job, ended.kept))


def _proofs(job: Job, data: bytes) -> Proofs:
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
    if not _is_whole(job, code, document):
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


def _is_whole(job: Job, code: int, document: object) -> bool:
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
