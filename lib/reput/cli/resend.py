"""``reput resend``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import app as commands
from reput.cli.arguments import AsJson, BrokerConf, DryRun, releases
from reput.cli.commands import MEND
from reput.cli.export import Damaged, Delayed, Half, SystemTopics, included_of
from reput.cli.output import Output, at_most, inline, noted
from reput.words import counted

if TYPE_CHECKING:
    from reput.resend.run import Resent

EXAMPLES = """**Examples**

What would be sent, by topic, and what wouldn't:

    reput resend stranded.jsonl --dry-run

Send it, by the client in the broker's own lib/, with at most 500 messages a second:

    reput resend stranded.jsonl --name-server 10.0.0.5:9876 --client /opt/rocketmq/lib --rate 500

To another topic, with access keys, by a client that is fetched:

    reput resend out.jsonl --name-server 10.0.0.5:9876 --to-topic new --access-keys k --rocketmq-version 5.3.3
"""


@commands.app.command("resend", epilog=EXAMPLES, rich_help_panel=MEND)
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
    from reput.resend.run import ResendOptions, resend

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
    output.show(result, _lines(result))


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


def _lines(result: Resent) -> Iterator[str]:
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
