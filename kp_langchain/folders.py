"""The user's folders for this package. The code that writes there creates them."""

from __future__ import annotations

from pathlib import Path


def data_dir() -> Path:
    """Return the folder of this package's data. It need not exist."""
    import platformdirs

    return platformdirs.user_data_path("kp_langchain", appauthor=False)


def config_dir() -> Path:
    """Return the folder of the user's configuration. It need not exist."""
    import platformdirs

    return platformdirs.user_config_path("kp_langchain", appauthor=False)
