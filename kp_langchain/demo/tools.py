"""The tools of the demo's agents: local and deterministic, with errors to recover from."""

from __future__ import annotations

from langchain_core.tools import BaseTool, ToolException, tool

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


FINANCE: tuple[BaseTool, ...] = (positions, exchange_rate, value_at_risk, settle)
CODE: tuple[BaseTool, ...] = (read_file, apply_patch, run_tests)
MEDICAL: tuple[BaseTool, ...] = (interactions, guideline, dose_limit)
CUSTOMER_SERVICE: tuple[BaseTool, ...] = (find_order, refund_policy, refund)

for _tool in (*FINANCE, *CODE, *MEDICAL, *CUSTOMER_SERVICE):
    _tool.handle_tool_error = True  # the model reads a ToolException; another error ends the run
