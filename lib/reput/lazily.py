"""Names of a package that are loaded when they are first asked for (PEP 562).

To import a module is to run its package first: what a package offers beside its modules mustn't load Spark
for those who want a module without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``.

    Args:
        package: its ``__name__``.
        places: the module, below the package, of each name.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return load
