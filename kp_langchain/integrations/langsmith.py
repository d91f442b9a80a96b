"""Feedback that was given in LangSmith, as verdicts. Reads, and never writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kp_langchain.errors import ConfigError, KPError, VerdictError
from kp_langchain.recording.verdict_reader import read_success
from kp_langchain.verdict import RunVerdict, Verdict

if TYPE_CHECKING:
    from langsmith import Client

SOURCE = "langsmith"
_BATCH = 50  # run ids travel in the address, which must not be long
_CONNECT_MS, _READ_MS = 10_000, 30_000


def feedback(
    run_ids: Iterable[str],
    *,
    keys: Sequence[str] = (),
    pass_at: float = 0.5,
    client: Client | None = None,
) -> Iterator[RunVerdict]:
    """Read the feedback that LangSmith has for these runs; mere comments are passed over.

    A score of 1 or 0, a boolean, or a value such as "correct" or "no" tells success or failure.
    Any other score from 0 to 1 is taken for how sure one can be of the result: it becomes the
    confidence, and the run succeeded if it reaches `pass_at`.

    Args:
        run_ids: LangChain's ids of root runs.
        keys: Only feedback under these keys; all keys by default.
        pass_at: The score, 0 to 1, from which a run succeeded.
        client: LangSmith's client; by default one made from the environment (`LANGSMITH_API_KEY`,
            `LANGSMITH_ENDPOINT`).

    Raises:
        ConfigError: `pass_at` lies outside 0 to 1.
        KPError: LangSmith cannot be reached, refuses the key, or answers something else.
    """
    if not 0 <= pass_at <= 1:
        raise ConfigError(f"pass_at is {pass_at!r}; give a number from 0 to 1")
    ids = list(dict.fromkeys(run_ids))
    if not ids:
        return
    client = client or _client()
    for start in range(0, len(ids), _BATCH):
        for one in _asked(client, ids[start : start + _BATCH], keys):
            if one.run_id is not None and (one.score, one.value) != (None, None):
                yield _read(one, pass_at)


def _client() -> Client:
    from langsmith import Client
    from urllib3.util import Retry

    try:
        return Client(
            auto_batch_tracing=False,
            timeout_ms=(_CONNECT_MS, _READ_MS),
            # LangSmith's own would wait for as long as a server says.
            retry_config=Retry(
                total=2,
                backoff_factor=0.5,
                status_forcelist=(429, 500, 502, 503, 504),
                raise_on_status=False,
                respect_retry_after_header=False,
            ),
        )
    except Exception as error:
        raise KPError(
            f"LangSmith's client cannot be made ({type(error).__name__}); check LANGSMITH_API_KEY "
            "and LANGSMITH_ENDPOINT"
        ) from error


def _asked(client: Client, run_ids: Sequence[str], keys: Sequence[str]) -> list[Any]:
    from langsmith.utils import LangSmithAuthError, LangSmithConnectionError

    found: dict[object, Any] = {}
    wanted = set(run_ids)
    try:
        for one in client.list_feedback(run_ids=list(run_ids), feedback_key=list(keys) or None):
            if one.id in found:  # a server that gives the same page again and again
                break
            found[one.id] = one
    except LangSmithAuthError as error:
        raise KPError(_refused(client)) from error
    except LangSmithConnectionError as error:
        raise KPError(
            f"LangSmith cannot be reached at {_address(client)}; check LANGSMITH_ENDPOINT"
        ) from error
    except Exception as error:  # whatever a foreign client makes of a foreign answer
        status = _status_of(error)
        if status in (401, 403):
            raise KPError(_refused(client)) from error
        what = type(error).__name__ if status is None else f"status {status}"
        raise KPError(
            f"LangSmith at {_address(client)} answers without readable feedback ({what}); "
            "check LANGSMITH_ENDPOINT, or try again later"
        ) from error
    return [one for one in found.values() if str(one.run_id) in wanted]


def _refused(client: Client) -> str:
    return (
        f"LangSmith at {_address(client)} refuses the key; set LANGSMITH_API_KEY to one that may "
        "read its feedback"
    )


def _status_of(error: BaseException | None) -> int | None:
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__ or error.__context__
    return None


def _address(client: Client) -> str:
    url = urlsplit(client.api_url)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _read(one: Any, pass_at: float) -> RunVerdict:
    at = one.modified_at or one.created_at
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    told = one.value if one.score is None else one.score
    run_id = str(one.run_id)
    place = f"LangSmith, run {run_id}"
    try:
        success, confidence = _told(told, pass_at)
    except VerdictError as error:
        why = f"feedback {one.key!r}: {error}"
        return RunVerdict(run_id, why=why, place=place, key=one.key, at=at)
    verdict = Verdict(success, confidence, one.comment or None, SOURCE, at)
    return RunVerdict(run_id, verdict, place=place, key=one.key, at=at)


def _told(told: object, pass_at: float) -> tuple[bool, float | None]:
    """Success, and the confidence if there is one, that a score or value tells."""
    if isinstance(told, bool | str) or told in (0, 1):
        return read_success(told), None
    if isinstance(told, int | float):
        if not (math.isfinite(told) and 0 <= told <= 1):
            raise VerdictError(f"its score is {told:g}; only scores from 0 to 1 can be read")
        return told >= pass_at, float(told)
    raise VerdictError(f"its value is a {type(told).__name__}; only scores and words can be read")
