"""The HTTP status in the errors of the clients of other tools."""

from __future__ import annotations

from typing import Final

NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status that an error, or what caused it, tells of."""
    while error is not None:
        response = getattr(error, "response", None)
        mlflow_status = getattr(error, "get_http_status_code", lambda: None)()
        for status in (
            getattr(error, "status_code", None),
            getattr(response, "status_code", None),
            # It is 500 also where nothing answers.
            None if mlflow_status == _SERVER_ERROR else mlflow_status,
        ):
            if isinstance(status, int):
                return status
        error = error.__cause__ or error.__context__
    return None
