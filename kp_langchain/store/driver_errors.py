"""Turns the drivers' errors into `StoreError` with a cause and a remedy. Loads SQLAlchemy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from kp_langchain.config import mask_password
from kp_langchain.errors import KPError, StoreError
from kp_langchain.store.location import Location

_SERVER = "check that the server runs and that the URL's host and port are right"
_FILE = "give a path in a folder you may write to"

# PostgreSQL's codes for a missing table and a missing schema.
_MISSING_SQLSTATES = ("42P01", "3F000")
# Part of a driver's message in lower case, the cause, and the remedy; the first match counts.
_EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    ("database or disk is full", "the disk is full", "make room and try again"),
    ("no space left", "the disk is full", "make room and try again"),
    ("disk i/o error", "the disk refused to read or write", "check its free space and health"),
    (
        "database is locked",
        "another process has been writing to it for 10 s",
        "try again when that has ended",
    ),
    (
        "lock timeout",
        "another process has held a lock on it for 10 s",
        "try again when that has ended",
    ),
    (
        "statement timeout",
        "the server has worked on one statement for 30 s, as long as it may",
        "see what keeps it busy, or raise the limit in the URL: "
        "?options=-c%20statement_timeout%3D5min",
    ),
    (
        "idle-in-transaction timeout",
        "this process was stopped for a minute in the middle of it",
        "try again",
    ),
    (
        "no answer for",
        "the server does not answer any more",
        "check that it runs; try again",
    ),
    (
        "not a database",
        "the file is not a SQLite database",
        "give another path, or move the file away",
    ),
    (
        "malformed",
        "the file is damaged",
        "restore it from a backup, or move it away to begin a new one",
    ),
    ("readonly database", "it is read-only", "make the file and its folder writable"),
    ("unable to open database file", "the file cannot be opened", _FILE),
    ("password authentication failed", "user or password is wrong", "check both in the URL"),
    ("no password supplied", "the server wants a password", "put it in the URL"),
    (
        "no pg_hba.conf entry",
        "the server does not let this user or host in",
        "ask its administrator",
    ),
    (
        "permission denied",
        "the user lacks a permission there",
        "grant it CREATE on the schema, or give it a database that it owns",
    ),
    ("connection refused", "nothing answers there", _SERVER),
    ("resolve host", "the host name is unknown", _SERVER),
    ("name or service", "the host name is unknown", _SERVER),
    ("timeout", "the server does not answer", _SERVER),
    ("no such file or directory", "nothing answers there", _SERVER),
    ("connection failed", "the server cannot be reached", _SERVER),
    ("server closed the connection", "the server closed the connection", "try again"),
)


@contextmanager
def as_store_errors(location: Location, purpose: str) -> Iterator[None]:
    """Raise errors of the drivers as `StoreError`.

    Args:
        location: The database, for messages.
        purpose: What the block does with it: `open`, `read` or `write`.

    Raises:
        StoreError: A driver, or the file system, raised an error inside the block.
    """
    try:
        yield
    except KPError:
        raise
    except (SQLAlchemyError, sqlite3.Error, OSError, ValueError) as error:
        raise explain(error, location, purpose) from error


def explain(error: Exception, location: Location, purpose: str) -> StoreError:
    """Return the `StoreError` that says what `error` means for the user of the store.

    Args:
        error: What a driver, or the file system, raised.
        location: The database.
        purpose: What was done with it: `open`, `read` or `write`.
    """
    original = getattr(error, "orig", None) or error
    text = mask_password(str(original)).strip() or type(original).__name__
    lower = text.lower()
    cause, remedy = next(
        ((cause, remedy) for part, cause, remedy in _EXPLANATIONS if part in lower),
        (text.splitlines()[0], "see the cause below"),
    )
    if isinstance(error, OSError) and location.path:
        cause, remedy = _about_file(error, location.path)
    elif isinstance(error, ValueError) and location.path:
        remedy = _FILE
    elif is_missing_table(error):
        cause = f"a table is missing ({cause})"
        remedy = (
            "try again: if all tables are missing, they are created; otherwise restore the "
            "database from a backup"
        )
    elif "does not exist" in lower and 'database "' in lower:
        cause, remedy = "the server has no such database", "create it, or correct its name"
    return StoreError(f"cannot {purpose} the trace store at {location}: {cause}; {remedy}")


def is_missing_table(error: Exception) -> bool:
    """Return whether `error` says that a table is missing."""
    original = getattr(error, "orig", None)
    return (
        "no such table" in str(original)
        or getattr(original, "sqlstate", None) in _MISSING_SQLSTATES
    )


def _about_file(error: OSError, path: Path) -> tuple[str, str]:
    if isinstance(error, IsADirectoryError):
        return "it is a folder", f"give a file's path, such as {path / 'traces.db'}"
    where = error.filename or path
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{where} lies in or is a file, not a folder", _FILE
    return f"{where}: {error.strerror or error}", _FILE
