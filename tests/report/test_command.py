"""`kp-langchain report` as a user types it."""

from __future__ import annotations

import builtins
import re
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kp_langchain.report.overview import names_of
from tests.commands import Done, cli
from tests.report.pages import Store


def report(*words: str) -> Done:
    return cli("report", *words, "--database", "runs.db")


def test_the_file_is_private_and_the_command_says_what_it_holds(store: Store) -> None:
    store.add()
    store.add(domain="code")
    done = report("--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert f"Wrote 2 of 2 runs to {Path('page.html').absolute()}" in done.stdout
    assert "redacted texts" in done.stdout
    assert stat.S_IMODE(Path("page.html").stat().st_mode) == 0o600
    assert "Wrote 1 of 1 run " in report("--html", "page.html", "--domain", "code").stdout
    assert "Wrote 1 of 2 runs" in report("--html", "page.html", "--limit", "1").stdout
    assert "Wrote 2 of 2 runs" in report("--html", "page.html", "--since", "1h").stdout
    assert "Wrote 0 of 0 runs" in report("--html", "page.html", "--since", "2999-01-01").stdout
    assert [path.name for path in Path().glob("*page*")] == ["page.html"]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("notes.html", "notes.html exists and is no report"),
        ("folder", "folder exists and is no report"),
        ("link", "link exists and is no report"),
        ("missing/page.html", "there is no folder missing"),
    ],
)
def test_only_an_earlier_report_is_replaced(store: Store, file: str, reason: str) -> None:
    store.add()
    Path("notes.html").write_text("<!doctype html>\nmine")
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")
    done = report("--html", file)
    assert done.returncode == 1
    assert reason in done.stderr
    assert Path("notes.html").read_text() == "<!doctype html>\nmine"
    Path("empty.html").touch()
    assert report("--html", "empty.html").returncode == 0
    assert report("--html", "empty.html").returncode == 0


def test_open_shows_the_file_in_a_browser(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add()
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    done = report("--html", "page.html", "--open")
    assert opened == [Path("page.html").absolute().as_uri()]
    assert f"open it yourself: {opened[0]}" in done.stdout


BROWSER = """#!{python}
import stat, sys
from pathlib import Path

file = Path(sys.argv[1].removeprefix("file://"))
modes = [oct(stat.S_IMODE(path.stat().st_mode)) for path in (file.parent, file)]
Path("opened.txt").write_text("\\n".join([*sys.argv[1:], *modes, file.read_text()]))
"""


def test_where_no_browser_opens_the_served_address_is_shown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add()
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    monkeypatch.setattr("kp_langchain.report.server.ReportServer.serve_forever", lambda _: None)
    assert "open it yourself: http://127.0.0.1:" in report("--serve", "--open").stdout


def test_the_token_of_a_served_page_is_no_argument_of_the_browser(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add()
    browser = Path("browser").absolute()
    browser.write_text(BROWSER.format(python=sys.executable))
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setattr("webbrowser._browsers", {})

    def end(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kp_langchain.report.server.ReportServer.serve_forever", end)
    done = report("--serve", "--open")
    assert done.returncode == 0, done.stderr
    (address,) = re.findall(r"http://127\.0\.0\.1:\d+/([\w-]+)/", done.stdout)
    argument, folder_mode, file_mode, *content = Path("opened.txt").read_text().splitlines()
    assert address not in argument
    assert (folder_mode, file_mode) == ("0o700", "0o600")
    assert f"/{address}/" in content[0]
    assert not Path(argument.removeprefix("file://")).parent.exists()


@pytest.mark.parametrize(
    "words", [[], ["--html", "x.html", "--serve"], ["--html", "x.html", "--port", "8000"]]
)
def test_options_that_do_not_belong_together_are_refused(store: Store, words: list[str]) -> None:
    assert report(*words).returncode == 2


def test_a_store_that_cannot_be_read_is_an_error_as_elsewhere(store: Store) -> None:
    done = cli("report", "--html", "page.html", "--database", "typo.db")
    assert done.returncode == 1
    assert "there is no database at" in done.stderr
    Path("junk.db").write_text("no database " * 1000)
    done = cli("report", "--html", "page.html", "--database", "junk.db")
    assert done.returncode == 1
    assert "not a SQLite database" in done.stderr
    assert not Path("page.html").exists()


def test_without_jinja_the_command_says_what_to_install(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add()
    import_it = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "jinja2":
            raise ImportError(name)
        return import_it(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    done = report("--html", "page.html")
    assert done.returncode == 1
    assert "pip install 'kp-langchain[report]'" in done.stderr
    assert not Path("page.html").exists()


@pytest.mark.parametrize("name", ["-", "."])
def test_a_page_needs_a_file(store: Store, name: str) -> None:
    done = cli("report", "--html", name, "--database", str(store.path))
    assert done.returncode in (1, 2)
    assert "<html" not in done.stdout


@pytest.mark.parametrize(
    ("column", "value"), [("twin_of", b"x"), ("body", b'{"steps": [{"content": "\xff"}]}')]
)
def test_damage_of_one_run_is_counted(store: Store, column: str, value: bytes) -> None:
    damaged, _ = store.add("damaged"), store.add("whole")
    with closing(sqlite3.connect(store.path)) as connection, connection:
        update = f"UPDATE runs SET {column} = ? WHERE trace_id = ?"  # noqa: S608
        connection.execute(update, (value, damaged))
    done = cli("report", "--html", "page.html", "--database", str(store.path))
    assert done.returncode == 0, done.stderr
    assert "1 rows of the store" in done.stdout or "1 stored traces" in done.stdout
    assert "of 2 runs" in done.stdout


def test_domains_that_look_alike_stay_apart() -> None:
    names = names_of(["a b", "a  b", "a b (2)", "x" * 200 + "1", "x" * 200 + "2", "\u00a0", "a b"])
    assert len(names) == len(set(names.values())) == 6
    assert names["a b"] == "a b"
    assert names["\u00a0"] == "(blank)"
