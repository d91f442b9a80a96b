"""Runs of the live benchmark: the store of kept right runs, what a run is shown, and how it ends."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage

from kp_langchain import (
    DomainPolicy,
    KPCallbackHandler,
    KPMiddleware,
    ReasoningTrace,
    TraceStore,
    to_few_shot,
)
from kp_langchain.demo.scripted import ScriptedChatModel, say
from kp_langchain.recall import ExampleSearch, admit_patterns, patterns_of
from kp_langchain.recall.example_search import AS_GOOD
from tests.benchmarks.live.worlds import ANSWER, Call, Task, World

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

MOST_MODEL_CALLS = 8
KEPT_OF_A_KIND, KEPT_FOR_PATTERNS = 2, 4
_MAX_TOKENS = 800
_CALL_CHARS = 400
_KEEPS_ALL = DomainPolicy(threshold=0.0, twin_similarity=1.0)


@dataclass(frozen=True)
class Shown:
    """What a run of an arm is shown.

    Attributes:
        choice: `nothing`, `random` (any kept run), `right kind`, or `recall`.
        options: For `to_few_shot`, or for `KPMiddleware`.
        kept_of_a_kind: How many runs of each kind the store has.
    """

    choice: str
    options: Mapping[str, Any]
    kept_of_a_kind: int = KEPT_OF_A_KIND


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        world: The world.
        arm: What it was shown.
        kind: The kind of its task.
        number: Which task of its kind.
        solved: Whether it solved the task.
        answered: Whether it gave an answer.
        prompt_tokens: Of all its model calls together.
        first_prompt_tokens: Of the first one.
        model_calls: How often it asked the model.
        seconds: How long it took.
        shown: The kinds of the tasks whose runs it was shown.
        calls: The calls that it made, as text, each cut.
    """

    world: str
    arm: str
    kind: str
    number: int
    solved: bool
    answered: bool
    prompt_tokens: int
    first_prompt_tokens: int
    model_calls: int
    seconds: float
    shown: Sequence[str]
    calls: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class Kept:
    """A store with right runs of each kind of task of a world, each with a verdict.

    Of four runs of a kind, what they have in common is a pattern, which is admitted.

    Args:
        world: The world.
        folder: Where the store lies.
        kinds: The kinds of which runs are kept; by default all.
        kept_of_a_kind: How many runs of each.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        kinds: Sequence[str] | None = None,
        kept_of_a_kind: int = KEPT_OF_A_KIND,
    ) -> None:
        self.world = world
        folder.mkdir(parents=True, exist_ok=True)
        self.store = TraceStore(folder / f"{world.name}.db")
        self.kinds: dict[str, str] = {}  # by the id of the trace or pattern
        self.traces: dict[str, list[ReasoningTrace]] = {}
        handler = KPCallbackHandler(world.name, store=self.store, policy=_KEEPS_ALL)
        tasks = [
            world.task(kind, number, is_kept=True)
            for number in range(kept_of_a_kind)
            for kind in (world.kinds if kinds is None else kinds)
        ]
        for task in tasks:
            trace = self._record(handler, task)
            self.kinds[trace.id] = task.kind
            self.traces.setdefault(task.kind, []).append(trace)
        handler.close()
        if kept_of_a_kind >= KEPT_FOR_PATTERNS:
            patterns = patterns_of(self.store, world.name).patterns
            admit_patterns(self.store, patterns, by="benchmark")
            for one in patterns:
                kinds_of = Counter(self.kinds[id_] for id_ in one.members)
                self.kinds[one.id] = kinds_of.most_common(1)[0][0]
        self.search = ExampleSearch(self.store)
        self.search.update(world.name)

    def _record(self, handler: KPCallbackHandler, task: Task) -> ReasoningTrace:
        room = self.world.open()
        calls = [*task.calls, Call(ANSWER, {"value": task.truth or "done"})]
        answers = [
            say("", ToolCall(name=one.name, args=dict(one.arguments), id=f"call_{n}"))
            for n, one in enumerate(calls)
        ]
        agent = create_agent(
            ScriptedChatModel(answers), list(room.tools), system_prompt=self.world.instructions
        )
        agent.invoke({"messages": [("user", task.text)]}, {"callbacks": [handler]})
        scored = handler.last()
        assert scored is not None
        assert scored.decision == "kept", scored.reason
        handler.report_outcome(scored.run_id, success=True)
        handler.flush()
        return scored.trace

    def kinds_found(self, task: Task, **options: Any) -> list[str]:
        """Return the kinds of what recall finds for a task, the best first.

        Args:
            task: The task.
            options: For `ExampleSearch.find`.
        """
        tools = [tool.name for tool in self.world.open().tools]
        found = self.search.find(task.text, domain=self.world.name, tools=tools, **options)
        return [self.kinds[one.trace_id] for one in found.matches]

    def middleware(self, task: Task, shown: Shown) -> tuple[list[Any], list[str]]:
        """Return the middleware that shows a run what its arm is shown, and the kinds of that."""
        if shown.choice == "nothing":
            return [], []
        if shown.choice == "recall":
            options = {key: value for key, value in shown.options.items() if key != "calls"}
            kinds = self.kinds_found(task, **{"limit": 3, "of_first": AS_GOOD, **options})
            recall = KPMiddleware(
                self.world.name, store=self.store, held_out=0.0, timeout_s=300.0, **shown.options
            )
            return [recall], kinds
        chance = Random(f"{task.kind} {task.text}")
        kind = task.kind if shown.choice == "right kind" else chance.choice(sorted(self.traces))
        trace = chance.choice(self.traces[kind])
        text = to_few_shot(trace, trust="verdict", max_tokens=_MAX_TOKENS, **shown.options)
        return [_Text(text)], [kind]


class _Text(AgentMiddleware):  # type: ignore[type-arg]
    """Shows a text before the task, as `KPMiddleware` does."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        at = next(n for n, one in enumerate(request.messages) if one.type == "human")
        messages = list(request.messages)
        messages.insert(at, HumanMessage(self._text))
        return handler(request.override(messages=messages))


