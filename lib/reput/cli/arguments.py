"""What several commands share: their options, and how commands are made of these and listed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from reput.cli.output import set_command
from reput.cli.process import ended_by
from reput.cli.times import time_of, use_zone
from reput.config.dialect import DIALECTS
from reput.config.settings import StoreSettings
from reput.errors import ReputError, SettingsError
from reput.format import names
from reput.format.names import Queue, parse_queue
from reput.rocksdb import is_database
from reput.store.listing import names_seen, topics_seen

if TYPE_CHECKING:
    from reput.dump.wanted import Wanted


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
    from reput.config.committed import committed_offsets

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
        found |= {int(name) for name in names_seen(_store(ctx) / kind / topic) if names.is_queue_id(name)}
    if not found:
        with suppress(ReputError):
            found = {number for one, number in _in_rocksdb(ctx) if one == topic}
    return [f"{topic}:{number}" for number in sorted(found) if number >= 0]  # --queue takes no other


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
_T = TypeVar("_T")


def option(names: str, text: str, default: Any = None, **more: Any) -> Any:
    """A field for an option: ``"--out -o DIR"`` has its names, and what stands for its value in help."""
    words = names.split()
    metavar = None if words[-1].startswith("-") else words.pop()
    return field(
        default=default,
        metadata={_IS: typer.Option(*words, metavar=metavar, help=text, show_envvar=False, **more)},
    )


def flag(names: str, text: str) -> Any:
    """A field for an option without a value."""
    return option(names, text, False)


def argument(metavar: str, text: str, default: Any = MISSING) -> Any:
    """A field for an argument."""
    return field(default=default, metadata={_IS: typer.Argument(metavar=metavar, help=text)})


#: Where a field has what typer is to know of it.
_IS = "is"
_annotated: Any = Annotated


@dataclass(kw_only=True)
class Words:
    """What was given to a command; what several commands have are its subclasses, which they inherit."""

    sources: dict[str, str] = field(default_factory=dict)  # of each field: "COMMANDLINE", "ENVIRONMENT", …

    def by_hand(self, name: str) -> bool:
        """Whether a field is from the words of the command, not from the environment."""
        return self.sources.get(name) != "ENVIRONMENT"

    def named(self, name: str) -> str:
        """The long name of a field's option, or what stands for an argument."""
        (info,) = (one.metadata[_IS] for one in fields(self) if one.name == name)
        words = (info.default, *(info.param_decls or ()))  # typer takes the first of them for a default
        return next((word for word in words if str(word).startswith("--")), str(info.metavar))

    def to(self, kind: type[_T], **more: Any) -> _T:
        """The library's options: what has the same name here, and ``more``."""
        named = [one.name for one in fields(kind) if one.name not in more]  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in named if hasattr(self, name)}, **more)


_W = TypeVar("_W", bound=Words)
_Command = Callable[[_W], None]


def command(
    name: str, examples: str, panel: str | None = None, group: typer.Typer | None = None
) -> Callable[[_Command[_W]], _Command[_W]]:
    """Make a function a command; the class of what it takes says its options, inherited ones last."""

    def register(function: _Command[_W]) -> _Command[_W]:
        given = get_type_hints(function)["given"]
        hints = get_type_hints(given)
        known = {one.name: one for one in fields(given) if _IS in one.metadata}
        order = dict.fromkeys(key for base in given.__mro__ for key in vars(base).get("__annotations__", ()))
        kind = Parameter.KEYWORD_ONLY
        parameters = [Parameter("ctx", kind, annotation=typer.Context)]
        for one in (known[key] for key in order if key in known):
            default = Parameter.empty if one.default is MISSING else one.default
            hint = _annotated[hints[one.name], one.metadata[_IS]]
            parameters.append(Parameter(one.name, kind, default=default, annotation=hint))

        def run(ctx: typer.Context, **values: Any) -> None:
            sources = {key: getattr(ctx.get_parameter_source(key), "name", "") for key in values}
            function(given(sources=sources, **values))

        run.__doc__ = function.__doc__
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        (group or app).command(name, epilog=examples, rich_help_panel=panel, cls=Command)(run)
        return function

    return register


def _zone(name: str | None) -> str | None:
    try:
        use_zone(name)
    except SettingsError as error:
        raise typer.BadParameter(f"expected {error.expected}, found {error.found}") from None
    return name


