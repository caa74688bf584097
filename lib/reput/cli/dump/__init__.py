"""``reput dump``: what is in the files, a line a record, or a digest a range."""

from __future__ import annotations

import typer

from reput.cli.arguments import Commands
from reput.cli.dump import commitlog, files

dump_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show what is in a store's files, record by record: commit log, consume queues, index, checkpoint, "
    "settings in RocksDB; or digests of log and queues, to compare two hosts. Nothing is changed, and a "
    "broker may run.",
)
dump_app.command("commitlog", epilog=commitlog.EXAMPLES)(commitlog.commitlog_command)
dump_app.command("consumequeue", epilog=files.CONSUMEQUEUE_EXAMPLES)(files.consumequeue_command)
dump_app.command("index", epilog=files.INDEX_EXAMPLES)(files.index_command)
dump_app.command("checkpoint", epilog=files.CHECKPOINT_EXAMPLES)(files.checkpoint_command)
dump_app.command("config", epilog=files.CONFIG_EXAMPLES)(files.config_command)
dump_app.command("digest", epilog=files.DIGEST_EXAMPLES)(files.digest_command)
