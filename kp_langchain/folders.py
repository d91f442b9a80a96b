"""The user's own folders, which are created by whoever writes there."""

from __future__ import annotations

from pathlib import Path


def data_dir() -> Path:
    """Return the folder for this package's data. It is not created here."""
    import platformdirs

    return platformdirs.user_data_path("kp_langchain", appauthor=False)


def config_dir() -> Path:
    """Return the folder of the user's own configuration. It need not exist."""
    import platformdirs

    return platformdirs.user_config_path("kp_langchain", appauthor=False)
