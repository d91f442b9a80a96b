"""The tasks of the demo's agents, which run in real LangChain loops with the handler attached.

The answers of the model are scripted. The tools are local and deterministic, with errors to recover
from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import BaseTool, ToolException, tool

from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.errors import MissingExtraError
from kp_langchain.gate import ScoredTrace
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore

_POSITIONS = {"ACME": {"EUR": 1_200_000, "USD": 400_000}, "GLOBEX": {"JPY": 90_000_000}}
_RATES = {"EUR": 1.08, "USD": 1.0, "JPY": 0.0067}
_VOLATILITY = {"EUR": 0.071, "JPY": 0.094, "USD": 0.0}
_FILES = {
    "shop/cart.py": "def total(items):\n    return sum(i.price for i in items)\n",
    "tests/test_cart.py": "def test_quantity():\n    assert total([Item(2.0, 3)]) == 6.0\n",
}
_INTERACTIONS = {
    frozenset(("warfarin", "ibuprofen")): "major: raised bleeding risk",
    frozenset(("metformin", "ibuprofen")): "moderate: watch the renal function",
}
_GUIDELINES = {
    "pain with anticoagulation": "Prefer paracetamol, at most 3 g a day; avoid NSAIDs.",
    "osteoarthritis": "Topical NSAIDs first, oral ones for short courses only.",
}
_ORDERS = {
    "A-1042": {"item": "kettle", "price": 39.90, "status": "delivered", "days_ago": 6},
    "A-1077": {"item": "toaster", "price": 54.50, "status": "delivered", "days_ago": 9},
}


@tool
def positions(client: str) -> str:
    """List a client's open positions by currency."""
    amounts = _POSITIONS.get(client.upper())
    if amounts is None:
        raise ToolException(f"no client {client!r}; known are {', '.join(sorted(_POSITIONS))}")
    return "; ".join(f"{currency} {amount:,}" for currency, amount in amounts.items())


@tool
def exchange_rate(currency: str) -> str:
    """Give the value of one unit of a currency in USD."""
    rate = _RATES.get(currency.upper())
    if rate is None:
        raise ToolException(f"no rate for {currency!r}; known are {', '.join(_RATES)}")
    return f"1 {currency.upper()} = {rate} USD"


@tool
def value_at_risk(currency: str, amount: float, days: int = 10) -> str:
    """Compute the 95 % value at risk in USD of a currency position over some days."""
    code = currency.upper()
    if code not in _RATES:
        raise ToolException(f"no volatility for {currency!r}")
    risk = 1.645 * amount * _RATES[code] * _VOLATILITY[code] * (days / 252) ** 0.5
    return f"95 % value at risk over {days} days: {risk:,.0f} USD"


@tool
def settle(order: str) -> str:
    """Send a settlement order to the bank."""
    raise ConnectionError(f"the bank's gateway does not answer (order {order!r})")


@tool
def read_file(path: str) -> str:
    """Read a file of the repository."""
    if path not in _FILES:
        raise ToolException(f"no file {path!r}; there are {', '.join(_FILES)}")
    return _FILES[path]


@tool
def apply_patch(path: str, old: str, new: str) -> str:
    """Replace a piece of text in a file of the repository."""
    if path not in _FILES or old not in _FILES[path]:
        raise ToolException(f"the patch does not apply: {old!r} is not in {path!r}")
    return f"{path}: {old!r} -> {new!r}"


@tool
def run_tests(target: str) -> str:
    """Run the tests of the repository."""
    if target not in _FILES:
        raise ToolException(f"nothing to collect at {target!r}; try tests/test_cart.py")
    return "1 passed"


@tool
def interactions(drug: str, other: str) -> str:
    """Look up whether two drugs interact."""
    return _INTERACTIONS.get(frozenset((drug.lower(), other.lower())), "no known interaction")


