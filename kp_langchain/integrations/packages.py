"""Import the packages of outside systems; the error for a missing one names the extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kp_langchain.errors import MissingExtraError


def import_package(module: str, *, extra: str) -> Any:
    """Return a module of an outside system's package.

    Args:
        module: The module.
        extra: The extra that installs it.

    Raises:
        MissingExtraError: It is not installed, or cannot be imported.
    """
    try:
        return import_module(module)
    except Exception as error:  # a package that does not fit the others raises anything
        raise MissingExtraError(
            f"{module} cannot be imported ({type(error).__name__}: {error}); install it: "
            f"pip install 'kp-langchain[{extra}]'"
        ) from error
