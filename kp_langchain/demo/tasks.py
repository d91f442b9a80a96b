"""The tasks of the demo's agents, and the answers of the scripted model."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool

from kp_langchain.demo import tools
from kp_langchain.demo.scripted import call, say


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
        tools=tools.FINANCE,
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
        tools=tools.CODE,
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
        tools=tools.MEDICAL,
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
        tools=tools.CUSTOMER_SERVICE,
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
        tools=tools.CUSTOMER_SERVICE,
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
        tools=tools.FINANCE,
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
