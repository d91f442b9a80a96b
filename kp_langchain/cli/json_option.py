"""The option `--json`: print data in place of tables."""

from __future__ import annotations

from typing import Annotated

import typer

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
