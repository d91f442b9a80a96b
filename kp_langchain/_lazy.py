"""Names of a package that are loaded from their modules when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names_of: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a package.

    Type checkers see neither, so the package imports the same names `if TYPE_CHECKING`, each `as`
    itself, which marks it as public.

    Args:
        package: The package's name.
        names_of: The names of each module, with blanks between.
    """
    home_of = {name: home for home, names in names_of.items() for name in names.split()}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(home_of, key=lambda name: (not name.isupper(), name)), load
