"""How the commands are listed, and what has become of old ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from reput.cli.crash import REFUSED, ended_by
from reput.cli.output import set_command, told

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
        if command is not None and not isinstance(command, Commands):
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
