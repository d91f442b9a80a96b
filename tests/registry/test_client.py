"""The client's requests: where they go, what they carry, what they tell nobody; the key file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import ssl
import stat
import subprocess
import threading
from urllib.parse import unquote

import httpx
import pytest
from pydantic import SecretStr

from kp_langchain import ConfigError, Registry, RegistryError
from kp_langchain.registry.credentials import key_file, save_key, stored_key
from tests import programs
from tests.agents import ASK, handler, searching
from tests.loopback_registry import LoopbackRegistry
from tests.loopback_tools import unheard_port
from tests.registry.test_answers import STORED, body_of, give, http
from tests.registry.test_sender import KEY

HERE, ELSEWHERE = "https://registry.example", "https://other.example/api"
AGENT = "kp:agent:desk"
posix = pytest.mark.skipif(os.name != "posix", reason="needs the modes of POSIX files")


def answering(raw: bytes) -> LoopbackRegistry:
    return LoopbackRegistry(misbehave=lambda *_: raw)


# ------------------------------------------------------------------ requests


def test_a_contribution_arrives_is_found_and_withdrawn():
    with LoopbackRegistry(limit=30) as there:
        here = Registry(there.url + "/", api_key=KEY)
        missing = here.find("kp:trace:0")
        assert (missing.kind, missing.status) == ("refused", 404)
        got = give(here)
        assert (got.kind, got.status, got.registry_id) == ("done", 201, "kp:trace:0")
        assert (got.allowance.limit, got.allowance.remaining) == (30, 29)
        assert there.units == {"kp:trace:0": json.loads(body_of())}
        method, path, headers, _ = there.requests[-1]
        assert (method, path) == ("POST", "/v1/knowledge")
        expected = {
            "authorization": f"Bearer {KEY}", "kp-schema-version": "v1",
            "idempotency-key": hashlib.sha256(body_of()).hexdigest(),
            "content-type": "application/json", "accept": "application/json",
            "accept-encoding": "identity",
        }  # fmt: skip
        assert expected.items() <= headers.items()
        assert headers["user-agent"].startswith("kp-langchain/")
        found = here.find("kp:trace:0")
        assert (found.kind, found.registry_id) == ("done", "kp:trace:0")
        assert here.withdraw("kp:trace:0").kind == "done"
        assert not there.units
        again = here.withdraw("kp:trace:0")
        assert (again.kind, again.status) == ("done", 404)


def test_an_id_of_any_characters_is_one_segment_of_the_path():
    with LoopbackRegistry() as there:
        here = Registry(there.url, api_key=KEY)
        for odd in ("", ".", "..", "\ud800", "kp:trace:\udfff"):
            assert {here.find(odd).kind, here.withdraw(odd).kind} == {"refused"}
        assert not there.requests
        assert here.find("x" * 5000).kind == "refused"
        odd = "kp:trace:../a/b?c#d%2e é\n\x00\u202e HTTP/1.1\r\nX: y"
        for ask in (here.find, here.withdraw):
            ask(odd)
            path = there.requests[-1][1]
            assert unquote(path) == f"/v1/knowledge/{odd}"
            assert path.startswith("/v1/knowledge/kp:trace:..%2Fa%2Fb%3Fc%23d%252e%20%C3%A9%0A%00")
            assert path.isascii()


def test_nobody_there():
    with unheard_port() as port:
        got = give(Registry(f"http://127.0.0.1:{port}", api_key=KEY))
    assert (got.kind, got.status, "refused" in got.reason) == ("later", None, True)
    unknown = give(Registry(f"https://{'x' * 64}.example"))
    assert (unknown.kind, unknown.status) == ("later", None)


@pytest.mark.parametrize("status", [302, 307])
def test_redirects_are_not_followed_so_the_key_goes_to_no_other_server(status):
    with LoopbackRegistry() as other:
        for location in (f"{other.url}/v1/knowledge", "/v1/knowledge", "http://user:pw@["):
            with answering(http(status, b"", Location=location)) as there:
                got = give(Registry(there.url, api_key=KEY))
                assert (got.kind, "pw" in got.reason) == ("stopped", False)
                assert (len(there.requests), other.requests) == (1, [])


def test_an_echo_of_key_and_body_is_neither_told_nor_logged(caplog):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "httpx")  # tracing tools set one of its own
    head = f"HTTP/1.1 400 {KEY}\r\nX-Echo: {KEY}\r\nContent-Length: 0\r\n\r\n".encode()
    with LoopbackRegistry(misbehave=lambda number, *_: ("echo", head, None)[number]) as there:
        here = Registry(there.url, api_key=KEY)
        got = [give(here), give(here)]
        told = f"{got!r} {here!r} {here!s} {vars(here)!r} {caplog.text}"
        assert {one.kind for one in got} == {"refused"}
        assert not any(secret in told for secret in (KEY, KEY[3:20]))
        # Requests of the agent's own are logged as ever.
        with httpx.Client(trust_env=False) as theirs:
            theirs.get(there.url)
        own = {one.name for one in caplog.records if one.thread == threading.get_ident()}
        assert {"httpx", "httpcore.http11"} <= own


def test_keys_that_cannot_be_one_are_refused_unseen():
    for key in ("", " ", f"{KEY} ", f"a {KEY}", f"{KEY}\r\nX: y", f"{KEY}é", KEY.encode(), 5):
        with pytest.raises(ConfigError) as caught:
            Registry(HERE, api_key=key)
        assert KEY not in str(caught.value)
    one = Registry("HTTPS://Registry.Example:443/", api_key=KEY)
    assert KEY not in one.key_id == hashlib.sha256(KEY.encode()).hexdigest()[:16]
    assert one.key_id == Registry(HERE, api_key=SecretStr(KEY)).key_id
    assert Registry(HERE).key_id == "anonymous"
    for timeout_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="seconds"):
            Registry(HERE, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (" https://Registry.Example/ ", HERE), ("https://[::1]:8443", "https://[::1]:8443"),
        ("https://registry.example:8443/api//", "https://registry.example:8443/api"),
        ("http://localhost:80/", "http://localhost"), ("http://[::1]/", "http://[::1]"),
        ("http://127.8.8.8:8000", "http://127.8.8.8:8000"),
        *((given, None) for given in (
            "", "registry.example", "ftp://registry.example", "https://", "https:///path",
            "https://registry.example:0", "https://registry.example:99999",
            "https://registry.example:x", "https://re gistry.example", "http://registry.example",
            "https://registry.example/\\..", "https://registry.example\n.evil.example",
            "https://registré.example", "http://127.0.0.1.example", "http://localhost.example",
            "http://0.0.0.0", "http://128.0.0.1", "http://2130706433",
            "https://hunter2@registry.example", "https://user:hunter2@registry.example",
            "https://user:hunter2@@registry.example", "https://registry.example/?key=hunter2",
            "https://registry.example/#hunter2", "https://registry.example/?", None, 7,
            b"https://registry.example",
        )),
    ],
)  # fmt: skip
def test_addresses_have_one_form_or_are_refused_without_telling_what_is_secret(given, url):
    if url is not None:
        assert Registry(given).url == Registry(url).url == url
        return
    with pytest.raises(ConfigError) as caught:
        Registry(given)
    assert "hunter2" not in str(caught.value)


# ------------------------------------------------------------------ the environment


@pytest.fixture
def proxies(monkeypatch):
    """Sets proxies in an environment that has none."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch.setenv


