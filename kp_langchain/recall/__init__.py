"""Recall: kept traces as examples for new runs.

`KPMiddleware`, `KPRetriever`, `KPExampleSelector` and `to_few_shot` are names of `kp_langchain`.
"""

from kp_langchain.recall.credit import Credit, credits_of
from kp_langchain.recall.example_search import Example, Examples, ExampleSearch
from kp_langchain.recall.planted_instructions import PlantedInstruction, find_planted

__all__ = [
    "Credit",
    "Example",
    "ExampleSearch",
    "Examples",
    "PlantedInstruction",
    "credits_of",
    "find_planted",
]
