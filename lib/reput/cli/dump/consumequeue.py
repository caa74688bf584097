"""``reput dump consumequeue``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reput.cli.arguments import Limit, TimeZone
from reput.cli.dump.lines import dumping
from reput.cli.dump.nothing import in_queues
from reput.cli.dump.options import AsLines, PathArgument, Quiet, in_order, queue_of
from reput.cli.dump.text import queue_line, word
from reput.config.log_places import absolute
from reput.dump.damage import Damage
from reput.errors import SettingsError
from reput.next_command import next_command
from reput.store.listing import nearest_of

EXAMPLES = """**Examples**

A queue, from a queueOffset on:

    reput dump consumequeue /data/store --queue orders:3 --start 1000 --limit 10

When delayed messages are due:

    reput dump consumequeue /data/store/consumequeue/SCHEDULE_TOPIC_XXXX
"""


def consumequeue_command(
    path: PathArgument,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="TOPIC[:ID]", help="Only this topic or queue; repeat it for several."
        ),
    ] = None,
    start: Annotated[
        int, typer.Option("--start", "-s", metavar="N", min=0, help="Start at this queueOffset.")
    ] = 0,
    end: Annotated[
        int | None, typer.Option("--end", "-e", metavar="N", min=0, help="Stop before this queueOffset.")
    ] = None,
    limit: Limit = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show the unwritten end of each queue.")
    ] = False,
    quiet: Quiet = False,
    _tz: TimeZone = None,
    as_json: AsLines = False,
) -> None:
    """Show the units of consume queues and batch queues: where each leads, and its tagsCode.

    With files of `consumequeue_ext` beside them, what a tagsCode leads to there is shown with its unit.
    Places before a queue's first message are named `pre-blank`; zeros before other units, and units that no
    broker takes, are damage.

    Where nothing is to be shown, stderr says where queues begin and end.

    Exit code 0: sound. 1: something in the range is damaged. 2: refused or failed.
    """
    with dumping(as_json) as lines:
        in_order("--start", start, "--end", end)
        from reput.dump import places
        from reput.dump.consumequeue import MOST, dump
        from reput.dump.queueevents import UNWRITTEN, QueueUnit, Run

        chosen = [queue_of(text) for text in queue or ()]
        shown = 0
        asked = []
        anything = False
        for place in places.queue_places(path):
            if chosen and not any(
                topic == place.topic and number in (None, place.queue_id) for topic, number in chosen
            ):
                continue
            asked.append(place)
            for event in dump(place, start, MOST if end is None else end):
                if isinstance(event, Run) and event.kind == UNWRITTEN and not show_all:
                    continue
                anything = True
                if isinstance(event, Damage) or not quiet:
                    lines.show(event, queue_line)
                shown += isinstance(event, QueueUnit)
                if shown == limit:
                    return
        if not asked:
            raise SettingsError(
                "there is no such queue here",
                path=path,
                expected="files of " + ", ".join(queue or ()),
                found="none",
                next_step=_instead(absolute(path), queue or [], chosen),
            )
        if not anything:
            lines.nothing(in_queues(asked, start, end), quiet=quiet)


def _instead(path: Path, queues: list[str], chosen: list[tuple[str, int | None]]) -> str:
    from reput.dump.places import store_of

    store = store_of(path)
    if store is None:
        return "A dump of the commit log finds messages that no queue leads to"
    meant = nearest_of(Path(store), chosen)
    asked = [part for queue in queues for part in ("--queue", queue)]
    command = next_command("dump", "commitlog", str(store), *asked)
    text = f"`{command}` finds messages that no queue leads to"
    return text if meant is None else f"Did you mean {word(meant)}? {text}"
