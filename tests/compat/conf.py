"""broker.conf, as far as tests write one."""

from __future__ import annotations

from collections.abc import Mapping


def conf_text(settings: Mapping[str, object]) -> str:
    """The settings as lines ``name=value``, switches as Java writes them."""
    return "".join(f"{name}={_value(value)}\n" for name, value in settings.items())


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
