"""Recall: kept traces as examples for new runs.

`KPMiddleware`, `KPRetriever`, `KPExampleSelector` and `to_few_shot` are names of `kp_langchain`.
"""

from typing import TYPE_CHECKING

from kp_langchain._lazy import lazy_names

if TYPE_CHECKING:
    from kp_langchain.calibration.planted_instructions import (
        PlantedInstruction as PlantedInstruction,
    )
    from kp_langchain.calibration.planted_instructions import find_planted as find_planted
    from kp_langchain.recall.admission import admit_patterns as admit_patterns
    from kp_langchain.recall.admission import reject_patterns as reject_patterns
    from kp_langchain.recall.credit import Credit as Credit
    from kp_langchain.recall.credit import credits_of as credits_of
    from kp_langchain.recall.effect import Effect as Effect
    from kp_langchain.recall.effect import RunGroup as RunGroup
    from kp_langchain.recall.effect import effects_in as effects_in
    from kp_langchain.recall.example_search import Example as Example
    from kp_langchain.recall.example_search import Examples as Examples
    from kp_langchain.recall.example_search import ExampleSearch as ExampleSearch
    from kp_langchain.recall.patterns import Mined as Mined
    from kp_langchain.recall.patterns import Pattern as Pattern
    from kp_langchain.recall.patterns import patterns_of as patterns_of
    from kp_langchain.recall.skill_file import skill_text as skill_text
    from kp_langchain.recall.skill_file import unit_of as unit_of

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "kp_langchain.recall.admission": "admit_patterns reject_patterns",
        "kp_langchain.recall.credit": "Credit credits_of",
        "kp_langchain.recall.effect": "Effect RunGroup effects_in",
        "kp_langchain.recall.example_search": "Example ExampleSearch Examples",
        "kp_langchain.recall.patterns": "Mined Pattern patterns_of",
        "kp_langchain.recall.skill_file": "skill_text unit_of",
        "kp_langchain.calibration.planted_instructions": "PlantedInstruction find_planted",
    },
)
