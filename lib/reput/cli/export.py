"""``reput export`` and ``reput resend``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from reput.cli.arguments import (
    MEND,
    VERSION_VARIABLE,
    AsJson,
    Broker,
    Conditions,
    Dry,
    InZone,
    Limited,
    Words,
    argument,
    broker_conf,
    command,
    findings,
    flag,
    in_order,
    option,
    releases,
    unclear,
    wanted_of,
)
from reput.cli.output import (
    Output,
    ProgressDisplay,
    at_most,
    inline,
    let_go_of_stdout,
    noted,
    settings_lines,
    settings_told,
    told,
    unwritten,
)
from reput.errors import SettingsError
from reput.store.system import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.export.records import Apart
    from reput.export.send import Resent
    from reput.export.write import Exported

_EXAMPLES = """Examples:
  The messages that no queue leads to, as `reput check` names them:
    reput export /data/store --finding missing-unit --queue orders:3 -o stranded.jsonl
  The same as a small store that a broker can open:
    reput export /data/store --topic orders --as store -o small --broker-conf broker.conf
"""


@dataclass(kw_only=True)
class _Includes(Words):
    """What is left out unless it is asked for."""

    half: bool = flag("--half", "Include half messages, and those rolled back.")
    system_topics: bool = flag("--system-topics", "Include messages of system topics.")
    delayed: bool = flag("--delayed", "Include delayed messages that still wait.")
    damaged: bool = flag("--damaged", "Include messages that don't match their CRC.")

    @property
    def included(self) -> frozenset[Apart]:
        """It."""
        from reput.export.records import Apart

        given = {Apart.HALF: self.half, Apart.SYSTEM: self.system_topics}
        given |= {Apart.DELAYED: self.delayed, Apart.DAMAGED: self.damaged}
        return frozenset(kind for kind, is_given in given.items() if is_given)


@dataclass(kw_only=True)
class _Words(Conditions, Limited, _Includes, Broker, InZone, AsJson):
    store: Path = argument("STORE", "The store, a directory of segments, or a segment.")
    out: Path | None = option("--out -o FILE", "The file to write, or the new store; - for stdout.")
    form: Literal["lines", "store"] = option(
        "--as", "JSON lines, or the records of a small new store.", "lines"
    )
    finding: str | None = option(
        "--finding KIND", "Only messages of this finding of `reput check`.", autocompletion=findings
    )
    start: int = option("--start -s N", "Start at this physical offset.", 0, min=0)
    force: bool = flag("--force", "Replace a file that is there.")


@command("export", _EXAMPLES, MEND)
def export_command(given: _Words) -> None:
    """Save messages of the commit log: as JSON lines with all that is known of each, or as a small store.

    The store is only read, and a broker may run. All conditions must hold; ranges are half open. A file gets
    its name when it is whole: after an interrupt, run the same command again.

    A line can be sent again with `reput resend`. Lines leave nothing out. A new store leaves out what
    --half, --system-topics, --delayed and --damaged include.

    Exit code 0: all was written, or there was nothing to write. 1: written, with something left out, or with
    damage in the range that was read. 2: refused or failed.
    """
    from reput.dump.commitlog import MOST_OFFSET
    from reput.export.write import STDOUT, ExportOptions, export

    with Output(given.as_json, interrupted="nothing was written") as output:
        if given.out is None:
            raise SettingsError(
                "where the messages go is not clear",
                expected="--out FILE, --as store --out DIR, or --out - for stdout",
                found="no --out",
            )
        wanted = wanted_of(given)
        in_order("--start", given.start, "--end", given.end)
        if given.form == "lines" and given.included:
            raise unclear(
                f"--{sorted(given.included)[0]} without --as store",
                "lines, which leave nothing out, without it",
            )
        if given.out == STDOUT and given.as_json:
            raise unclear("--json with --out -", "--out - alone: the lines are JSON")
        options = given.to(
            ExportOptions, wanted=wanted, end=MOST_OFFSET if given.end is None else given.end,
            version=given.rocketmq_version,
        )  # fmt: skip
        result: Exported | None
        with ProgressDisplay("reading the commit log") as display:
            try:
                result = export(options, display.update)
            except BrokenPipeError:
                let_go_of_stdout()
                result = None
            except OSError as error:
                if given.out != STDOUT or error.filename is not None:
                    raise
                unwritten(error)
    if result is None:
        raise typer.Exit(0)  # who closed the pipe has seen enough
    if given.out == STDOUT:
        settings_told(result.basis, files=False)
        for line in _lines(result):
            told(line.strip())
        raise typer.Exit(result.exit_code)
    output.show(result, _lines(result))


def _lines(result: Exported) -> Iterator[str]:
    messages = counted(result.messages, "message")
    what = "" if result.options.finding is None else f" of {result.options.finding}"
    if result.out is None:
        meant = "" if result.did_you_mean is None else f"; did you mean {inline(result.did_you_mean)}?"
        is_kept = result.options.force and result.options.out.is_file()
        kept = f", and {result.options.out} is as it was" if is_kept else ""
        yield f"Nothing to save{what} in {result.settings.root}: no file was written{kept}{meant}"
    else:
        where = "stdout" if str(result.out) == "-" else result.out
        yield f"Saved {messages}{what}, {human(result.bytes)}, to {where}"
    if str(result.options.out) != "-":
        yield from settings_lines(result.basis, files=False)
    if result.first is not None:
        yield f"  from       {result.first} to {result.last} of {result.settings.root}"
    topics = [f"{count:,} {inline(topic)}" for topic, count in sorted(result.topics.items())]
    yield from at_most("  topic      ", topics, "             and {} more; --json lists all")
    yield from at_most("  left out   ", result.left_out, "             and {} more")
    yield from at_most("  not sure   ", result.not_checked, "             and {} more")
    yield from at_most("  damage     ", result.findings, "             and {} more; --json lists all")
    for step in result.next_steps:
        yield f"  next       {step}"


_RESEND_EXAMPLES = """Examples:
  What would be sent, by topic, and what wouldn't:
    reput resend stranded.jsonl --dry-run
  Send it, by the client in the broker's own lib/, with at most 500 messages a second:
    reput resend stranded.jsonl --name-server 10.0.0.5:9876 --client /opt/rocketmq/lib --rate 500
  To another topic, with access keys, by a client that is fetched:
    reput resend out.jsonl --name-server 10.0.0.5:9876 --to-topic new --access-keys k --rocketmq-version 5.3.3
