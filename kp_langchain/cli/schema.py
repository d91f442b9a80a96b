"""The command `schema`."""

from __future__ import annotations

import json

from kp_langchain.cli.options import new_app

app = new_app()


@app.command()
def schema() -> None:
    """Print the JSON Schema of a ReasoningTrace."""
    from kp_langchain.schema import ReasoningTrace

    print(json.dumps(ReasoningTrace.model_json_schema(), indent=2))  # noqa: T201