def test_what_stays_on_this_machine_goes_past_proxies_and_https_hides_the_key(proxies):
    with answering(http(407)) as proxy, LoopbackRegistry() as there:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            proxies(name, proxy.url)
        assert give(Registry(there.url, api_key=KEY)).kind == "done"
        assert not proxy.requests
        assert give(Registry(HERE, api_key=KEY)).kind == "later"
        asked = [(method, path) for method, path, *_ in proxy.requests]
        assert asked == [("CONNECT", "registry.example:443")]
        assert KEY not in repr(proxy.requests)


def test_what_goes_wrong_at_a_proxy_is_told_without_its_password(proxies):
    here = Registry(HERE, api_key=KEY)
    with unheard_port() as port:
        for credentials in ("", "me:hunter2@", "me:hun%2Fter2@"):
            proxies("HTTPS_PROXY", f"http://{credentials}127.0.0.1:{port}")
            reason = give(here).reason
            assert (reason.startswith("no connection: "), "hun" in reason) == (True, False)
    with answering(http(407)) as proxy:
        proxies("HTTPS_PROXY", proxy.url)
        assert "no connection: 407" in give(here).reason
    proxies("HTTPS_PROXY", "gopher://user:hunter2@proxy.example")
    got = give(here)
    assert (got.kind, "PROXY" in got.reason, "hunter2" in got.reason) == ("later", True, False)


