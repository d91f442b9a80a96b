"""The demo's first day: thirty runs of six tasks, in real LangChain loops with a handler attached.

The answers of the model are scripted, and some are wrong, each in its own way. The tools are local
and deterministic, with errors to recover from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, ToolException, tool

from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.errors import MissingExtraError
from kp_langchain.policy import DomainPolicy
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore

DOMAIN = "customer_service"
POLICY = DomainPolicy(gate="worth", pass_rate=0.1)


class _Order(NamedTuple):
    item: str
    price: float
    place: str


_ORDERS = {
    "A-1042": _Order("kettle", 39.90, "at your door in Graz"),
    "A-1077": _Order("toaster", 54.50, "at a neighbour's in Linz"),
    "A-1080": _Order("lamp", 25.00, "at your door in Wels"),
    "A-1091": _Order("tent", 189.00, "in the depot of Basel"),
    "A-1103": _Order("bicycle", 420.00, "on the ship to Dover"),
    "A-1117": _Order("printer", 99.00, "waiting in our shop in Kiel"),
}


@tool
def find_order(order_id: str) -> str:
    """Look up an order."""
    item, price, _ = _ORDERS[order_id]
    return f"{order_id}: {item}, paid {price:.2f}, handed to the carrier six days ago"


@tool
def track(order_id: str) -> str:
    """Ask the carrier where a parcel is."""
    return f"The parcel of {order_id} is {_ORDERS[order_id].place}."


@tool
def refund_policy(item: str) -> str:
    """Return the refund policy for an item."""
    return f"{item}: full refund within 14 days of delivery, back to the original card"


@tool
def refund(order_id: str, amount: float) -> str:
    """Refund an order."""
    if amount > _ORDERS[order_id].price:
        raise ToolException(f"{amount:.2f} is more than was paid for {order_id}")
    return f"refunded {amount:.2f} for {order_id}"


_TOOLS: tuple[BaseTool, ...] = (find_order, track, refund_policy, refund)
refund.handle_tool_error = True  # the model reads it, and goes on


# ------------------------------------------------------------------ the runs


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo.

    Attributes:
        order_id: The order that it is about. Runs of one order have the same task.
        way: How its agent goes about it.
    """

    order_id: str
    way: str

    @property
    def title(self) -> str:
        """The task in short."""
        verb = "find" if self.order_id in _TO_FIND else "refund"
        return f"{verb} the {_ORDERS[self.order_id].item}"

    @property
    def question(self) -> str:
        """The user's message to the agent."""
        item = _ORDERS[self.order_id].item
        if self.order_id in _TO_FIND:
            return f"Where is the {item} that I ordered as {self.order_id}?"
        return f"The {item} of order {self.order_id} is broken. I want my money back."

    @property
    def is_right(self) -> bool:
        """Whether its answer is right, which the gate is not told."""
        return self.way in ("finds it", "refunds it")

    def answers(self) -> list[AIMessage]:
        """Return the answers of the scripted model, one a call."""
        id_, (item, price, place) = self.order_id, _ORDERS[self.order_id]
        look = say("I look up the order.", call("find_order", order_id=id_))
        match self.way:
            case "finds it":
                ask = say("The carrier has it.", call("track", order_id=id_))
                return [look, ask, say(f"Your {item} is {place}.")]
            case "refunds it":
                policy = say("Is it within the policy?", call("refund_policy", item=item))
                pay = say("It is: six days.", call("refund", order_id=id_, amount=price))
                return [look, policy, pay, say(f"I have refunded {price:.2f} to your card.")]
            case "guesses":
                return [say("It was probably stolen from your door; please call the police.")]
            case "finds another":
                other = say("The carrier has it.", call("track", order_id="A-1042"))
                return [other, say("Somebody in Graz signed for what you bought.")]
            case "offers a voucher":
                return [look, say("We never pay anything back, but here is a voucher of 5 euros.")]
            case "asks and asks":
                asks = [say("Where is it?", call("track", order_id=id_)) for _ in range(3)]
                return [*asks, say("All parcels arrive within a week.")]
            case "pays double":
                pay = say("Twice, sorry.", call("refund", order_id=id_, amount=2 * price))
                return [look, pay, say("You have got twice your money.")]
            case _:
                return [look, say("I am sorry, I am unable to help you with this.")]


_TO_FIND = {"A-1091", "A-1103", "A-1117"}
_WAYS = {
    "A-1042": ("refunds it", "refunds it", "refunds it", "refunds it", "refunds it"),
    "A-1077": ("offers a voucher", "refunds it", "refunds it", "gives up", "refunds it"),
    "A-1080": ("refunds it", "pays double", "refunds it", "refunds it", "refunds it"),
    "A-1091": ("finds it", "guesses", "finds it", "finds it", "finds it"),
    "A-1103": ("finds it", "finds it", "asks and asks", "finds it", "finds another"),
    "A-1117": ("gives up", "finds it", "finds it", "finds another", "finds it"),
}
RUNS = tuple(DemoRun(order, ways[at]) for at in range(5) for order, ways in _WAYS.items())
"""The first run of each task, then the second of each, and so on."""


def play(store: TraceStore, scorer: Scorer) -> Iterator[tuple[DemoRun, str]]:
    """Play each run; yield it with the id of its trace. It is decided on when the last has ended.

    Args:
        store: The store for the runs.
        scorer: Scores them.

    Raises:
        MissingExtraError: langchain is not installed.
    """
    try:
        from langchain.agents import create_agent
    except ImportError as error:
        raise MissingExtraError(
            "the demo runs agents of langchain, which is not installed: "
            "pip install 'kp-langchain[demo]'"
        ) from error
    handler = KPCallbackHandler(DOMAIN, policy=POLICY, store=store, scorer=scorer, agent_id="demo")
    config: Any = {"callbacks": [handler]}
    for run in RUNS:
        agent = create_agent(ScriptedChatModel(run.answers()), list(_TOOLS))
        question: Any = {"messages": [("user", run.question)]}
        agent.invoke(question, config)
        if (scored := handler.last()) is not None:
            yield run, scored.trace.id
    handler.flush()
