"""Whether a run looks successful by how its last tool call ended, in a real agent."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool

from kp_langchain import KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.gate import ScoredTrace

ENDINGS = {
    # What the tool returns or raises, call by call; whether the run looks successful, and whether
    # its last call counts as failed. The agent answers as if nothing had happened.
    "a fine output": (["3 rooms are free"], True, False),
    "an error as text": (["Error: the hotel is not known"], False, True),
    "a program's traceback": (["Traceback (most recent call last):\nKeyError: 'x'"], False, True),
    "a raised error": ([ToolException("the hotel is not known")], False, True),
    "an error, then a fine output": (["Error: try again", "3 rooms are free"], True, False),
    "a raised error, then a fine output": (
        [ToolException("try again"), "3 rooms are free"],
        True,
        False,
    ),
    "a fine output, then an error": (["3 rooms are free", "Error: sold out"], False, True),
    "words that describe": (["Missing: a film. It does not exist in colour."], True, False),
    "nothing": ([""], True, False),
}


def run(outputs: list[str | Exception]) -> ScoredTrace:
    left = list(outputs)

    @tool
    def search(hotel: str) -> str:
        """Search for rooms."""
        output = left.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    search.handle_tool_error = True
    answers = [say("", call("search", f"c{at}", hotel="Ritz")) for at in range(len(outputs))]
    agent = create_agent(ScriptedChatModel([*answers, say("The Ritz has 3 rooms.")]), [search])
    handler = KPCallbackHandler(store=None)
    agent.invoke({"messages": [("user", "Is there a room?")]}, {"callbacks": [handler]})
    scored = handler.last(60)
    assert scored is not None
    return scored


@pytest.mark.parametrize(("outputs", "succeeds", "fails"), ENDINGS.values(), ids=ENDINGS)
def test_a_run_looks_successful_by_how_its_last_call_ended(
    outputs: list[str | Exception], succeeds: bool, fails: bool
) -> None:
    scored = run(outputs)
    assert scored.trace.metadata.success is succeeds
    assert scored.features["last_observation_fails"] == fails