def test_passwords_and_cookies_from_elsewhere_stay_out(folder, monkeypatch):
    netrc = folder / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with answering(http(201, STORED, Set_Cookie="track=me; Path=/")) as there:
        here = Registry(there.url)
        assert [give(here).kind for _ in range(2)] == ["done"] * 2
        sent = [headers for _, _, headers, _ in there.requests]
    assert not any("authorization" in headers or "cookie" in headers for headers in sent)


def test_certificates(tmp_path, monkeypatch):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the program openssl to make a certificate")
    own, certificate = tmp_path / "own.pem", tmp_path / "certificate.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=loopback".split()
    files = ["-keyout", str(own), "-out", str(certificate)]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *words, *names, *files], check=True, capture_output=True)
    own.write_text(own.read_text() + certificate.read_text())
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(own)
    with LoopbackRegistry(tls=secured) as there:
        got = give(Registry(there.url, api_key=KEY))
        assert (got.kind, got.status, there.requests) == ("stopped", None, [])
        assert "certificate is not trusted" in got.reason
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert give(Registry(there.url, api_key=KEY)).kind == "done"
        elsewhere = there.url.replace("127.0.0.1", "localhost")
        assert give(Registry(elsewhere, api_key=KEY)).kind == "stopped"
        there.misbehave = lambda *_: "slow"
        reason = give(Registry(there.url, api_key=KEY, timeout_s=0.5)).reason
        assert reason.startswith("no answer in time")
    with LoopbackRegistry() as there:  # TLS is not spoken there
        url = there.url.replace("http:", "https:")
        assert give(Registry(url, api_key=KEY, timeout_s=0.1)).kind == "later"
        assert not there.units


# ------------------------------------------------------------------ threads and processes


def test_a_silent_server_does_not_hold_up_exit_and_http_waits_for_the_first_request():
    # No thread can be started at exit any more (from Python 3.12).
    code = """
import atexit, sys
from kp_langchain import Registry
here = Registry(sys.argv[1], timeout_s=0.2)
atexit.register(lambda: print(here.find("x").reason))
"""
    with LoopbackRegistry(misbehave=lambda *_: "slow") as there:
        done = programs.run("-c", code, there.url, PYTHONPATH=str(programs.ROOT))
        assert done.stdout.startswith("no answer in time")
    code = """
import sys
from kp_langchain import KPCallbackHandler, Registry
repr(KPCallbackHandler(store=None, registry=Registry("https://registry.example")))
print(sorted({"httpx", "httpcore", "requests"} & set(sys.modules)))
"""
    done = programs.run_cold("-c", code, KP_EMBEDDING_MODEL="/none")
    assert "httpcore" not in done.stdout, done.stderr


# ------------------------------------------------------------------ registering, and the key file


def test_registering_gives_a_key_that_works():
    with LoopbackRegistry(keys=set()) as there:
        assert give(Registry(there.url, api_key=KEY)).kind == "stopped"
        # An old key is of no use there, and might be refused.
        key = Registry(there.url, api_key=KEY).register("kp:agent:me")
        assert "authorization" not in there.requests[-1][2]
        assert key.get_secret_value() not in repr(key)
        assert give(Registry(there.url, api_key=key)).kind == "done"
    for raw, told in (
        (http(201), "no key"), (http(201, b'{"data": {"api_key": ""}}'), "no key"),
        (http(201, b'{"data": {"api_key": "kp_hunter2\\r\\nX: y"}}'), "no key"),
        (http(201, b'{"data": {"api_key": "%s"}}' % (b"k" * 501)), "no key"),
        (http(201, b'{"data": ["kp_hunter2"]}'), "no key"),
        (b"HTTP/1.1 201 -\r\nContent-Length: 99\r\n\r\n{", "cut off"),
        (http(409, b'{"error": "this agent has a key"}'), "this agent has a key"),
        (http(404), "URL of a registry"), (http(429), "429"), (b"?", "the connection broke"),
    ):  # fmt: skip
        with answering(raw) as there, pytest.raises(RegistryError, match=told) as caught:
            Registry(there.url).register("kp:agent:me")
        assert "hunter2" not in str(caught.value)


def key(number: int = 0) -> SecretStr:
    return SecretStr(f"kp_hunter2_{number}")


def key_of(url: str) -> SecretStr | None:
    entry = stored_key(url)
    return entry and entry.api_key


