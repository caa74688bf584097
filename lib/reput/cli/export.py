"""``reput export`` and ``reput resend``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reput.cli import app as commands
from reput.cli.arguments import (
    MEND,
    AsJson,
    BrokerConf,
    DryRun,
    Limit,
    TimeZone,
    WrittenBy,
    findings,
    releases,
)
from reput.cli.dump.options import Conditions, End, in_order, unclear, wanted_of, with_conditions
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
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.export.records import Apart
    from reput.export.write import Exported
    from reput.resend.send import Resent

EXAMPLES = """**Examples**

The messages that no queue leads to, as `reput check` names them:

    reput export /data/store --finding missing-unit --queue orders:3 -o stranded.jsonl

Ten messages of a topic, to look at:

    reput export /data/store --topic orders --limit 10 -o - | jq .keys

The same as a small store that a broker can open:

    reput export /data/store --topic orders --as store -o small --broker-conf broker.conf
"""


#: What is left out unless it is asked for; ``reput resend`` has the same.
Half = Annotated[
    bool, typer.Option("--half", help="Include half messages of transactions, and those rolled back.")
]
SystemTopics = Annotated[bool, typer.Option("--system-topics", help="Include messages of system topics.")]
Delayed = Annotated[
    bool, typer.Option("--delayed", help="Include delayed messages from the topic where they wait.")
]
Damaged = Annotated[bool, typer.Option("--damaged", help="Include messages that don't match their CRC.")]


@commands.app.command("export", epilog=EXAMPLES, rich_help_panel=MEND)
@with_conditions
def export_command(
    store: Annotated[
        Path,
        typer.Argument(
            metavar="STORE", help="The store; without --finding also a directory of segments, or a segment."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write, or the new store; - for stdout."
        ),
    ] = None,
    form: Annotated[
        Literal["lines", "store"],
        typer.Option("--as", help="As JSON lines, or as the records of a small new store."),
    ] = "lines",
    finding: Annotated[
        str | None,
        typer.Option(
            "--finding",
            metavar="KIND",
            autocompletion=findings,
            help="Only messages of this finding, as `reput check` names it, e.g. missing-unit.",
        ),
    ] = None,
    start: Annotated[
        int, typer.Option("--start", "-s", metavar="N", min=0, help="Start at this physical offset.")
    ] = 0,
    end: End = None,
    *,
    conditions: Conditions,
    limit: Limit = None,
    half: Half = False,
    system_topics: SystemTopics = False,
    delayed: Delayed = False,
    damaged: Damaged = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    broker_conf: BrokerConf = None,
    rocketmq_version: WrittenBy = None,
    _tz: TimeZone = None,
    as_json: AsJson = False,
) -> None:
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

    with Output(as_json, interrupted="nothing was written") as output:
        if out is None:
            raise SettingsError(
                "where the messages go is not clear",
                expected="--out FILE, --as store --out DIR, or --out - for stdout",
                found="no --out",
            )
        wanted = wanted_of(conditions)
        in_order("--start", start, "--end", end)
        included = included_of(half, system_topics, delayed, damaged)
        if form == "lines" and included:
            raise unclear(
                f"--{sorted(included)[0]} without --as store", "lines, which leave nothing out, without it"
            )
        if out == STDOUT and as_json:
            raise unclear("--json with --out -", "--out - alone: the lines are JSON")
        options = ExportOptions(
            store=store, out=out, form=form, wanted=wanted, start=start,
            end=MOST_OFFSET if end is None else end, finding=finding, limit=limit, included=included,
            force=force, broker_conf=broker_conf, version=rocketmq_version,
        )  # fmt: skip
        result: Exported | None
        with ProgressDisplay("reading the commit log") as display:
            try:
                result = export(options, display.update)
            except BrokenPipeError:
                let_go_of_stdout()
                result = None
            except OSError as error:
                if out != STDOUT or error.filename is not None:
                    raise
                unwritten(error)
    if result is None:
        raise typer.Exit(0)  # who closed the pipe has seen enough
    if out == STDOUT:
        settings_told(result.basis, files=False)
        for line in _lines(result):
            told(line.strip())
        raise typer.Exit(result.exit_code)
    output.show(result, _lines(result))


def included_of(half: bool, system_topics: bool, delayed: bool, damaged: bool) -> frozenset[Apart]:
    """What the four options include."""
    from reput.export.records import Apart

    given = {Apart.HALF: half, Apart.SYSTEM: system_topics, Apart.DELAYED: delayed, Apart.DAMAGED: damaged}
    return frozenset(kind for kind, is_given in given.items() if is_given)


def _lines(result: Exported) -> Iterator[str]:
    messages = counted(result.messages, "message")
    what = "" if result.options.finding is None else f" of {result.options.finding}"
    if result.out is None:
        meant = "" if result.did_you_mean is None else f"; did you mean {inline(result.did_you_mean)}?"
        yield f"Nothing to save{what} in {result.settings.root}: no file was written{meant}"
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


RESEND_EXAMPLES = """**Examples**

