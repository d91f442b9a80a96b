"""Recall: kept traces as examples for new runs.

`KPMiddleware`, `KPRetriever`, `KPExampleSelector` and `to_few_shot` are names of `kp_langchain`.
"""

from typing import TYPE_CHECKING

from kp_langchain._lazy import loader

if TYPE_CHECKING:
    from kp_langchain.recall.credit import Credit, credits_of
    from kp_langchain.recall.example_search import Example, Examples, ExampleSearch
    from kp_langchain.recall.planted_instructions import PlantedInstruction, find_planted

_HOMES = {
    "kp_langchain.recall.credit": ("Credit", "credits_of"),
    "kp_langchain.recall.example_search": ("Example", "ExampleSearch", "Examples"),
    "kp_langchain.recall.planted_instructions": ("PlantedInstruction", "find_planted"),
}

__all__ = [
    "Credit",
    "Example",
    "ExampleSearch",
    "Examples",
    "PlantedInstruction",
    "credits_of",
    "find_planted",
]

__getattr__ = loader(__name__, {name: home for home, names in _HOMES.items() for name in names})
