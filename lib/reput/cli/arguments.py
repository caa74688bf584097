"""What several commands share: their options, how they are listed, and what has become of old ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from reput.cli.output import set_command, told
from reput.cli.process import REFUSED, ended_by
from reput.cli.times import use_zone
from reput.config.dialect import DIALECTS
from reput.config.settings import StoreSettings
from reput.errors import ReputError, SettingsError
from reput.format import names
from reput.format.names import Queue
from reput.rocksdb import is_database
from reput.store.listing import names_seen, topics_seen

# A completion answers from names alone (directories, and the one file of offsets), and never fails: where
# there is no store yet, or it can't be read, nothing is offered.


def releases(incomplete: str) -> list[str]:
    """Lines of releases (5.3), the newest first, or the releases of one that is typed already."""
    known = [version for row in reversed(DIALECTS) for version in reversed(row.versions)]
    lines = list(dict.fromkeys(version.rpartition(".")[0] for version in known))
    return [version for version in (*lines, *known) if version.startswith(incomplete)]


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that have queues in the store, or are in its RocksDB."""
    found: set[str] = set()
    for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
        found.update(topics_seen(_store(ctx) / kind))
    if any(is_database(_store(ctx) / name) for name in (names.CONSUME_QUEUE, names.CONSUME_QUEUE_ROCKSDB)):
        with suppress(ReputError):
            found |= {topic for topic, _ in _in_rocksdb(ctx)}
    return sorted(topic for topic in found if topic.startswith(incomplete))


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics, and TOPIC:ID where only one is left, or one is typed with its colon."""
    topic, colon, number = incomplete.rpartition(":")
    if colon:
        return [queue for queue in _queues_of(ctx, topic) if queue.startswith(f"{topic}:{number}")]
    found = topics(ctx, incomplete)
    return _queues_of(ctx, found[0]) if len(found) == 1 else found


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups that have committed offsets."""
    from reput.lag.committed import committed_offsets

    with suppress(ReputError):
        settings = _settings(ctx)
        return sorted(group for group in committed_offsets(settings).topics if group.startswith(incomplete))
    return []


def findings(incomplete: str) -> list[str]:
    """Kinds of findings whose messages can be saved."""
    from reput.replay.placing import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _queues_of(ctx: typer.Context, topic: str) -> list[str]:
    if names.topic_problem(topic.encode("utf-8", "surrogatepass")) is not None:
        return []
    found: set[int] = set()
    for kind in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
        found |= {
            int(name)
            for name in names_seen(_store(ctx) / kind / topic)
            if name.isascii() and name.isdecimal()
        }
    if not found:
        with suppress(ReputError):
            found = {number for one, number in _in_rocksdb(ctx) if one == topic and number >= 0}
    return [f"{topic}:{number}" for number in sorted(found)]


def _in_rocksdb(ctx: typer.Context) -> list[Queue]:
    """Topic and queueId of the queues in RocksDB."""
    from reput.derived.rocksdb import queues_in_rocksdb

    queues = queues_in_rocksdb(_settings(ctx))
    return [] if queues is None else list(queues.ends())


def _settings(ctx: typer.Context) -> StoreSettings:
    conf = ctx.params.get("broker_conf")
    own = conf if isinstance(conf, Path) else None
    return StoreSettings.load(_store(ctx), own, None, dledger=True, rocksdb=True)


def _store(ctx: typer.Context) -> Path:
    stores = ctx.params.get("stores")
    store = Path(stores[0]) if stores else ctx.params.get("store")
    if not isinstance(store, Path):
        # An option that still lacks its value ends the parsing: what isn't an option is left over.
        store = Path(ctx.args[0] if ctx.args else os.devnull)
    return store.expanduser()


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


#: The groups of ``reput --help``.
LOOK, MEND, FOLLOW, TABLES, START = "Look", "Mend", "Follow", "Tables", "Set up"
_ORDER = [
    *("check", "report", "query", "dump", "stats", "lag"),
    *("mend", "undo", "rebuild", "restore", "migrate", "export", "resend"),
    *("tail", "catalog"),
    *("demo", "doctor", "pack"),
]
#: Commands that have become others (docs/adr/0046-eighteen-commands.md); what each is called now.
_OLD_COMMANDS = {
    "recover": "`reput check STORE` says what a start would do and lose, `reput mend STORE` puts it right",
    "verify": "`reput check STORE` compares queues, index and checkpoint with the whole log, too",
    "verify-many": "`reput check STORE STORE …` looks at several stores",
    "rebuild-many": "`reput rebuild STORE STORE … --out-root DIR` makes several",
    "digest": "`reput dump digest STORE` writes digests, and compares with some",
    "topics": "`reput stats STORE --topics` lists topics and queues",
    "status": "`reput tail --status DIR` says how an output stands",
    "stop": "`reput tail --stop DIR` ends the tail that writes there",
}


class Commands(TyperGroup):
    """A group of commands. Typer ends with 1 and "Aborted" where a file ends too early, a module say."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise typer.Exit(ended_by(error)) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a line names."""
        if args and ctx.parent is None and args[0] in _OLD_COMMANDS:
            told(f"there is no `{args[0]}` any more: {_OLD_COMMANDS[args[0]]} (CHANGELOG.md)")
            raise typer.Exit(REFUSED)
        name, command, rest = super().resolve_command(ctx, args)
        path = f"{name}" if ctx.parent is None else f"{ctx.info_name} {name}"
        set_command(path)
        return name, command, rest

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order in which they are listed."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of the commands; its flags are shown without a type."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and not isinstance(command, Commands) and "get_params" not in vars(command):
            command.get_params = partial(_untyped, command.get_params)  # type: ignore[method-assign]
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's own options."""
        return _untyped(super().get_params, ctx)


def _untyped(get_params: Callable[[Any], list[Any]], ctx: Any) -> list[Any]:
    """A command's options, of which flags have nothing to name their value by."""
    params = get_params(ctx)
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