def release(means: str) -> Any:
    """A field for a release."""
    return option(
        "--rocketmq-version V", f"{means} (default: as the store shows).", envvar=VERSION_VARIABLE,
        autocompletion=releases,
    )  # fmt: skip


def broker_conf() -> Any:
    """A field for a broker.conf."""
    text = "The broker.conf (default: as the store shows)."
    return option("--broker-conf -c FILE", text, envvar=BROKER_CONF_VARIABLE)


_STORE = "The store: the directory that holds commitlog/"


@dataclass(kw_only=True)
class OnLocalStore(Words):
    """A store of this host."""

    store: Path = argument("STORE", f"{_STORE}.")


@dataclass(kw_only=True)
class OnStore(Words):
    """A store here or elsewhere."""

    store: Path = argument("STORE", f"{_STORE}, or its URL (docs/remote.md).")


@dataclass(kw_only=True)
class OnStores(Words):
    """One store or several."""

    stores: list[str] = argument(
        "STORE",
        f"{_STORE}, or its URL. Several: directories, HOST:/PATH, URLs, or a stores.toml (docs/cluster.md).",
    )
    at_once: int | None = option("--at-once N", "Of several stores: how many at a time (default: 1).", min=1)


@dataclass(kw_only=True)
class Broker(Words):
    """What a broker was, or is going to be, started with."""

    broker_conf: Path | None = broker_conf()
    rocketmq_version: str | None = release("The release that wrote the store, e.g. 4.9.7")

    def settings(self, store: Path) -> StoreSettings:
        """Those of a store of any kind."""
        return StoreSettings.load(store, self.broker_conf, self.rocketmq_version, dledger=True, rocksdb=True)

    @property
    def conf_by_hand(self) -> bool:
        """It was given by an option, not by the environment."""
        return self.by_hand("broker_conf")

    @property
    def version_by_hand(self) -> bool:
        """The release was given by an option, not by the environment."""
        return self.by_hand("rocketmq_version")


@dataclass(kw_only=True)
class Starts(Broker):
    """A broker that is going to start."""

    rocketmq_version: str | None = release("The broker's release")


@dataclass(kw_only=True)
class Writes(Broker):
    """A broker that is written for; with or without an index."""

    rocketmq_version: str | None = release("Write as this release, e.g. 4.9.7")
    no_index: bool = flag("--no-index", "Don't write index files.")

    @property
    def index(self) -> bool:
        """Whether index files are written."""
        return not self.no_index


@dataclass(kw_only=True)
class OfQueues(Words):
    """Of some queues only."""

    queue: list[str] | None = option(
        "--queue TOPIC[:ID]",
        "Only this topic or queue, without the index; repeatable.",
        autocompletion=queues,
    )

    @property
    def queues(self) -> tuple[str, ...]:
        """Them; empty for all."""
        return tuple(self.queue or ())


@dataclass(kw_only=True)
class OfTopic(Words):
    """Of one topic only."""

    topic: str | None = option("--topic T", "Only this topic.", autocompletion=topics)


@dataclass(kw_only=True)
class PerCommit(Words):
    """How much a commit takes."""

    bytes_per_commit: str = option("--max-bytes-per-trigger SIZE", "Maximum log bytes per commit.", "1g")

    @property
    def max_bytes_per_trigger(self) -> int:
        """Bytes; raises SettingsError where it can't be understood."""
        return size("--max-bytes-per-trigger", self.bytes_per_commit)


@dataclass(kw_only=True)
class Derives(OfQueues, Writes, PerCommit):
    """What is made of a log, by a rebuild and by a tail."""

    bytes_per_commit: str = option("--max-bytes-per-trigger SIZE", "Maximum log bytes per commit.", "4g")
    known_topics_only: bool = flag("--known-topics-only", "Skip topics that config/topics.json doesn't list.")
    catalog: Path | None = option("--catalog DIR", "Also write all messages to this Delta table.")
    catalog_bodies: bool = flag("--catalog-bodies", "Message bodies, too, in the --catalog table.")
    single_host: bool | None = option(
        "--single-host/--several-hosts", "Executors share a page cache or not (default: as they show).",
        show_default=False,
    )  # fmt: skip


@dataclass(kw_only=True)
class InTime(Words):
    """Of what was stored between two times."""

    since: str | None = option(
        "--since TIME",
        "Stored at this time or later: 2026-11-21T10:00, ms in 13 digits, 10m (ago), today, now.",
    )
    until: str | None = option("--until TIME", "Stored before this time.")


