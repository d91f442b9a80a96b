"""A fork while a search waits for a model."""

from __future__ import annotations

import os
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
    """Embeds a text that is asked about only when it may."""

    model = "gated"

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if EURO in texts:
            self.may_go_on.wait()
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