def test_each_registry_gets_a_key_of_its_own_in_any_spelling():
    assert key_of(HERE) is None
    assert not key_file().exists()
    assert save_key(HERE, AGENT, key(1)) == key_file()
    save_key(ELSEWHERE, AGENT, key(2))
    assert (key_of(HERE), key_of(ELSEWHERE)) == (key(1), key(2))
    assert key_of("https://other.example") is None
    save_key("HTTPS://Registry.example:443/", AGENT, key(3))
    assert (key_of(HERE), key_of(ELSEWHERE)) == (key(3), key(2))
    with pytest.raises(ConfigError):
        key_of("http://registry.example")


@posix
def test_the_key_file_is_for_its_owner_alone(folder, monkeypatch):
    before = os.umask(0)
    try:
        path = save_key(HERE, AGENT, key())
    finally:
        os.umask(before)
    files = list(path.parent.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file for file in files if b"hunter2" in file.read_bytes()] == [path]
    for permissions in (0o640, 0o604, 0o620, 0o777):
        path.chmod(permissions)
        for use in (lambda: key_of(HERE), lambda: save_key(ELSEWHERE, AGENT, key())):
            with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
                use()
    path.chmod(0o600)
    assert key_of(HERE) == key()
    for make in (lambda: path.symlink_to(folder / "elsewhere"), lambda: os.mkfifo(path, 0o600),
                 lambda: path.mkdir(0o700)):  # fmt: skip
        path.unlink()
        make()
        for use in (lambda: key_of(HERE), lambda: save_key(HERE, AGENT, key())):
            with pytest.raises(ConfigError, match=str(path)):
                use()
    (folder / "file").write_text("in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "file"))
    with pytest.raises(ConfigError, match="cannot be") as caught:
        save_key(HERE, AGENT, key())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "", "hunter2", '{"hunter2', '"hunter2"', "[]", "null",
        '{"https://registry.example": "hunter2"}',
        '{"https://registry.example": {"api_key": "hunter2"}}',
        '{"https://registry.example": {"api_key": ["hunter2"], "agent_id": "a"}}',
        b'\xff\xfe{"hunter2": 1}', b"[" * 100_000, b" " * 2**20 + b"{}",
    ],
    ids=range(12),
)  # fmt: skip
def test_a_damaged_key_file_is_kept_and_not_shown(content):
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(content)
    path.chmod(0o600)
    for use in (lambda: key_of(HERE), lambda: save_key(HERE, AGENT, key())):
        with pytest.raises(ConfigError, match="damaged") as caught:
            use()
        assert (str(path) in str(caught.value), "hunter2" in str(caught.value)) == (True, False)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert path.read_bytes() == content


# ------------------------------------------------------------------ whose runs they are


def agent_of(**options):
    watching = handler(store="runs.db", **options)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(300)
    watching.close(0)
    return scored.trace.metadata.agent_id


def test_the_agent_of_the_key_is_written_into_traces(monkeypatch):
    url = "http://127.0.0.1:9"
    save_key(url, AGENT, SecretStr(KEY))
    monkeypatch.setenv("KP_REGISTRY_URL", url)
    # The key that is given may be the stored one.
    for options in ({}, {"registry": Registry(url, api_key=KEY)}, {"agent_id": "desk"}):
        assert agent_of(**options) == AGENT
    assert agent_of(agent_id="other") == "kp:agent:other"
    monkeypatch.setenv("KP_MAX_TEXT_CHARS", "20")  # no bound on texts cuts it
    assert agent_of(agent_id=AGENT * 5) == AGENT * 5
    save_key(url, "ada@example.org", SecretStr(KEY))
    assert agent_of() is None


@pytest.mark.parametrize(
    ("agent_id", "told"),
    [
        ("ada@example.org", "would be redacted to 'kp:agent:[REDACTED:email]'"),
        ("kp:agent:192.168.1.7", "would be redacted"), (KEY, "would be redacted"),
        ("kp:agent:", "is empty"), (" ", "is empty"), ("a\nb", "cannot be printed"),
        ("a" * 500, "509 characters"),
    ],
)  # fmt: skip
def test_an_id_that_cannot_be_written_as_it_is_is_refused(agent_id, told, monkeypatch):
    for options in ({"agent_id": agent_id}, {}):
        with pytest.raises(ConfigError, match="agent_id") as caught:
            handler(**options)
        assert told in str(caught.value)
        assert not any(secret in str(caught.value) for secret in ("ada", KEY))
        monkeypatch.setenv("KP_AGENT_ID", agent_id)
