"""What Python 3.10 doesn't have yet; there it comes from packages that bring it."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import tomllib
    from datetime import UTC, datetime
    from enum import StrEnum
    from typing import Self

    time_of_iso = datetime.fromisoformat
else:
    from datetime import timezone

    import tomli as tomllib
    from backports.datetime_fromisoformat import datetime_fromisoformat as time_of_iso
    from backports.strenum import StrEnum
    from typing_extensions import Self

    UTC = timezone.utc

__all__ = ["UTC", "Self", "StrEnum", "time_of_iso", "tomllib"]
