"""``reput dump config``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.arguments import Limit, TimeZone
from reput.cli.dump.lines import dumping
from reput.cli.dump.options import AsLines, PathArgument, Quiet, filled
from reput.cli.dump.text import word
from reput.cli.times import moment
from reput.config.log_places import absolute
from reput.config.stand_in import here
from reput.dump.damage import Damage

if TYPE_CHECKING:
    from reput.dump.config import Kept

EXAMPLES = """**Examples**

    reput dump config /data/store

The offsets of one group:

    reput dump config /data/store/config/consumerOffsets --group billing
"""


def config_command(
    path: PathArgument,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="T", help="Only this topic, and offsets in it.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="G", help="Only this group, and its offsets.")
    ] = None,
    limit: Limit = None,
    quiet: Quiet = False,
    _tz: TimeZone = None,
    as_json: AsLines = False,
) -> None:
    """Show topics, groups and offsets that a broker keeps in RocksDB: each database of config/.

    Versions come first. What a start takes where JSON files lie beside them is another question: `reput lag`
    and `reput stats --topics` say so.

    Exit code 0: sound. 1: an entry isn't as a broker writes it. 2: refused or failed.
    """
    with dumping(as_json) as lines:
        filled("--topic", topic)
        filled("--group", group)
        from reput.dump import config

        shown = 0
        for database in config.databases(absolute(here(path, derived=False))):
            for event in config.dump(database):
                if isinstance(event, config.Kept):
                    named = event.name if event.kind not in (config.GROUP, config.VERSION) else None
                    of_group = event.name if event.kind == config.GROUP else event.group
                    if (topic is not None and named != topic) or (group is not None and of_group != group):
                        continue
                    shown += 1
                if isinstance(event, Damage) or not quiet:
                    lines.show(event, _line)
                if shown == limit:
                    return


def _line(event: Kept) -> str:
    database = event.path.name
    if event.version is not None:
        version = event.version
        return (
            f"{database}  version of {event.name}  counter={version.counter} "
            f"timestamp={moment(version.timestamp)} stateVersion={version.state_version}"
        )
    if event.offset is not None:
        place = f"{word(event.name)}:{event.queue_id}"
        return (
            f"{database}  {event.kind}  group={word(event.group or '')} queue={place} offset={event.offset}"
        )
    text = json.dumps(event.config, ensure_ascii=False, separators=(",", ":"))
    return f"{database}  {event.kind}  {word(event.name)}  {text}"