@dataclass(kw_only=True)
class Limited(Words):
    """Of so many records."""

    limit: int | None = option("--limit -n N", "Stop after N records.", min=1)


@dataclass(kw_only=True)
class OnSpark(Words):
    """With Spark."""

    master: str | None = option("--master URL", "Spark master (default: spark-submit's, or local[*]).")


@dataclass(kw_only=True)
class OnSparkIfWanted(OnSpark):
    """Without Spark, unless a master is named or by spark-submit."""

    master: str | None = option("--master URL", "Spark master (default: spark-submit's, else without Spark).")


@dataclass(kw_only=True)
class Dry(Words):
    """Or only said."""

    dry_run: bool = flag("--dry-run", "Report what would be done, or why it is refused; do nothing.")


@dataclass(kw_only=True)
class InZone(Words):
    """Times in a zone."""

    tz: str | None = option("--tz ZONE", "Zone of times (default: TZ or the machine's).", callback=_zone)


@dataclass(kw_only=True)
class AsJson(Words):
    """For people or programs."""

    as_json: bool = flag("--json", "Print the result as one JSON document.")


@dataclass(kw_only=True)
class Shown(InZone, AsJson):
    """For what prints times, or one JSON document."""


_SIZE = re.compile(r"([0-9]{1,15})([kmgt]?)", re.ASCII | re.IGNORECASE)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


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


#: The groups of ``reput --help``.
LOOK, MEND, FOLLOW, TABLES, START = "Look", "Mend", "Follow", "Tables", "Set up"
_ORDER = [
    *("check", "report", "query", "dump", "stats", "lag"),
    *("mend", "undo", "rebuild", "restore", "migrate", "export", "resend"),
    *("tail", "catalog"),
    *("demo", "doctor", "pack"),
]


#: Of letters: a first sentence is never cut, but wrapped.
_WHOLE = 1000


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
        name, command, rest = super().resolve_command(ctx, args)
        path = f"{name}" if ctx.parent is None else f"{ctx.info_name} {name}"
        set_command(path)
        return name, command, rest

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order in which they are listed."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List them by what they are for."""
        shown: list[tuple[str, Any]] = []
        shown += [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        for panel in dict.fromkeys(one.rich_help_panel for _, one in shown):
            with formatter.section(panel or "Commands"):
                of_it = [one for one in shown if one[1].rich_help_panel == panel]
                formatter.write_dl([(name, one.get_short_help_str(_WHOLE)) for name, one in of_it])


class Command(TyperCommand):
    """A command, whose examples are shown as they are."""

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        """Show them."""
        formatter.write(f"\n{self.epilog}")


app = typer.Typer(
    name="reput",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rebuild what an Apache RocketMQ broker derives from its commit log, byte for byte, with Spark. "
    f"{BROKER_CONF_VARIABLE} and {VERSION_VARIABLE} in the environment stand for the options of that name.",
)
dump_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show what is in a store's files, record by record: commit log, consume queues, index, checkpoint, "
    "settings in RocksDB; or digests of log and queues, to compare two hosts. Nothing is changed, and a "
    "broker may run.",
)
app.add_typer(dump_app, name="dump", rich_help_panel=LOOK)


def are_several(stores: Sequence[str], *asked: object) -> bool:
    """Whether words name more than one store of this host, or one elsewhere on a host, or a list of them.

    ``asked``: values of options that make one store be told of as several are; None: not given.

    Raises:
        SettingsError: a place can't be understood.
    """
    if len(stores) > 1 or any(one is not None for one in asked):
        return True
    from reput.job.many import SUFFIX, Place

    place = Place.parse(stores[0])
    return place.host is not None or (place.is_here and stores[0].endswith(SUFFIX))


def refuse_of_one(unfit: Mapping[str, object]) -> None:
    """Refuse options that are about one store alone.

    ``unfit``: each such option with its value.

    Raises:
        SettingsError: one was given.
    """
    given = [name for name, value in unfit.items() if value]
    if given:
        raise SettingsError(
            f"{', '.join(given)} can't be given for several stores",
            expected="one STORE, a path or a URL, without the options of several",
            found="several, a list of stores, one on another host, or an option of several",
        )


TAGS = "--tags EXPR", "Only with one of these tags: 'A || B', or '*' for all."


@dataclass(kw_only=True)
class OnPath(Words):
    """A store, or a part of one."""

    path: Path = argument("PATH", "A store, a directory in it, or a single file, wherever it lies.")