def run(kept: Kept, arm: str, shown: Shown, task: Task, number: int, model: BaseChatModel) -> Row:
    """Let an agent do a task, and return how that ended.

    Args:
        kept: The store with what it may be shown.
        arm: The name of the arm.
        shown: What it is shown.
        task: The task.
        number: Which of its kind it is.
        model: The model.
    """
    room = kept.world.open()
    middleware, kinds = kept.middleware(task, shown)
    limit = ModelCallLimitMiddleware(run_limit=MOST_MODEL_CALLS, exit_behavior="end")
    agent = create_agent(
        model,
        list(room.tools),
        system_prompt=kept.world.instructions,
        middleware=[*middleware, limit],
    )
    began_s = time.perf_counter()
    messages = agent.invoke({"messages": [("user", task.text)]}, {"recursion_limit": 100})[
        "messages"
    ]
    last = messages[-1]
    answer = last.text if isinstance(last, ToolMessage) and last.name == ANSWER else None
    tokens = [
        one.usage_metadata["input_tokens"]
        for one in messages
        if isinstance(one, AIMessage) and one.usage_metadata
    ]
    return Row(
        world=kept.world.name,
        arm=arm,
        kind=task.kind,
        number=number,
        solved=room.is_solved(task, answer),
        answered=answer is not None,
        prompt_tokens=sum(tokens),
        first_prompt_tokens=tokens[0] if tokens else 0,
        model_calls=sum(isinstance(one, AIMessage) for one in messages),
        seconds=time.perf_counter() - began_s,
        shown=kinds,
        calls=[
            f"{call['name']}({json.dumps(call['args'])})"[:_CALL_CHARS]
            for one in messages
            if isinstance(one, AIMessage)
            for call in one.tool_calls
        ],
    )
