"""What the extra `parquet` brings, and the types of columns."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from kp_langchain.errors import MissingExtraError


def load_extra(*names: str) -> list[ModuleType]:
    """Import modules that the extra `parquet` brings.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise MissingExtraError(
            f"{names[0]} cannot be loaded ({error}); install it: pip install "
            "'kp-langchain[parquet]', and for S3, GCS or Azure s3fs, gcsfs or adlfs"
        ) from error


def schema_of(columns: Mapping[str, str]) -> Any:
    """Return the schema of columns, given the kind of the values of each.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    (pa,) = load_extra("pyarrow")
    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "bool": pa.bool_(),
        "float": pa.float64(),
        "integer": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "strings": pa.list_(pa.string()),
        "vector": pa.list_(pa.float32()),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
