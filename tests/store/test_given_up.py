"""What the store does today and will not do once its inside is rebuilt; see the design.

Each part goes with the issue that deletes its mechanism.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from kp_langchain import TraceStore, UnknownRunError, Verdict
from kp_langchain.run_keys import RunKeys
from kp_langchain.store.paused_runs import FirstHalf
from tests import programs
from tests.agents import ASK, handler, searching
from tests.store.conftest import LONG_S, START, _scored, execute, fork, sql
from tests.store.test_files import committed, record

# ------------------------------------------------------------------ migrations


def make_older(url, version, run=None):
    """Leave a database as the migrations up to `version` made it, perhaps with one run in it."""
    import json

    from alembic import command
    from alembic.config import Config

    from kp_langchain.store import schema_version, tables
    from kp_langchain.store.rows import JsonText, row_of

    config = Config()
    scripts = Path(schema_version.__file__).parent / "migrations"
    config.set_main_option("script_location", str(scripts))
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    with sql(url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    if run is None:
        return
    with sql(url) as connection:
        known = {column["name"] for column in sa.inspect(connection).get_columns("runs")}
        row = {
            name: json.loads(value) if isinstance(value, JsonText) else value
            for name, value in row_of(run).items()
            if name in known
        }
        columns = [sa.column(name, tables.runs.c[name].type) for name in row]
        connection.execute(sa.insert(sa.table("runs", *columns)).values(row))


@pytest.mark.parametrize("version", ["0001", "0006"])
def test_a_database_of_an_earlier_version_is_brought_up_to_date(url, version):
    one = _scored(3, content="mail [REDACTED:email]", tool_input={"a": "[REDACTED:card]"})
    make_older(url, version, one)
    with TraceStore(url) as store:
        assert store.get(one.trace.id).trace == one.trace
        (migrated,) = store.summaries()
        assert store.count(search="task 3", tool="ledger") == 1
        (change,) = store.report_outcome(one.trace.id, success=False)
        assert change.decision == "below_threshold"
        store.add(replace(one, verdict=Verdict(success=True)))
        (written,) = store.summaries()
        assert replace(migrated, dropped={}, label=None) == replace(written, label=None)


def test_the_migrations_make_the_tables_of_a_new_database(url):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from kp_langchain.store import tables

    make_older(url, "head")
    with sql(url) as connection:
        options = {"compare_type": True, "version_table": tables.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_revision() == tables.SCHEMA_VERSION


def test_an_upgrade_survives_what_another_program_damaged_and_says_nothing(tmp_path):
    path = tmp_path / "old.db"
    make_older(f"sqlite:///{path}", "0006", _scored(3))
    for column, value in (
        ("breakdown", '{"novelty": {"value": NaN, "weight": 1}}'), ("objective", b"task 3\xff"),
        ("breakdown", '{"novelty": [], "rules": {"name": 1}}'), ("body", "[" * 100_000),
        ("body", b'{"steps": [{"content": "\xff"}]}'), ("body", "not JSON"),
        ("body", '{"steps": [{"tool": {"name": "\\ud800"}}]}'),
    ):  # fmt: skip
        shutil.copy(path, tmp_path / "damaged.db")
        with closing(sqlite3.connect(tmp_path / "damaged.db")) as connection, connection:
            connection.execute(f"UPDATE runs SET {column} = ?", (value,))  # noqa: S608
        with TraceStore(tmp_path / "damaged.db") as store:
            assert store.count(search="task 3") == len(list(store.summaries())) == 1
        (tmp_path / "damaged.db").unlink()
    code = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG);"
        "from kp_langchain import TraceStore; print(TraceStore(sys.argv[1]).count());"
        "print('alembic' in sys.modules)"
    )
    done = programs.run_cold("-W", "ignore", "-c", code, str(path))
    assert (done.stdout.split(), done.stderr) == (["1", "True"], "")


def test_a_run_that_an_earlier_version_wrote_meanwhile_is_completed(store):
    """A process of an earlier version may have the database open while a newer one upgrades it."""
    runs = [_scored(number) for number in range(3)]
    store.add_many(runs)
    expected = list(store.summaries())
    execute(store, "DELETE FROM run_summaries")
    assert store.count() == 0
    run = store.get(runs[0].trace.id)
    assert (run.trace, run.tools) == (runs[0].trace, None)
    assert store.complete_summaries() == 3
    assert list(store.summaries()) == [replace(one, dropped={}) for one in expected]
    assert store.complete_summaries() == 0
    execute(store, "DELETE FROM run_summaries")
    assert len(store.delete(domain="finance")) == 3


# ------------------------------------------------------------------ drafts and pauses


def draft(run_id, **keys):
    """As much of a draft as a deletion reads."""
    wire = _scored(content="a draft").trace.model_dump(mode="json")
    return {"run_id": run_id, "trace": wire, "keys": RunKeys(**keys).to_dict()}


def half(place, run_id, **keys):
    body = {"run_id": run_id, "started_at": START.isoformat(), "domain": "finance"}
    keys = RunKeys(**keys).to_dict()
    return FirstHalf(place, "half", None, datetime.now(UTC), {**body, "keys": keys})


def test_what_is_no_run_yet_is_deleted_by_its_keys_time_and_domain(store):
    one = _scored()
    store.add(one)
    store.unscored.add([("kp:trace:1", "run 1", draft("run 1", session="s", tags=("a", "b")))])
    store.unscored.add([("kp:trace:2", str(one.run_id), draft(str(one.run_id)))])
    store.unscored.add([("kp:trace:3", "run 3", {"damaged": True})])
    halves = [half("place 4", "run 4", session="s"), half("place 5", "run 5", session="t")]
    store.paused.put(halves, days=1, most=10)
    for conditions, number in (
        ({"session": "s"}, 2), ({"session": "s", "tag": "b"}, 1), ({"domain": "code"}, 0),
        ({"session": "s", "min_score": 0.5}, 0), ({"domain": "finance"}, 5), ({"until": START}, 0),
        ({"until": START + timedelta(minutes=1)}, 5), ({"since": START + timedelta(minutes=1)}, 0),
    ):  # fmt: skip
        assert len(store.plan_deletion(**conditions)) == number, conditions
    deleted = store.delete(session="s")
    assert (list(deleted.unscored), list(deleted.paused)) == (["kp:trace:1"], ["place 4"])
    assert len(store.delete("run 5")) == 1
    with pytest.raises(UnknownRunError):
        store.delete("run 5")
    # A run id means what each handler recorded, scored or not.
    assert len(store.plan_deletion(one.trace.id)) == 1
    assert len(store.delete(str(one.run_id))) == 2
    assert (store.unscored.count(), store.paused.count(), store.count()) == (1, 0, 0)


def test_a_run_that_is_deleted_before_it_has_a_score_is_not_written(url):
    begun, go_on = threading.Event(), threading.Event()

    def outcome(run):
        begun.set()
        assert go_on.wait(LONG_S)
        return True

    with TraceStore(url) as store, TraceStore(url) as elsewhere:
        watching = handler("finance", store=store, outcome=outcome)
        searching().invoke(ASK, {"callbacks": [watching], "metadata": {"session_id": "s-1"}})
        assert begun.wait(LONG_S)
        watching._writer.wait()
        assert len(elsewhere.delete(session="s-1")) == 1
        go_on.set()
        assert watching.flush(LONG_S)
        assert (store.count(), store.unscored.count()) == (0, 0)
        watching.close()


# ------------------------------------------------------------------ forks and links


def test_a_fork_in_the_middle_of_anothers_write_leaves_the_child_free(store):
    store.add(_scored())
    holding, release = threading.Event(), threading.Event()

    def hold():
        with store.database._lock:
            holding.set()
            release.wait(LONG_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(LONG_S)
    assert fork(lambda: store.add(_scored()) or store.count() == 2) == 0
    release.set()
    holder.join(LONG_S)
    assert store.count() == 2


@pytest.fixture
def path(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "traces.db"


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be moved there")
def test_a_file_that_is_moved_behind_a_link_is_the_same(path, caplog):
    caplog.set_level(logging.WARNING, "kp_langchain")
    elsewhere = path.parents[1] / "moved.db"
    with TraceStore(path) as store, closing(handler(store=store)) as watching:
        record(watching, 2)
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        record(watching, 3)
        assert committed(elsewhere) == store.count() == 5
        assert "was moved and replaced by a link" in caplog.text
        # SQLite would take the log for one of a file that is put there.
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        number = len(caplog.records)
        path.with_name("link").symlink_to(elsewhere)  # the link is made anew
        path.with_name("link").replace(path)
        record(watching, 1)
        assert (committed(elsewhere), len(caplog.records)) == (6, number)


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be deleted there")
@pytest.mark.parametrize("lost", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_log_that_is_deleted_is_made_anew(path, caplog, lost):
    caplog.set_level(logging.WARNING, "kp_langchain")
    with TraceStore(path) as store, closing(handler(store=store)) as watching:
        record(watching, 2)
        for suffix in lost:
            Path(f"{path}{suffix}").unlink()
        record(watching, 3)
        assert committed(path) == store.count() == 5
    (line,) = [one.getMessage() for one in caplog.records]
    assert f"lost its file traces.db{lost[0]}" in line


def test_a_write_that_a_reader_keeps_in_a_log_is_told_to_be_lost(path, caplog, monkeypatch):
    monkeypatch.setattr("kp_langchain.store.sqlite._BUSY_TIMEOUT_S", 0.1)
    with TraceStore(path) as store, closing(handler(store=store)) as watching:
        record(watching, 2)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM runs").fetchone()
            record(watching, 2)
            path.rename(path.parents[1] / "moved.db")
            record(watching, 3)
            assert store.count() == 3
    assert "are lost, because another process keeps reading" in caplog.text
