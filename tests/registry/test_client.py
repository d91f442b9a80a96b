"""The client against a real server on this machine, behaving or not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from pydantic import SecretStr

from kp_langchain.errors import ConfigError, RegistryError
from kp_langchain.registry import Registry
from kp_langchain.registry.responses import Answer
from kp_langchain.registry.urls import base_url, proxy_of
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, TraceStep
from tests.loopback_registry import AFTER_STORING, LoopbackRegistry
from tests.loopback_tools import unheard_port

KEY = "kp_0123456789abcdef0123456789abcdef"
IMPATIENT_S = 0.1


def unit(number: int = 0, *, steps: int = 1, content: str = "it grew") -> tuple[str, bytes]:
    trace = ReasoningTrace(
        metadata=Metadata(task_domain="finance", success=True, visibility="network"),
        task=Task(objective=f"compare the figures of quarter {number} with those of the last"),
        steps=[TraceStep(step_id=n, type="thought", content=content) for n in range(steps)],
        outcome=Outcome(result_summary="it grew", confidence=0.8),
    )
    return trace.id, trace.model_dump_json().encode()


def give(registry: Registry, body: bytes) -> Answer:
    return registry.contribute(body, hashlib.sha256(body).hexdigest())


def answering(raw: bytes) -> LoopbackRegistry:
    return LoopbackRegistry(misbehave=lambda number, method, path: raw)


def failing_once(fault: str) -> LoopbackRegistry:
    return LoopbackRegistry(misbehave=lambda number, method, path: None if number else fault)


def http(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_a_contribution_arrives() -> None:
    id_, body = unit()
    with LoopbackRegistry(limit=30) as there:
        here = Registry(there.url + "/", api_key=KEY)
        got = give(here, body)
        assert (got.kind, got.status, got.registry_id) == ("done", 201, id_)
        assert got.allowance is not None
        assert (got.allowance.limit, got.allowance.remaining) == (30, 29)
        assert there.units == {id_: json.loads(body)}
        (method, path, headers, _), *_ = there.requests
    assert (method, path) == ("POST", "/v1/knowledge")
    expected = {
        "authorization": f"Bearer {KEY}",
        "idempotency-key": hashlib.sha256(body).hexdigest(),
        "kp-schema-version": "v1",
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
    }
    assert {name: headers[name] for name in expected} == expected
    assert headers["user-agent"].startswith("kp-langchain/")


def test_what_was_given_is_found_and_withdrawn() -> None:
    id_, body = unit()
    with LoopbackRegistry() as there:
        here = Registry(there.url, api_key=KEY)
        missing = here.find(id_)
        assert (missing.kind, missing.status) == ("refused", 404)
        assert give(here, body).kind == "done"
        found = here.find(id_)
        assert (found.kind, found.registry_id) == ("done", id_)
        assert here.withdraw(id_).kind == "done"
        assert not there.units
        again = here.withdraw(id_)
        assert (again.kind, again.status) == ("done", 404)


@pytest.mark.parametrize("odd", ["", ".", "..", "\ud800", "kp:trace:\udfff"])
def test_ids_that_no_unit_has_are_not_asked_for(odd: str) -> None:
    with LoopbackRegistry() as there:
        here = Registry(there.url, api_key=KEY)
        assert {here.find(odd).kind, here.withdraw(odd).kind} == {"refused"}
        assert not there.requests


def test_ids_stay_within_their_place() -> None:
    with LoopbackRegistry() as there:
        here = Registry(there.url, api_key=KEY)
        here.withdraw("../auth/register?x=1#y%2e é")
        assert here.find("x" * 5000).kind == "refused"
        assert there.requests[0][1] == (
            "/v1/knowledge/..%2Fauth%2Fregister%3Fx%3D1%23y%252e%20%C3%A9"
        )


def test_an_id_of_any_characters_is_one_segment_of_the_path() -> None:
    odd = "kp:trace:a/b?c#d%2e\n\x00\u202e HTTP/1.1\r\nX: y"
    with LoopbackRegistry() as there:
        Registry(there.url, api_key=KEY).find(odd)
        method, path, *_ = there.requests[0]
    assert (method, unquote(path)) == ("GET", f"/v1/knowledge/{odd}")
    assert path.startswith("/v1/knowledge/kp:trace:a%2Fb%3Fc%23d%252e%0A%00")
    assert path.isascii()


@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        ("half", "later", 201),
        ("huge", "later", 201),
        ("reset_before", "later", None),
        ("reset_after", "later", None),
        ("stored_no_id", "later", 201),
        ("no_id", "later", 201),
        ("bad_json", "later", 201),
        ("garbage", "later", None),
        ("stored_500", "later", 500),
        ("500", "later", 500),
        ("503_retry_after", "later", 503),
        ("429", "later", 429),
        ("429_retry_after", "later", 429),
        ("429_date", "later", 429),
        ("400", "refused", 400),
        ("413", "refused", 413),
        ("422", "refused", 422),
        ("401", "stopped", 401),
        ("403", "stopped", 403),
        ("404", "stopped", 404),
        ("redirect_away", "stopped", 307),
        ("redirect_here", "done", 201),
    ],
)
def test_after_any_fault_a_second_attempt_gives_it_once(
    fault: str, kind: str, status: int | None
) -> None:
    id_, body = unit()
    with failing_once(fault) as there:
        here = Registry(there.url, api_key=KEY)
        got = give(here, body)
        assert (got.kind, got.status) == (kind, status)
        waits = {"503_retry_after": 1.0, "429_retry_after": 1.0, "429_date": 2.0}
        assert got.retry_after_s == waits.get(fault)
        assert got.is_throttled == fault.startswith("429")
        issue = {"path": "steps.0.type", "message": "not one of ours"}
        assert got.issues == ((issue,) if kind == "refused" else ())
        assert give(here, body).kind == "done"
        assert list(there.units) == [id_]
        assert not there.doubled
        arrived_at_once = kind == "done" or fault in AFTER_STORING
        assert there.received == [body] * (2 if arrived_at_once else 1)


STORED = b'{"data": {"id": "x"}}'


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 201 Created\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 999\r\n\r\n" + STORED,
        b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\n" + STORED,
        b"HTTP/1.1 201 Created\r\nContent-Length: many\r\n\r\n" + STORED,
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + STORED,
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n" + STORED,
        b"HTTP/1.1 201 Created\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\0\0",
        b"HTTP/1.1 201 Created\r\nX: " + b"y" * 200_000 + b"\r\n\r\n" + STORED,
        b"HTTP/1.1 201 Created\r\n\r\n" + STORED.ljust(2**20 + 1),
        b"HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n",
        b"<html>" * 1000,
    ],
)
def test_what_is_no_whole_answer_is_no_success(raw: bytes) -> None:
    with answering(raw) as there:
        assert give(Registry(there.url, api_key=KEY), unit()[1]).kind == "later"


def test_an_answer_up_to_the_bound_is_read() -> None:
    with answering(http(201, STORED.ljust(2**20))) as there:
        assert give(Registry(there.url), unit()[1]).kind == "done"


def test_the_head_of_an_answer_counts_when_its_body_breaks_off() -> None:
    raw = b"HTTP/1.1 429 -\r\nRetry-After: 7\r\nContent-Length: 99\r\n\r\n{"
    with answering(raw) as there:
        got = give(Registry(there.url), unit()[1])
    assert (got.kind, got.is_throttled, got.retry_after_s) == ("later", True, 7.0)


@pytest.mark.parametrize("fault", ["slow", "drip_headers", "drip"])
def test_a_server_that_never_ends_is_given_up(fault: str) -> None:
    with failing_once(fault) as there:
        here = Registry(there.url, api_key=KEY, timeout_s=IMPATIENT_S)
        got = give(here, unit()[1])
    assert (got.kind, got.registry_id) == ("later", None)


def test_a_server_that_does_not_read_is_given_up() -> None:
    body = unit(content="x" * 10_000, steps=2000)[1]
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        here = Registry(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=IMPATIENT_S)
        assert give(here, body).kind == "later"


def test_nobody_there() -> None:
    with unheard_port() as port:
        got = give(Registry(f"http://127.0.0.1:{port}", api_key=KEY), unit()[1])
    assert (got.kind, got.status) == ("later", None)
    assert "refused" in got.reason
    unknown = give(Registry(f"https://{'x' * 64}.example"), unit()[1])
    assert (unknown.kind, unknown.status) == ("later", None)


# Redirects


def redirecting(target: str, status: int = 307) -> LoopbackRegistry:
    return answering(http(status, b"", Location=target))


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
def test_the_key_goes_to_no_other_server(status: int) -> None:
    with LoopbackRegistry() as other, redirecting(f"{other.url}/v1/knowledge", status) as there:
        got = give(Registry(there.url, api_key=KEY), unit()[1])
        assert got.kind == "stopped"
        assert "http://127.0.0.1" in got.reason
        assert len(there.requests) == 1
        assert not other.requests


@pytest.mark.parametrize(
    "target",
    [
        "http://[",
        "https://127.0.0.1/",
        "http://user:pw@{host}/v1/knowledge",
        "http://{host}\\@127.0.0.2/",
        "http://{host}%00.example/",
        "//localhost:{port}/v1/knowledge",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "\x7f",
        "http://{host}:0/",
        "http://127.0.0.1:99999/",
    ],
)
def test_redirects_that_lead_elsewhere_are_not_followed(target: str) -> None:
    with LoopbackRegistry() as there:
        host = there.url.removeprefix("http://")
        raw = http(307, b"", Location=target.format(host=host, port=host.partition(":")[2]))
        there.misbehave = lambda number, method, path: raw
        got = give(Registry(there.url, api_key=KEY), unit()[1])
        assert got.kind in ("stopped", "later")
        assert len(there.requests) == 1
        assert "pw" not in got.reason


def test_redirects_come_to_an_end() -> None:
    with redirecting("/v1/knowledge", 308) as there:
        assert give(Registry(there.url, api_key=KEY), unit()[1]).kind == "stopped"
        assert len(there.requests) == 4


# What must not be told


def test_an_echo_of_key_and_body_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with failing_once("echo") as there:
        here = Registry(there.url, api_key=KEY)
        got = give(here, unit()[1])
    assert got.kind == "refused"
    told = f"{got!r} {here!r} {vars(here)!r} {caplog.text}"
    assert KEY not in told
    assert KEY[3:20] not in told
    assert "the figures of quarter" not in told


def test_an_echo_in_the_head_of_an_answer_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    raw = f"HTTP/1.1 400 {KEY}\r\nX-Echo: {KEY}\r\nContent-Length: 0\r\n\r\n".encode()
    with answering(raw) as there:
        got = give(Registry(there.url, api_key=KEY), unit()[1])
        assert got.status == 400
        assert KEY not in f"{got!r} {caplog.text}"
        # Requests of the agent's own are logged as ever.
        with httpx.Client(trust_env=False) as theirs:
            theirs.get(there.url)
        assert {"httpx", "httpcore.http11"} <= {record.name for record in caplog.records}


@pytest.mark.parametrize("status", [200, 201, 401, 403, 500, 307])
def test_an_echo_is_told_to_nobody_whatever_the_status(status: int) -> None:
    echo = json.dumps(
        {"error": f"Bearer {KEY}", "message": KEY, "data": {"id": KEY}, "issues": [{"path": KEY}]}
    ).encode()
    with answering(http(status, echo, Location=f"https://{KEY}.example/{KEY}")) as there:
        here = Registry(there.url, api_key=KEY)
        got = [give(here, unit()[1]), here.find("x"), here.withdraw("x")]
        assert KEY not in repr(got)
        assert all(answer.registry_id is None for answer in got)


def test_a_key_is_shown_nowhere() -> None:
    here = Registry("https://registry.example", api_key=SecretStr(KEY))
    assert KEY not in f"{here!r} {here!s} {vars(here)!r} {here.key_id}"
    assert here.key_id == hashlib.sha256(KEY.encode()).hexdigest()[:16]
    assert Registry("https://registry.example").key_id == "anonymous"


@pytest.mark.parametrize(
    "key", ["", " ", f"{KEY} ", f"a {KEY}", f"{KEY}\r\nX: y", f"{KEY}é", KEY.encode(), 5]
)
def test_a_key_that_cannot_be_one_is_refused_unseen(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry("https://registry.example", api_key=key)
    assert KEY not in str(caught.value)


def test_registries_are_the_same_by_address_and_key() -> None:
    one = Registry("HTTPS://Registry.Example:443/", api_key=KEY)
    assert one == Registry("https://registry.example", api_key=SecretStr(KEY), timeout_s=1.0)
    assert hash(one) == hash(Registry("https://registry.example", api_key=KEY))
    assert one != Registry("https://registry.example")
    assert one != Registry("https://registry.example/other", api_key=KEY)
    assert one != "https://registry.example"


# Addresses


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://registry.example", "https://registry.example"),
        (" https://Registry.Example/ ", "https://registry.example"),
        ("https://registry.example:8443/api//", "https://registry.example:8443/api"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("http://localhost:80/", "http://localhost"),
        ("http://127.8.8.8:8000", "http://127.8.8.8:8000"),
        ("http://[::1]/", "http://[::1]"),
    ],
)
def test_addresses_in_one_form(given: str, url: str) -> None:
    assert base_url(given) == url == base_url(url)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "registry.example",
        "ftp://registry.example",
        "https://",
        "https:///path",
        "https://registry.example:0",
        "https://registry.example:99999",
        "https://registry.example:x",
        "https://re gistry.example",
        "https://registry.example/\\..",
        "https://registry.example\n.evil.example",
        "https://registré.example",
        "http://registry.example",
        "http://127.0.0.1.example",
        "http://localhost.example",
        "http://0.0.0.0",
        "http://128.0.0.1",
        "http://2130706433",
        "https://hunter2@registry.example",
        "https://user:hunter2@registry.example",
        "https://user:hunter2@@registry.example",
        "https://registry.example/?key=hunter2",
        "https://registry.example/#hunter2",
        "https://registry.example/?",
        None,
        7,
        b"https://registry.example",
    ],
)
def test_addresses_that_are_refused_without_telling_what_is_secret(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry(given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="seconds"):
        Registry("https://registry.example", timeout_s=timeout_s)


# The environment


def test_what_stays_on_this_machine_goes_past_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with LoopbackRegistry() as proxy, LoopbackRegistry() as there:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert give(Registry(there.url, api_key=KEY), unit()[1]).kind == "done"
        assert not proxy.requests


def test_https_goes_through_the_proxy_which_does_not_see_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with answering(http(407)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        got = give(Registry("https://registry.example", api_key=KEY), unit()[1])
        assert got.kind == "later"
        assert [(method, path) for method, path, *_ in proxy.requests] == [
            ("CONNECT", "registry.example:443")
        ]
        assert KEY not in repr(proxy.requests)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("credentials", ["", "me:hunter2@", "me:hun/ter2@"])
def test_what_goes_wrong_at_a_proxy_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, credentials: str
) -> None:
    for other in ("HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(other, raising=False)
        monkeypatch.delenv(other.lower(), raising=False)
    here = Registry("https://registry.example", api_key=KEY)
    with unheard_port() as port:
        host = f"127.0.0.1:{port}"
        monkeypatch.setenv(name, f"http://{credentials.replace('/', '%2F')}{host}")
        reason = give(here, unit()[1]).reason
    assert reason.startswith(f"no connection through the proxy http://{host}: ")
    assert "hunter2" not in reason
    with answering(http(407)) as proxy:
        here = Registry("https://registry.example", api_key=KEY)
        monkeypatch.setenv(name, proxy.url)
        assert give(here, unit()[1]).reason.startswith(f"the proxy {proxy.url} refused: 407")
    with answering(b"") as proxy:
        here = Registry("https://registry.example", api_key=KEY)
        monkeypatch.setenv(name, proxy.url)
        assert f"through the proxy {proxy.url}" in give(here, unit()[1]).reason
    monkeypatch.setenv("NO_PROXY", "registry.example")
    assert proxy_of("https://registry.example") is None
    assert proxy_of("http://127.0.0.1:80") is None


def test_a_broken_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://user:hunter2@proxy.example")
    got = give(Registry("https://registry.example"), unit()[1])
    assert got.kind == "later"
    assert "HTTPS_PROXY" in got.reason
    assert "hunter2" not in got.reason


def test_passwords_and_cookies_from_elsewhere_stay_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = folder / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    raw = http(201, STORED, Set_Cookie="track=me; Path=/")
    with answering(raw) as there:
        here = Registry(there.url)
        for _ in range(2):
            assert give(here, unit()[1]).kind == "done"
        sent = [headers for _, _, headers, _ in there.requests]
    assert not any("authorization" in headers or "cookie" in headers for headers in sent)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the program openssl to make a certificate")
    place = tmp_path_factory.mktemp("tls") / "own.pem"
    asked = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=loopback"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(place), "-out", str(place.with_name("certificate.pem"))]
    subprocess.run([openssl, *asked.split(), *names, *files], check=True, capture_output=True)
    place.write_text(place.read_text() + place.with_name("certificate.pem").read_text())
    return place


@pytest.fixture
def secured(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_nobody_vouches_for_stops_it(secured: ssl.SSLContext) -> None:
    with LoopbackRegistry(tls=secured) as there:
        got = give(Registry(there.url, api_key=KEY), unit()[1])
        assert (got.kind, got.status) == ("stopped", None)
        assert "certificate is not trusted" in got.reason
        assert not there.requests


def test_a_certificate_of_ones_own(
    secured: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("certificate.pem")))
    with LoopbackRegistry(tls=secured) as there:
        assert give(Registry(there.url, api_key=KEY), unit()[1]).kind == "done"
        elsewhere = there.url.replace("127.0.0.1", "localhost")
        assert give(Registry(elsewhere, api_key=KEY), unit()[1]).kind == "stopped"
        assert len(there.requests) == 1


def test_a_dripping_server_is_given_up_over_tls(
    secured: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("certificate.pem")))
    dripping = LoopbackRegistry(tls=secured, misbehave=lambda *_: "drip_headers")
    with dripping as there:
        here = Registry(there.url, api_key=KEY, timeout_s=0.5)
        assert give(here, unit()[1]).reason.startswith("no answer in time")


def test_tls_is_not_spoken_there() -> None:
    with LoopbackRegistry() as there:
        url = there.url.replace("http:", "https:")
        here = Registry(url, api_key=KEY, timeout_s=IMPATIENT_S)
        assert give(here, unit()[1]).kind == "later"
        assert not there.units


# Registering


def test_registering_gives_a_key_that_works() -> None:
    with LoopbackRegistry(keys=set()) as there:
        assert give(Registry(there.url, api_key=KEY), unit()[1]).kind == "stopped"
        # An old key is of no use there, and might be refused.
        key = Registry(there.url, api_key=KEY).register("kp:agent:me")
        assert "authorization" not in there.requests[-1][2]
        assert key.get_secret_value() not in repr(key)
        assert give(Registry(there.url, api_key=key), unit()[1]).kind == "done"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (http(201), "no key"),
        (http(201, b'{"data": {"api_key": ""}}'), "no key"),
        (http(201, b'{"data": {"api_key": "kp_hunter2\\r\\nX: y"}}'), "no key"),
        (http(201, b'{"data": {"api_key": "%s"}}' % (b"k" * 501)), "no key"),
        (http(201, b'{"data": ["kp_hunter2"]}'), "no key"),
        (b"HTTP/1.1 201 -\r\nContent-Length: 99\r\n\r\n{", "cut off"),
        (http(409, b'{"error": "this agent has a key"}'), "this agent has a key"),
        (http(404), "URL of a registry"),
        (http(429), "429"),
        (b"?", "the connection broke"),
    ],
)
def test_registering_without_success(raw: bytes, told: str) -> None:
    with answering(raw) as there:
        with pytest.raises(RegistryError, match=told) as caught:
            Registry(there.url).register("kp:agent:me")
        assert "hunter2" not in str(caught.value)


# Threads and processes


def test_many_threads_share_one_registry() -> None:
    with LoopbackRegistry() as there:
        here = Registry(there.url, api_key=KEY)
        got: list[Answer] = []

        def work() -> None:
            got.extend(give(here, unit(n)[1]) for n in range(10))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        here.close()
        for thread in threads:
            thread.join()
        assert {answer.kind for answer in got} <= {"done", "later"}
        assert len(got) == 80
        here.close()
        assert give(here, unit()[1]).kind == "done"


def in_new_process(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKS = """
import os, sys, threading
from kp_langchain.registry import Registry
here = Registry(sys.argv[1], api_key=sys.argv[2])
assert here.find("x").status == 404
threads = [threading.Thread(target=here.find, args=("y",)) for _ in range(4)]
for thread in threads: thread.start()
child = os.fork()
assert here.find("x").status == 404
if child:
    assert os.waitpid(child, 0)[1] == 0
    for thread in threads: thread.join()
    print("both")
else:
    os._exit(0)
"""

AT_EXIT = """
import atexit, sys
from kp_langchain.registry import Registry
here = Registry(sys.argv[1], timeout_s=0.2)
atexit.register(lambda: print(here.find("x").reason))
"""

LOADED = """
import sys
import kp_langchain.registry.from_settings, kp_langchain.registry.sender
from kp_langchain.registry import Registry
repr(Registry("https://registry.example"))
print(sorted({"httpx", "httpcore", "requests"} & set(sys.modules)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_both_sides_of_a_fork_go_on() -> None:
    with LoopbackRegistry() as there:
        assert in_new_process(FORKS, there.url, KEY) == "both\n"
        assert len(there.requests) == 7


def test_a_dripping_server_does_not_hold_up_exit() -> None:
    # No thread can be started there any more (from Python 3.12).
    dripping = LoopbackRegistry(misbehave=lambda *_: "drip_headers")
    with dripping as there:
        assert in_new_process(AT_EXIT, there.url).startswith("no answer in time")


def test_http_is_loaded_by_the_first_request() -> None:
    assert in_new_process(LOADED) == "[]\n"
