"""Nothing that the outside sees has changed: see `python -m tests.golden`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.golden import __main__ as golden


@pytest.mark.parametrize("source", golden.sources(), ids=lambda source: source.name)
def test_nothing_differs(source: golden.Source) -> None:
    # A part of the recorded runs is enough for each change; all of them are slow.
    every = ("--every", "16") if source.name == "recorded_runs" else ()
    _compare(source, *every)


@pytest.mark.slow
def test_nothing_differs_in_any_recorded_run() -> None:
    _compare(next(one for one in golden.sources() if one.name == "recorded_runs"))


def _compare(source: golden.Source, *words: str) -> None:
    if source.missing:
        pytest.skip(f"{source.missing} is not on this machine")
    done = programs.run("-m", "tests.golden", "--only", source.name, *words, cwd=golden.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


class TestCommand:
    """What `python -m tests.golden` does with a source of three cases."""

    @pytest.fixture(autouse=True)
    def in_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(golden, "DATA", tmp_path / "data")

    def source(self, sample: int = 100, **cases: object) -> golden.Source:
        return golden.Source("letters", cases.items, sample=sample)

    def test_accepts_what_it_shows(self, capsys: pytest.CaptureFixture[str]) -> None:
        first = self.source(a=1.00000001, b="two", c=[3])
        assert golden.compare(first, accept=True)
        assert not golden.compare(self.source(a=1.0, b="two", c=[3]))
        capsys.readouterr()
        second = self.source(a=1, b="zwei", d=4)
        assert golden.compare(second)
        shown = capsys.readouterr().out
        assert '-"two"\n+"zwei"' in shown
        assert "--- c: gone" in shown
        assert "--- d: new" in shown
        assert golden.compare(second, accept=True)
        assert not golden.compare(second)

    def test_a_part_misses_nothing_that_it_did_not_make(self) -> None:
        golden.compare(self.source(a=1, b=2), accept=True)
        assert not golden.compare(self.source(a=1), least=0.4)
        assert golden.compare(self.source(a=1))
        assert golden.compare(self.source(a=3), least=0.4)
        assert golden.compare(self.source(), least=0.5)  # hardly anything was made

    def test_two_cases_of_one_name_are_refused(self) -> None:
        twice = golden.Source("letters", lambda: [("a", 1), ("a", 2)])
        with pytest.raises(ValueError, match="two cases 'a'"):
            golden.made_now(twice)

    def test_keeps_hashes_of_all_and_the_text_of_some(self) -> None:
        source = self.source(10, **{f"case {number}": "a text" for number in range(50)})
        golden.compare(source, accept=True)
        held = golden.Golden.read(source.file)
        assert (len(held.hashes), len(held.sample)) == (50, 10)
        hashes_only = golden.Source("hashes", lambda: [("a", "a text that is not ours")], sample=0)
        golden.compare(hashes_only, accept=True)
        assert "ours" not in hashes_only.file.read_text()


# What they may load of the package besides. These are the places to look at where the inside moves:
# a command in this process forgets what a process keeps, and the tables are the package's data.
INSIDE = {
    "tests/commands.py": {"kp_langchain.cli.app", "kp_langchain.embedding.local_models"},
    "tests/agents.py": {"kp_langchain.demo.scripted"},
    "tests/redaction/cases.py": {"kp_langchain.redaction.spans"},
}  # fmt: skip
PUBLIC = {"kp_langchain", "kp_langchain.redaction"}
ENTRIES = (
    "golden/cases.py", "golden/stored.py",
    "faults/window.py", "faults/endings.py", "faults/writer.py",
)  # fmt: skip


def test_the_net_holds_on_to_public_names() -> None:
    seen, left = set[Path](), [golden.ROOT / "tests" / name for name in ENTRIES]
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            modules = list(_modules(file))
            of_package = {one for one in modules if one.startswith("kp_langchain")}
            name = file.relative_to(golden.ROOT).as_posix()
            assert of_package <= PUBLIC | INSIDE.get(name, set()), name
            left += [_file(one) for one in modules if one.startswith("tests.")]
    assert len(seen) > len(ENTRIES) + len(INSIDE)


def _modules(file: Path) -> Iterator[str]:
    """Return the modules that a file imports from the package and the tests."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if _file(name).exists())


def _file(module: str) -> Path:
    place = golden.ROOT.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
