"""``reput export``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, Limit, Since, TimeZone, Until, WrittenBy, findings
from reput.cli.commands import MEND
from reput.cli.dump.options import (
    BodySizeOver,
    End,
    Key,
    QueueEnd,
    QueuesOfLog,
    QueueStart,
    Tags,
    Topics,
    TransactionState,
    UniqKey,
    in_order,
    unclear,
    wanted_of,
)
from reput.cli.output import (
    Output,
    ProgressDisplay,
    at_most,
    inline,
    let_go_of_stdout,
    settings_lines,
    settings_told,
    told,
    unwritten,
)
from reput.errors import SettingsError
from reput.store.space import human
from reput.words import counted

if TYPE_CHECKING:
    from reput.export.apart import Apart
    from reput.export.run import Exported

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
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    queue: QueuesOfLog = None,
    queue_start: QueueStart = None,
    queue_end: QueueEnd = None,
    tags: Tags = None,
    key: Key = None,
    uniq_key: UniqKey = None,
    transaction: TransactionState = None,
    body_size_over: BodySizeOver = None,
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
    from reput.export.run import STDOUT, ExportOptions, export

    with Output(as_json, interrupted="nothing was written") as output:
        if out is None:
            raise SettingsError(
                "where the messages go is not clear",
                expected="--out FILE, --as store --out DIR, or --out - for stdout",
                found="no --out",
            )
        wanted = wanted_of(
            topics=topic, queues=queue, queue_start=queue_start, queue_end=queue_end, tags=tags, key=key,
            uniq_key=uniq_key, transaction=transaction, body_size_over=body_size_over, since=since,
            until=until,
        )  # fmt: skip
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
    from reput.export.apart import Apart

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
