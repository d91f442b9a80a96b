"""What is put on the agent: nothing, floors to compare with, and our handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from langchain_core.callbacks import BaseCallbackHandler

_LOST = ("dropped", "failed", "not_stored", "callback_errors", "redaction_errors", "dropped_steps")


class FaultyError(RuntimeError):
    """A handler did not do what it is measured for."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Attached:
    """A handler as it sits on the agent.

    Attributes:
        callbacks: The callbacks of a run.
        settle: Waits until all is done that the handler does behind the agent's back, such as
            scoring or sending. It is part of what the handler costs.
        faults: What went wrong, by name and number; a handler that loses runs is cheap.
    """

    callbacks: Sequence[Any] = ()
    settle: Callable[[], object] = _nothing
    faults: Callable[[], Mapping[str, int]] = field(default=dict)


class Elsewhere(BaseCallbackHandler):
    """Does nothing, and leaves it to LangChain where; in async agents that is another thread."""

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Without it LangChain would write all messages out for `on_llm_start`."""


class Inline(Elsewhere):
    """Does nothing, where the event happens."""

    run_inline = True


def base_tracer(_: Path) -> Attached:
    from langchain_core.tracers import BaseTracer

    class Persistless(BaseTracer):
        def _persist_run(self, run: Any) -> None:
            pass

    return Attached([Persistless()])


class _NoReceiver:
    """Lets finished runs go."""

    def prepare(self) -> None:
        pass

    def add(self, record: object) -> None:
        pass

    def add_paused(self, record: object) -> None:
        pass

    def forget_paused(self, thread_id: str, until: object) -> None:
        pass


def recording(_: Path) -> Attached:
    """Attach ours with scoring off: every event is recorded, and a finished run is let go."""
    from kp_langchain import KPCallbackHandler, Scorer

    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    # There is no switch for this: without scoring, recording would have no purpose.
    handler._recorder._receiver = _NoReceiver()
    return Attached([handler], faults=lambda: lost(handler.stats()))


def everything(folder: Path) -> Attached:
    """Attach ours with all on but an embedder; every run passes, so that it is stored whole."""
    from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer

    handler = KPCallbackHandler(
        store=folder / "traces.db",
        scorer=Scorer(embedder=None),
        policy=DomainPolicy(threshold=0.0, twin_similarity=1.0),
    )
    return Attached([handler], settle=handler.flush, faults=lambda: lost(handler.stats()))


def lost(stats: Mapping[str, int]) -> dict[str, int]:
    """Return those of our handler's counts that say what it did not do."""
    return {name: stats[name] for name in _LOST if stats[name]}


class Candidate(NamedTuple):
    """A handler to put on the agent.

    Attributes:
        title: As the tables show it.
        attach: Makes it, with a folder of its own.
        imports: The statement that imports its handler, where that is measured.
    """

    title: str
    attach: Callable[[Path], Attached]
    imports: str = ""


CANDIDATES = {
    "none": Candidate(
        "no handler", lambda _: Attached(), imports="import langchain_core.callbacks"
    ),
    "inline": Candidate("no-op, inline", lambda _: Attached([Inline()])),
    "elsewhere": Candidate("no-op, not inline", lambda _: Attached([Elsewhere()])),
    "recording": Candidate("kp-langchain, recording only", recording),
    "everything": Candidate(
        "kp-langchain, everything on",
        everything,
        imports="from kp_langchain import KPCallbackHandler",
    ),
    "base_tracer": Candidate("BaseTracer, keeping nothing", base_tracer),
}


@contextmanager
def attached(name: str) -> Iterator[Attached]:
    """Make the candidate `name`, with a folder of its own.

    Raises:
        FaultyError: Afterwards, when it lost something.
    """
    candidate = CANDIDATES[name]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        handler = candidate.attach(Path(folder))
        yield handler
        if faults := handler.faults():
            raise FaultyError(f"{candidate.title} counts {dict(faults)}")
