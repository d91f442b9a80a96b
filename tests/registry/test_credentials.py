"""The key file: for its owner alone, one key for each registry, never half written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic import SecretStr

from kp_langchain.errors import ConfigError
from kp_langchain.registry import credentials
from kp_langchain.registry.credentials import key_file, save_key, stored_key

HERE = "https://registry.example"
ELSEWHERE = "https://other.example/api"
posix = pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX files")


def key(number: int = 0) -> SecretStr:
    return SecretStr(f"kp_hunter2_{number}")


def api_key_of(url: str) -> SecretStr | None:
    entry = stored_key(url)
    return entry and entry.api_key


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def put(content: bytes | str, permissions: int = 0o600) -> Path:
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(permissions)
    return path


def test_there_is_none_at_first() -> None:
    assert api_key_of(HERE) is None
    assert not key_file().exists()


def test_each_registry_gets_its_own() -> None:
    assert save_key(HERE, "kp:agent:me", key(1)) == key_file()
    save_key(ELSEWHERE, "kp:agent:me", key(2))
    assert api_key_of(HERE) == key(1)
    assert api_key_of(ELSEWHERE) == key(2)
    assert api_key_of("https://other.example") is None
    save_key(HERE, "kp:agent:me", key(3))
    assert api_key_of(HERE) == key(3)
    assert api_key_of(ELSEWHERE) == key(2)


def test_a_registry_is_known_in_any_spelling() -> None:
    save_key("HTTPS://Registry.example:443/", "kp:agent:me", key())
    assert api_key_of(HERE) == key()
    with pytest.raises(ConfigError):
        api_key_of("http://registry.example")


@posix
def test_only_the_owner_may_read_it() -> None:
    before = os.umask(0)
    try:
        path = save_key(HERE, "kp:agent:me", key())
    finally:
        os.umask(before)
    files = list(path.parent.iterdir())
    assert {mode(file) for file in files} == {0o600}
    assert mode(path.parent) == 0o700
    assert [file for file in files if b"hunter2" in file.read_bytes()] == [path]


@posix
@pytest.mark.parametrize("permissions", [0o640, 0o604, 0o644, 0o620, 0o777])
def test_one_that_others_may_read_is_refused(permissions: int) -> None:
    entry = {"agent_id": "kp:agent:me", "api_key": "kp_hunter2"}
    path = put(json.dumps({HERE: entry}), permissions)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        api_key_of(HERE)
    with pytest.raises(ConfigError, match="chmod 600"):
        save_key(ELSEWHERE, "kp:agent:me", key())
    path.chmod(0o600)
    assert api_key_of(HERE) == SecretStr("kp_hunter2")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "hunter2",
        '{"hunter2',
        '"hunter2"',
        "[]",
        "null",
        '{"https://registry.example": "hunter2"}',
        '{"https://registry.example": {"api_key": "hunter2"}}',
        '{"https://registry.example": {"api_key": ["hunter2"], "agent_id": "a"}}',
        b'\xff\xfe{"hunter2": 1}',
        b"[" * 100_000,
        b" " * 2**20 + b"{}",
    ],
)
def test_a_damaged_one_is_kept_and_not_shown(content: bytes | str) -> None:
    path = put(content)
    before = path.read_bytes()
    for attempt in (lambda: api_key_of(HERE), lambda: save_key(HERE, "kp:agent:me", key())):
        with pytest.raises(ConfigError, match="damaged") as caught:
            attempt()
        assert str(path) in str(caught.value)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert path.read_bytes() == before


@posix
def test_what_is_no_plain_file_is_refused(folder: Path) -> None:
    path = key_file()
    path.parent.mkdir(parents=True)
    elsewhere = folder / "elsewhere.json"
    elsewhere.write_text("{}")
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="link"):
        save_key(HERE, "kp:agent:me", key())
    assert elsewhere.read_text() == "{}"
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="damaged"):
        api_key_of(HERE)
    path.unlink()
    path.mkdir(0o700)
    with pytest.raises(ConfigError, match=str(path)):
        api_key_of(HERE)


def test_where_nothing_can_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "file"))
    with pytest.raises(ConfigError, match="cannot be") as caught:
        save_key(HERE, "kp:agent:me", key())
    assert "hunter2" not in str(caught.value)


SAVES = """
import sys
from pydantic import SecretStr
from kp_langchain.registry import credentials
from kp_langchain.registry.credentials import save_key
credentials._LOCK_TIMEOUT_S = 600.0  # SQLite does not let them queue, and disks may be slow
for n in range(20):
    save_key(f"https://{sys.argv[1]}-{n}.example", "kp:agent:me", SecretStr(f"{sys.argv[1]}-{n}"))
"""


def test_many_may_save_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_LOCK_TIMEOUT_S", 600.0)
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen([sys.executable, "-c", SAVES, name], cwd=root) for name in ("a", "b")
    ]

    def save(name: str) -> None:
        for n in range(20):
            save_key(f"https://{name}-{n}.example", "kp:agent:me", SecretStr(f"{name}-{n}"))

    threads = [threading.Thread(target=save, args=(name,)) for name in ("c", "d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(600) for process in processes] == [0, 0]
    for name in ("a", "b", "c", "d"):
        for n in range(20):
            assert api_key_of(f"https://{name}-{n}.example") == SecretStr(f"{name}-{n}")