What would be sent, by topic, and what wouldn't:

    reput resend stranded.jsonl --dry-run

Send it, by the client in the broker's own lib/, with at most 500 messages a second:

    reput resend stranded.jsonl --name-server 10.0.0.5:9876 --client /opt/rocketmq/lib --rate 500

To another topic, with access keys, by a client that is fetched:

    reput resend out.jsonl --name-server 10.0.0.5:9876 --to-topic new --access-keys k --rocketmq-version 5.3.3
"""


@commands.app.command("resend", epilog=RESEND_EXAMPLES, rich_help_panel=MEND)
def resend_command(
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What reput export wrote: a file of lines, or a small store."),
    ],
    name_server: Annotated[
        str | None,
        typer.Option(
            "--name-server",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="The name server of the broker's cluster; several with ; between them.",
        ),
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option("--to-topic", metavar="T", help="Send to this topic, not to each message's own."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", min=0.01, help="At most N messages per second."),
    ] = None,
    half: Half = False,
    system_topics: SystemTopics = False,
    delayed: Delayed = False,
    damaged: Damaged = False,
    access_keys: Annotated[
        Path | None,
        typer.Option(
            "--access-keys",
            metavar="FILE",
            help="accessKey and secretKey, as in RocketMQ's conf/tools.yml (default: ROCKETMQ_ACCESS_KEY and "
            "ROCKETMQ_SECRET_KEY in the environment).",
        ),
    ] = None,
    client: Annotated[
        Path | None,
        typer.Option(
            "--client", metavar="DIR", help="The jars of RocketMQ's client, e.g. the broker's own lib/."
        ),
    ] = None,
    rocketmq_version: Annotated[
        str | None,
        typer.Option(
            "--rocketmq-version",
            metavar="V",
            envvar="REPUT_ROCKETMQ_VERSION",
            autocompletion=releases,
            help="Without --client: fetch the client of this release from Maven Central, once.",
        ),
    ] = None,
    position: Annotated[
        Path | None,
        typer.Option(
            "--position",
            metavar="FILE",
            help="Where to keep how far it is (default: FILE.position, beside it).",
        ),
    ] = None,
    broker_conf: BrokerConf = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Send exported messages again to a running broker, by RocketMQ's own Java client.

    Each is sent at least once: after an interrupt, a kill or an error the same command goes on, and repeats
    at most 256 messages, and those of a send that failed. Each gets a property REPUT_ORIGIN with its old id.

    Topics have to exist. A message goes to the queue with its old queueId, if the topic has it.

    Exit code 0: all is sent. 1: sent, but for what was left out, or some may not be on disk yet. 2: refused
    or failed; what was sent is in the position.
    """
    from reput.resend.send import ResendOptions, resend

    with Output(as_json, interrupted="the same command goes on with the next message") as output:
        options = ResendOptions(
            source=source,
            name_server=name_server,
            to_topic=to_topic,
            rate=rate,
            included=included_of(half, system_topics, delayed, damaged),
            position=position,
            client=client,
            keys=access_keys,
            dry_run=dry_run,
            broker_conf=broker_conf,
            version=rocketmq_version,
        )
        result = resend(options, _Progress().show)
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
    if result.sent_before:
        left_out = f", which left out {result.left_out_before:,}" if result.left_out_before else ""
        before = f"{counted(result.sent_before, 'message')}, by earlier runs{left_out}"
        yield f"  before     {before}: {result.position}"
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
