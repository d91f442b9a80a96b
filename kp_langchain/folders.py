"""The user's folders for this package. The code that writes there creates them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_NAME = "kp_langchain"


def data_dir() -> Path:
    """Return the folder of this package's data. It need not exist."""
    import platformdirs

    return _folder(platformdirs.user_data_path)


def config_dir() -> Path:
    """Return the folder of the user's configuration. It need not exist."""
    import platformdirs

    return _folder(platformdirs.user_config_path)


def _folder(of_user: Callable[..., Path]) -> Path:
    try:
        path = of_user(_NAME, appauthor=False)
    except RuntimeError:
        path = Path("~")
    # A user without a home is like one whose home is /dev/null: nothing can be read or kept there.
    return path if path.parts[:1] != ("~",) else Path(os.devnull, _NAME)
