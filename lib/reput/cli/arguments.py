"""Arguments and options that several commands have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli.completing import queues, releases, topics
from reput.cli.times import use_zone
from reput.errors import SettingsError

#: What stands in for the two options in every command, where they aren't given.
BROKER_CONF_VARIABLE, VERSION_VARIABLE = "REPUT_BROKER_CONF", "REPUT_ROCKETMQ_VERSION"

LocalStore = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="The store: the directory that holds commitlog/."),
]
Store = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", help="The store: the directory that holds commitlog/, or its URL (docs/remote.md)."
    ),
]
Stores = Annotated[
    list[str],
    typer.Argument(
        metavar="STORE",
        help="The store: the directory that holds commitlog/, or its URL (docs/remote.md). Several: "
        "directories here, HOST:/PATH on a host with a Spark worker, URLs, or a stores.toml that lists them.",
    ),
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        "--at-once",
        metavar="N",
        min=1,
        help="Of several stores: how many at a time (default: 1); on each host one.",
    ),
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--broker-conf",
        "-c",
        metavar="FILE",
        envvar=BROKER_CONF_VARIABLE,
        help="The broker's configuration file: sizes, paths, delay levels (default: as the store shows).",
    ),
]


def _release(means: str) -> Any:
    return typer.Option(
        "--rocketmq-version",
        metavar="V",
        envvar=VERSION_VARIABLE,
        autocompletion=releases,
        help=f"{means} (default: as the store shows).",
    )


WrittenAs = Annotated[str | None, _release("Write as this release does, e.g. 4.9.7")]
WrittenBy = Annotated[str | None, _release("The release that wrote the store, e.g. 4.9.7")]
StartedBy = Annotated[str | None, _release("The release that will start")]


def _zone(name: str | None) -> str | None:
    try:
        use_zone(name)
    except SettingsError as error:
        raise typer.BadParameter(f"expected {error.expected}, found {error.found}") from None
    return name


TimeZone = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        callback=_zone,
        help="Zone of times, e.g. Asia/Shanghai or UTC (default: TZ, or the machine's).",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Stop after N records.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only what was stored at this time or later: 2026-11-21T10:00, 2026/11/21 10:00, ms since 1970 "
        "in 13 digits, 10m (ago; s, m, h, d), today, yesterday, now.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only what was stored before this time.")
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="TOPIC[:ID]",
        autocompletion=queues,
        help="Only this topic or queue, without the index; repeat it for several.",
    ),
]
OnlyTopic = Annotated[
    str | None, typer.Option("--topic", metavar="T", autocompletion=topics, help="Only this topic.")
]
NoIndex = Annotated[bool, typer.Option("--no-index", help="Don't write index files.")]
KnownTopicsOnly = Annotated[
    bool,
    typer.Option("--known-topics-only", help="Skip topics that config/topics.json doesn't list."),
]
CatalogTable = Annotated[
    Path | None,
    typer.Option("--catalog", metavar="DIR", help="Also write all messages to this Delta table."),
]
CatalogBodies = Annotated[
    bool, typer.Option("--catalog-bodies", help="Include message bodies in the --catalog table.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master (default: spark-submit's, or local[*])."),
]
BytesPerCommit = Annotated[
    str,
    typer.Option(
        "--max-bytes-per-trigger",
        metavar="SIZE",
        help="Maximum log bytes per commit; an interrupted run repeats at most one commit.",
    ),
]
SingleHost = Annotated[
    bool | None,
    typer.Option(
        "--single-host/--several-hosts",
        show_default=False,
        help="Executors share one host's page cache, or don't (default: as they show).",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Report what would be done, or why it would be refused; do nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]

_SIZE = re.compile(r"([0-9]{1,15})([kmgt]?)", re.ASCII | re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def by_hand(ctx: typer.Context, parameter: str) -> bool:
    """Whether a command has a parameter from its words, not from the environment."""
    source = ctx.get_parameter_source(parameter)
    return source is None or source.name != "ENVIRONMENT"


def size(option: str, text: str, *, least: int = 1) -> int:
    """Bytes of ``512m``, ``4g`` or a plain number.

    Raises:
        SettingsError: it is none of these, or less than ``least``; names the option.
    """
    match = _SIZE.fullmatch(text)
    number = int(match[1]) << _SHIFTS[match[2].lower()] if match else -1
    if number < least:
        raise SettingsError(
            f"{option} can't be understood", expected="bytes, or a number with k, m, g or t", found=text
        )
    return number


Everything = Annotated[
    bool,
    typer.Option(
        "--all", help="Compare all again, and forget which sealed segments were found to have changed."
    ),
]
Digests = Annotated[
    bool,
    typer.Option(
        "--digest",
        help="Believe no file's size and times: read all bytes, and compare them with what was proven.",
    ),
]