@tool
def guideline(topic: str) -> str:
    """Look up a treatment guideline."""
    text = _GUIDELINES.get(topic.lower())
    if text is None:
        raise ToolException(f"no guideline on {topic!r}; there are {', '.join(_GUIDELINES)}")
    return text


@tool
def dose_limit(drug: str, weight_kg: float) -> str:
    """Give the highest daily dose of a drug for a body weight."""
    return f"{drug}: {min(3000.0, 60.0 * weight_kg):.0f} mg a day"


@tool
def find_order(order_id: str) -> str:
    """Look up an order."""
    order = _ORDERS.get(order_id)
    if order is None:
        raise ToolException(f"no order {order_id!r}")
    return ", ".join(f"{key}: {value}" for key, value in order.items())


@tool
def refund_policy(item: str) -> str:
    """Return the refund policy for an item."""
    return f"{item}: full refund within 14 days of delivery, back to the original card"


@tool
def refund(order_id: str, amount: float) -> str:
    """Refund an order."""
    if order_id not in _ORDERS:
        raise ToolException(f"no order {order_id!r}")
    return f"refunded {amount:.2f} for {order_id}"


_FINANCE: tuple[BaseTool, ...] = (positions, exchange_rate, value_at_risk, settle)
_CODE: tuple[BaseTool, ...] = (read_file, apply_patch, run_tests)
_MEDICAL: tuple[BaseTool, ...] = (interactions, guideline, dose_limit)
_CUSTOMER_SERVICE: tuple[BaseTool, ...] = (find_order, refund_policy, refund)

for _tool in (*_FINANCE, *_CODE, *_MEDICAL, *_CUSTOMER_SERVICE):
    _tool.handle_tool_error = True  # the model reads a ToolException; another error ends the run


@dataclass(frozen=True)
class DemoTask:
    """One run of the demo.

    Attributes:
        title: Its title in the table.
        domain: The domain that it is scored in.
        question: The user's message to the agent.
        answers: The answers of the scripted model, one a call.
        tools: The agent's tools; an agent without tools is a plain prompt chain.
    """

    title: str
    domain: str
    question: str
    answers: tuple[AIMessage, ...]
    tools: tuple[BaseTool, ...] = ()


