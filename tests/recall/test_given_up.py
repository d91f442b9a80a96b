"""Promises that the package is to give up: they go with the mechanism that keeps them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from numpy.typing import NDArray

from kp_langchain import KPMiddleware, KPRetriever, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel
from tests.recall.words import (
    ASK,
    EURO,
    POUND,
    Listening,
    Words,
    answers,
    keep,
    passing_handler,
    rates,
)


class Gated(Words):
    """Embeds a text that is asked about only when it may; `meanwhile` is called until then."""

    model = "gated"

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def meanwhile(self) -> None:
        pass

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        while EURO in texts and not self.may_go_on.wait(0.01):
            self.meanwhile()
        return super().embed(texts)


def shows(store: TraceStore, embedder: Any, timeout_s: float) -> KPMiddleware:
    return KPMiddleware(
        handler=passing_handler(store), embedder=embedder, floor=0.5, held_out=0.0,
        timeout_s=timeout_s,
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_a_model_is_waited_for_leaves_the_child_a_search_of_its_own(
    store: TraceStore,
) -> None:
    kept, gated = keep(store), Gated()
    retriever = KPRetriever("finance", store=store, embedder=Words(), floor=0.5)
    assert [one.id for one in retriever.invoke(EURO)] == [kept]
    waiting = shows(store, gated, 0.05)
    try:
        create_agent(ScriptedChatModel(answers()), [rates], middleware=[waiting]).invoke(ASK)
        child = os.fork()
        if child == 0:
            gated.may_go_on.set()
            waiting._timeout_s = 60.0
            model = Listening(answers(), asked=[])
            create_agent(model, [rates], middleware=[waiting]).invoke(ASK)
            is_found = [one.id for one in retriever.invoke(EURO)] == [kept]
            os._exit(0 if is_found and POUND in model.asked[0][0].text else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        gated.may_go_on.set()
    assert waiting.load(60)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs a signal")
def test_an_exception_that_a_signal_raises_ends_the_wait_for_examples(store: TraceStore) -> None:
    keep(store)
    reached, main, gated = threading.Event(), threading.main_thread().ident or 0, Gated()

    def send() -> None:
        # Again, because a signal that comes just before a wait does not end it.
        if not reached.is_set():
            signal.pthread_kill(main, signal.SIGALRM)

    def raise_limit(*_: object) -> None:
        if not reached.is_set():
            reached.set()
            raise TimeoutError("the limit of the host")

    waiting = shows(store, gated, 600)
    assert waiting.load(60)
    gated.meanwhile = send  # type: ignore[method-assign]
    before = signal.signal(signal.SIGALRM, raise_limit)
    try:
        agent = create_agent(ScriptedChatModel(answers()), [rates], middleware=[waiting])
        with pytest.raises(TimeoutError, match="limit of the host"):
            agent.invoke(ASK)
    finally:
        signal.signal(signal.SIGALRM, before)
        gated.may_go_on.set()
    assert waiting.load(60)
