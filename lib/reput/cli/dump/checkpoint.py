"""``reput dump checkpoint``."""

from __future__ import annotations

import dataclasses

from reput.cli.arguments import TimeZone
from reput.cli.dump.lines import dumping
from reput.cli.dump.options import AsLines, PathArgument
from reput.cli.times import moment
from reput.format.checkpoint import StoreCheckpoint

EXAMPLES = """**Examples**

    reput dump checkpoint /data/store
"""


def checkpoint_command(path: PathArgument, _tz: TimeZone = None, as_json: AsLines = False) -> None:
    """Show the fields of a store checkpoint: three times, in ms and as times, and three physical offsets.

    Exit code 0: read. 2: refused or failed.
    """
    from reput.dump import checkpoint as checkpoint_fields
    from reput.dump import places

    with dumping(as_json) as lines:
        file = places.checkpoint_file(path)
        fields = checkpoint_fields.read(file)
        shown = {name: moment(fields[name]) for name in checkpoint_fields.NAMES[: checkpoint_fields.TIMES]}
        if as_json:
            names = (field.name for field in dataclasses.fields(StoreCheckpoint))
            values = dict(zip(names, fields.values(), strict=True))
            lines.record({"type": "checkpoint", "path": str(file), **values})
            return
        for name, value in fields.items():
            lines.put(
                f"{name:<21} {value:>19}  {shown[name]}" if name in shown else f"{name:<21} {value:>19}"
            )