TASKS = (
    DemoTask(
        title="hedge a currency position",
        domain="finance",
        question="ACME reports in USD. How much of its foreign currency should it hedge for the "
        "next ten days, if it wants to risk no more than 20,000 USD?",
        tools=_FINANCE,
        answers=(
            say("First, what ACME holds.", call("positions", client="ACME")),
            say(
                "Only the euro position is foreign. I need its value and its risk.",
                call("exchange_rate", currency="EUR"),
                call("value_at_risk", currency="EUR", amount=1_200_000),
            ),
            say(
                "The risk of the whole position is above the limit; half of it should be near.",
                call("value_at_risk", currency="EUR", amount=600_000),
            ),
            say(
                "Hedge about 700,000 EUR. The open 1.2 million EUR carry a 95 % ten-day risk of "
                "some 30,000 USD; with 500,000 EUR left open it is below 13,000 USD."
            ),
        ),
    ),
    DemoTask(
        title="fix a bug, after three mistakes",
        domain="code",
        question="The cart's total ignores quantities. Fix it and show that the tests pass.",
        tools=_CODE,
        answers=(
            say("I look at the cart first.", call("read_file", path="cart.py")),
            say("It lies in the shop package.", call("read_file", path="shop/cart.py")),
            say(
                "The price must be multiplied by the quantity.",
                call(
                    "apply_patch",
                    path="shop/cart.py",
                    old="sum(item.price)",
                    new="sum(item.price * item.quantity)",
                ),
            ),
            say(
                "The loop variable is called i.",
                call(
                    "apply_patch",
                    path="shop/cart.py",
                    old="i.price for i",
                    new="i.price * i.quantity for i",
                ),
            ),
            say("Now the tests.", call("run_tests", target="tests")),
            say("I have to name the file.", call("run_tests", target="tests/test_cart.py")),
            say("Fixed: total() now multiplies price by quantity, and the test passes."),
        ),
    ),
    DemoTask(
        title="check a prescription",
        domain="medical",
        question="A patient of 70 kg takes warfarin and asks for something against knee pain. "
        "Is ibuprofen safe, and what else could be given?",
        tools=_MEDICAL,
        answers=(
            say(
                "Warfarin makes this risky, so I check the interaction.",
                call("interactions", drug="warfarin", other="ibuprofen"),
            ),
            say(
                "A major interaction. What do the guidelines prefer, and how much of it?",
                call("guideline", topic="pain with anticoagulation"),
                call("dose_limit", drug="paracetamol", weight_kg=70),
            ),
            say(
                "No: ibuprofen with warfarin raises the risk of bleeding. Paracetamol up to 3 g a "
                "day is the preferred alternative; the clotting should be checked after a week."
            ),
        ),
    ),
    DemoTask(
        title="refund an order",
        domain="customer_service",
        question="My kettle from order A-1042 does not switch off. I want my money back.",
        tools=_CUSTOMER_SERVICE,
        answers=(
            say("I look up the order.", call("find_order", order_id="A-1042")),
            say("Is it within the policy?", call("refund_policy", item="kettle")),
            say("It is: six days.", call("refund", order_id="A-1042", amount=39.9)),
            say("I have refunded 39.90 to your card; it arrives within three days."),
        ),
    ),
    DemoTask(
        title="refund another order, the same way",
        domain="customer_service",
        question="My toaster from order A-1077 does not switch off. I want my money back.",
        tools=_CUSTOMER_SERVICE,
        answers=(
            say("I look up the order.", call("find_order", order_id="A-1077")),
            say("Is it within the policy?", call("refund_policy", item="toaster")),
            say("It is: nine days.", call("refund", order_id="A-1077", amount=54.5)),
            say("I have refunded 54.50 to your card; it arrives within three days."),
        ),
    ),
    DemoTask(
        title="settle a trade, bank unreachable",
        domain="finance",
        question="Settle order FX-88 with the bank.",
        tools=_FINANCE,
        answers=(say("I send it to the bank.", call("settle", order="FX-88")),),
    ),
    DemoTask(
        title="a plain prompt",
        domain="default",
        question="Explain in one sentence what a value at risk is.",
        answers=(
            say("The loss that a position will not exceed over a period, at a stated confidence."),
        ),
    ),
)


# ------------------------------------------------------------------ running them


def run_tasks(store: TraceStore, scorer: Scorer) -> Iterator[tuple[DemoTask, ScoredTrace | None]]:
    """Run each task, and yield it with its scored trace; None if the run was not scored.

    Args:
        store: The store for the runs.
        scorer: Scores all of them, so that a repeated task is compared with the first one.

    Raises:
        MissingExtraError: langchain is not installed.
    """
    for task in TASKS:
        handler = KPCallbackHandler(task.domain, store=store, scorer=scorer, agent_id="demo")
        with suppress(ConnectionError):  # one tool fails on purpose: a failed run is scored too
            _invoke(task, ScriptedChatModel(task.answers), handler)
        yield task, handler.last()


def _invoke(task: DemoTask, model: BaseChatModel, handler: KPCallbackHandler) -> None:
    config: Any = {"callbacks": [handler]}
    if not task.tools:
        chain = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
        chain.invoke({"question": task.question}, config)
        return
    try:
        from langchain.agents import create_agent
    except ImportError as error:
        raise MissingExtraError(
            "the demo runs agents of langchain, which is not installed: "
            "pip install 'kp-langchain[demo]'"
        ) from error
    question: Any = {"messages": [("user", task.question)]}
    create_agent(model, list(task.tools)).invoke(question, config)