"""


@dataclass(kw_only=True)
class _ResendWords(_Includes, Dry, AsJson):
    source: Path = argument("FILE", "What reput export wrote: a file of lines, or a small store.")
    name_server: str | None = option(
        "--name-server HOST:PORT",
        "Of the broker's cluster; several with ; between them.",
        envvar="NAMESRV_ADDR",
    )
    to_topic: str | None = option("--to-topic T", "Send to this topic, not to each message's own.")
    rate: float | None = option("--rate N", "At most N messages per second.", min=0.01)
    keys: Path | None = option(
        "--access-keys FILE",
        "accessKey and secretKey, as in conf/tools.yml (default: ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY).",
    )
    client: Path | None = option("--client DIR", "The client's jars, e.g. the broker's own lib/.")
    version: str | None = option(
        "--rocketmq-version V", "Without --client: fetch this release's client from Maven Central.",
        envvar=VERSION_VARIABLE, autocompletion=releases,
    )  # fmt: skip
    position: Path | None = option("--position FILE", "How far it is (default: FILE.position, beside it).")
    broker_conf: Path | None = broker_conf()


@command("resend", _RESEND_EXAMPLES, MEND)
def resend_command(given: _ResendWords) -> None:
    """Send exported messages again to a running broker, by RocketMQ's own Java client.

    Each is sent at least once: after an interrupt, a kill or an error the same command goes on, and repeats
    at most 256 messages, and those of a send that failed. Each gets a property REPUT_ORIGIN with its old id.

    Topics have to exist. A message goes to the queue with its old queueId, if the topic has it.

    Exit code 0: all is sent. 1: sent, but for what was left out or is damaged, or some may not be on disk
    yet. 2: refused or failed; what was sent is in the position.
    """
    from reput.export.send import ResendOptions, resend

    with Output(given.as_json, interrupted="the same command goes on with the next message") as output:
        result = resend(given.to(ResendOptions), _Progress().show)
    output.show(result, _resend_lines(result))


class _Progress:
    """A line on stderr now and then."""

    def __init__(self) -> None:
        import time

        self._clock = time.monotonic
        self._said = self._clock()

    def show(self, sent: int) -> None:
        """Say how many messages were sent, if some seconds have passed."""
        if self._clock() - self._said >= 5:
            self._said = self._clock()
            noted(f"{counted(sent, 'message')} sent")


def _resend_lines(result: Resent) -> Iterator[str]:
    options = result.options
    messages = counted(result.sent, "message")
    if options.dry_run:
        yield f"Nothing was sent. Would send {messages} of {options.source}"
    elif result.sent or not result.sent_before:
        yield f"Sent {messages} of {options.source} to {options.name_server}"
    else:
        yield f"Nothing to do: {options.source} was sent before"
    if result.sent_before or result.left_out_before:
        left_out = f", which left out {result.left_out_before:,}" if result.left_out_before else ""
        before = f"{counted(result.sent_before, 'message')}, by earlier runs{left_out}"
        yield f"  before     {before}: {result.position}"
    if result.findings_before:
        yield f"  damage     {counted(result.findings_before, 'damaged place')} met by earlier runs"
    topics = [f"{count:,} {inline(topic)}" for topic, count in sorted(result.topics.items())]
    yield from at_most("  topic      ", topics, "             and {} more; --json lists all")
    yield from at_most("  left out   ", result.left_out, "             and {} more; --json lists all")
    if result.unsure:
        why = "stored, but the broker didn't say that they are on disk, or on its slave"
        yield f"  not sure   {counted(result.unsure, 'message')}: {why}"
    yield from at_most("  damage     ", result.findings, "             and {} more; --json lists all")
    if result.sent and not options.dry_run:
        rate = result.sent / max(result.seconds, 1e-9)
        yield f"  took       {result.seconds:.1f} s, {rate:,.0f} messages/s"
        yield f"  position   {result.position}: keep it, else the next run sends everything again"
