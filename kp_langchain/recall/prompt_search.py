"""`PromptSearch`: finds examples and writes the text that shows them, on a thread of its own."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.user_calls import SEARCHING, lane_for

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import Embedding
    from kp_langchain.recall.example_search import Example, ExampleSearch

# So many are embedded before runs get their examples; the rest follows when they have them.
_MOST_NEW_AT_ONCE = 16
_MOST_TOGETHER = 32
_MOST_WAITING = 200


class Request(NamedTuple):
    """What a run asks for.

    Attributes:
        task: Its task.
        domain: Its domain, as it is recorded.
        namespace: Its namespace, in plain text; None for none.
        limit: Most examples.
        floor: The similarity that is asked for; None for that of the domain.
        max_tokens: Longest text of all examples, in estimated tokens.
        with_outputs: Whether outputs of tools are shown.
        tools: The names of the tools that the agent has; empty if unknown.
    """

    task: str
    domain: str
    namespace: str | None
    limit: int
    floor: float | None
    max_tokens: int
    with_outputs: bool
    tools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Response:
    """What a run gets.

    Attributes:
        examples: The examples that `text` shows; empty if there are none.
        text: The text; "" for none.
        floor: The similarity that was asked for, 0 to 1.
        reason: Why there are no examples, in words; empty if there are some.
    """

    examples: tuple[Example, ...] = ()
    text: str = ""
    floor: float = 0.0
    reason: str = ""


class PromptSearch:
    """Serves requests one after the other. The tasks of those that wait are embedded together.

    Args:
        search: The search.
    """

    def __init__(self, search: ExampleSearch) -> None:
        self._search = search
        # A model or a database that hangs delays nobody who uses another one.
        self._lane = lane_for(search, SEARCHING)
        self.leave_to_parent()
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, what waits: it is the parent's."""
        self._waiting: deque[tuple[Request, Future[Response]]] = deque()
        self._late: Future[Response] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the embedder has its model loaded."""
        return self._search.is_ready

    def submit(self, request: Request) -> Future[Response]:
        """Have a request served, unless too many wait already, or a run waited for one in vain."""
        future: Future[Response] = Future()
        if self._is_late:
            future.set_result(Response(reason="an earlier search still takes too long"))
        elif len(self._waiting) >= _MOST_WAITING:
            future.set_result(Response(reason="too many searches wait"))
        else:
            self._waiting.append((request, future))
            self._lane.submit(self._serve)
        return future

    def give_up(self, future: Future[Response]) -> None:
        """Note that a run waited for this search in vain.

        Until it is done, no other begins, even if it has not begun itself: others are served, or
        the model is being loaded. One such search is enough.
        """
        if self._is_late:
            future.cancel()
        else:
            self._late = future

    @property
    def _is_late(self) -> bool:
        return self._late is not None and not self._late.done()

    def catch_up(self, domain: str, *, all_at_once: bool = False) -> None:
        """Have what is kept in a domain read and embedded, in parts, between which others search.

        Args:
            domain: The domain.
            all_at_once: Whether to do it in one part.
        """
        self._lane.submit(partial(self._catch_up, domain, all_at_once=all_at_once))

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until all that was asked for is done; return False if that took too long."""
        return self._lane.wait(timeout_s)

    # ---------------------------------------------------------------- on the lane's thread

    def _serve(self) -> None:
        batch: list[tuple[Request, Future[Response]]] = []
        while self._waiting and len(batch) < _MOST_TOGETHER:
            request, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                batch.append((request, future))
        embeddings = self._embed([request.task for request, _ in batch])
        for (request, future), embedding in zip(batch, embeddings, strict=True):
            try:
                response = self._find(request, embedding)
            except BaseException as error:  # noqa: BLE001 - of the user's embedder
                response = Response(reason=f"the search failed: {describe_error(error)}")
                warn_of_failure(error)
            future.set_result(response)

    def _embed(self, tasks: Sequence[str]) -> Sequence[Embedding | None]:
        """Return the embeddings of tasks; None for each if they cannot be embedded together."""
        if len(tasks) > 1 and all(task.strip() for task in tasks):
            try:
                return self._search.embed(tasks)
            except BaseException:  # noqa: BLE001, S110 - perhaps of one; each is tried by itself
                pass
        return [None] * len(tasks)

    def _find(self, request: Request, embedding: Embedding | None) -> Response:
        examples = self._search.find(
            request.task,
            domain=request.domain,
            namespace=request.namespace,
            limit=request.limit,
            floor=request.floor,
            tools=request.tools,
            most_new=_MOST_NEW_AT_ONCE,
            embedding=embedding,
        )
        if not examples.is_complete:
            self.catch_up(request.domain)
        if not examples.found:
            return Response(floor=examples.floor, reason=examples.reason)
        few_shot = examples.compose(
            max_tokens=request.max_tokens, with_outputs=request.with_outputs
        )
        shown = tuple(examples.found[at] for at in few_shot.shown)
        reason = "" if shown else f"no example fits in max_tokens={request.max_tokens}"
        return Response(shown, few_shot.text, examples.floor, reason)

    def _catch_up(self, domain: str, *, all_at_once: bool) -> None:
        try:
            most_new = None if all_at_once else _MOST_NEW_AT_ONCE
            if not self._search.update(domain, most_new=most_new):
                self.catch_up(domain)
        except BaseException as error:  # noqa: BLE001 - a search will say so when it is needed
            warn_of_failure(error)


def prompt_search_of(search: ExampleSearch) -> PromptSearch:
    """Return the one that serves a search, so that what waits for it waits together."""
    with _lock:
        prompt_search = _prompt_searches.get(search)
        if prompt_search is None:
            prompt_search = _prompt_searches[search] = PromptSearch(search)
        return prompt_search


def warn_of_failure(error: BaseException) -> None:
    """Warn once of each kind of failure."""
    warn_once(
        f"recall:{type(error).__name__}",
        "kept traces cannot be searched (%s); runs are shown no examples",
        describe_error(error),
    )


_prompt_searches: weakref.WeakValueDictionary[ExampleSearch, PromptSearch] = (
    weakref.WeakValueDictionary()
)
_lock = ForkSafeLock()