@dataclass(kw_only=True)
class AsLines(InZone):
    """For people or programs, line by line."""

    quiet: bool = flag("--quiet -q", "Print nothing but damage.")
    as_json: bool = flag("--json", "Print JSON lines: one object per record.")


@dataclass(kw_only=True)
class Conditions(InTime):
    """Which records of a commit log: :func:`wanted_of` makes one condition of them."""

    topic: list[str] | None = option("--topic T", "Only this topic; repeatable.", autocompletion=topics)
    queue: list[str] | None = option(
        "--queue TOPIC[:ID]", "Only this queue; repeatable.", autocompletion=queues
    )
    queue_start: int | None = option("--queue-start N", "With --queue: start at this queueOffset.")
    queue_end: int | None = option("--queue-end N", "With --queue: stop before this queueOffset.")
    tags: str | None = option(*TAGS)
    key: str | None = option("--key KEY", "Only with this key, or this UNIQ_KEY.")
    uniq_key: str | None = option("--uniq-key ID", "Only with this UNIQ_KEY.")
    transaction: str | None = option("--transaction STATE", "Only prepared, commit, rollback or none.")
    body_size_over: str | None = option(
        "--body-size-over SIZE", "Only with a larger body as stored, e.g. 64k."
    )
    end: int | None = option("--end -e N", "Only records that begin before this physical offset.", min=0)


def filled(option: str, text: str | None) -> None:
    """Refuse an empty text to look for, which an unset variable of a script may be.

    Raises:
        SettingsError: it is one; names the option.
    """
    if text == "":
        raise SettingsError(
            f"{option} is empty: an empty text finds nothing", expected="a text", found="nothing"
        )


def times_of(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """The times of --since and --until, ms.

    Raises:
        SettingsError: one can't be understood, or no time is between them.
    """
    begin, stop = time_of("--since", since), time_of("--until", until)
    if begin is not None and stop is not None and begin >= stop:
        raise unclear(f"--since {since}, which isn't before --until {until}", "--since before --until")
    return begin, stop


def in_order(one: str, first: int | None, other: str, last: int | None) -> None:
    """Refuse a range in which nothing can be.

    Raises:
        SettingsError: its end isn't behind its beginning; names both options.
    """
    if first is not None and last is not None and first >= last:
        raise unclear(f"{one} {first}, which isn't before {other} {last}", f"{one} before {other}")


def unclear(found: str, expected: str) -> SettingsError:
    """Why options don't go together."""
    return SettingsError("what to show is not clear", expected=expected, found=found)


def wanted_of(texts: Conditions) -> Wanted:
    """Which records are asked for.

    Raises:
        SettingsError: one can't be understood, or they don't go together; names the options.
    """
    from reput.dump.wanted import Transaction, Wanted
    from reput.query.store import TagFilter

    for name in ("queue", "tags", "key", "uniq_key", "topic"):
        given = getattr(texts, name)
        for text in given if isinstance(given, list) else (given,):
            filled(f"--{name.replace('_', '-')}", text)
    chosen = tuple(map(parse_queue, texts.queue or ()))
    if texts.queue_start is not None or texts.queue_end is not None:
        if len(chosen) != 1 or chosen[0][1] is None:
            raise unclear("--queue-start or --queue-end without it", "one --queue TOPIC:ID beside them")
        if texts.topic:
            raise unclear("--queue-start or --queue-end with --topic", "one --queue TOPIC:ID and no --topic")
    in_order("--queue-start", texts.queue_start, "--queue-end", texts.queue_end)
    states = [state.value for state in Transaction]
    if texts.transaction is not None and texts.transaction not in states:
        raise SettingsError(
            "--transaction can't be understood",
            expected=f"one of {', '.join(states)}",
            found=texts.transaction,
        )
    begin, stop = times_of(texts.since, texts.until)
    over = texts.body_size_over
    return Wanted(
        topics=tuple(texts.topic or ()),
        queues=chosen,
        queue_start=texts.queue_start,
        queue_end=texts.queue_end,
        tags=TagFilter.parse(texts.tags).tags,
        key=texts.key,
        uniq_key=texts.uniq_key,
        transaction=None if texts.transaction is None else Transaction(texts.transaction),
        body_size_over=None if over is None else size("--body-size-over", over, least=0),
        since=begin,
        until=stop,
    )


# A completion answers from names alone (directories, and the one file of offsets), and never fails: where
# there is no store yet, or it can't be read, nothing is offered.
