"""``reput dump``: what is in the files, a line a record, or a digest a range; one module a command."""

from __future__ import annotations

import typer

from reput.cli.commands import Commands
from reput.cli.dump import checkpoint, commitlog, config, consumequeue, digest, index

dump_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show what is in a store's files, record by record: commit log, consume queues, index, checkpoint, "
    "settings in RocksDB; or digests of log and queues, to compare two hosts. Nothing is changed, and a "
    "broker may run.",
)
dump_app.command("commitlog", epilog=commitlog.EXAMPLES)(commitlog.commitlog_command)
dump_app.command("consumequeue", epilog=consumequeue.EXAMPLES)(consumequeue.consumequeue_command)
dump_app.command("index", epilog=index.EXAMPLES)(index.index_command)
dump_app.command("checkpoint", epilog=checkpoint.EXAMPLES)(checkpoint.checkpoint_command)
dump_app.command("config", epilog=config.EXAMPLES)(config.config_command)
dump_app.command("digest", epilog=digest.EXAMPLES)(digest.digest_command)
