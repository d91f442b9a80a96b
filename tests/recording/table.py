"""Print what is recorded of each situation: `python -m tests.recording.table`."""

from __future__ import annotations

import sys

from tests.agents import shape
from tests.recording.situations import play
from tests.recording.test_situations import SITUATIONS


def main() -> None:
    width = max(len(one.name) for one in SITUATIONS)
    for one in SITUATIONS:
        if one.needs and one.needs not in sys.modules:
            continue
        result = play(one)
        traces = [" · ".join(shape(scored.trace)) for scored in result.scored]
        fates = [name for name in ("cancelled", "abandoned", "paused", "open", "empty")
                 if result.stats[name]]  # fmt: skip
        print(f"{one.name:{width}}  {' | '.join(traces) or '(' + ', '.join(fates) + ')'}")


if __name__ == "__main__":
    main()
