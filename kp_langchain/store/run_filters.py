"""`RunFilters`: the arguments by which the methods of a store select runs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypedDict

Sort = Literal["time", "score", "novelty"]
"""What runs are listed by: the newest, the highest score, or the highest novelty first."""


class RunFilters(TypedDict, total=False):
    """Conditions on runs; one that is left out or None matches every run.

    Attributes:
        domain: Only this domain (exact name).
        decision: Only `kept`, only `below_threshold` or only `twin`.
        min_score: Only runs with at least this score, 0 to 1.
        since: Only runs that began at this time or later. A time without a zone is local.
        until: Only runs that began before this time.
        search: Only runs whose objective contains each of these words, in any case. The first 1,000
            characters of an objective are searched.
        rule: Only runs that this rule applied to: `single_thought`, `recovered_errors` or
            `single_tool`.
        tool: Only runs that used this tool (exact name).
        recovered_errors: If True, only runs that recovered from an error.
        near_duplicates: If True, only runs that repeat a kept one, or whose place one took.
        session: Only runs of this session, in plain text or as the store has it.
        thread: Only runs in this LangGraph thread, in either form.
        user: Only runs for this user, in either form.
        namespace: Only runs in this namespace, in either form.
        tag: Only runs with this tag, in either form.
        name: Only runs of this name, in either form.
    """

    domain: str | None
    decision: str | None
    min_score: float | None
    since: datetime | None
    until: datetime | None
    search: str | None
    rule: str | None
    tool: str | None
    recovered_errors: bool | None
    near_duplicates: bool | None
    session: str | None
    thread: str | None
    user: str | None
    namespace: str | None
    tag: str | None
    name: str | None
