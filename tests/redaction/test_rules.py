"""What users add: patterns, names, exceptions, pseudonyms, and a redactor of their own."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain import ConfigError, Settings
from kp_langchain.redaction import Rules, redact

KEY = "a key of sixteen characters or more"


def value(what: Any, **rules: Any) -> Any:
    return redact(what, rules=Rules(**rules)).value


def test_a_pattern_of_ones_own():
    rules = Rules(patterns={"ticket": r"TICK-\d{6}", "customer": r"customer (?P<secret>\w+)"})
    done = redact({"TICK-123456": ["about TICK-654321, customer Miller"]}, rules=rules)
    assert done.value == {
        "[REDACTED:ticket]": ["about [REDACTED:ticket], customer [REDACTED:customer]"]
    }
    assert done.counts == {"ticket": 2, "customer": 1}


@pytest.mark.parametrize(
    "text",
    [
        "employeeNumber=%s",
        "EMPLOYEE_NUMBER: %s",
        '{"employee-number": "%s"}',
        '"{\\"employeeNumber\\": \\"%s\\"}"',
        "run --employee-number %s now",
        "the employee number is %s",
        "my_employee_number = '%s'",
        "employee number：%s",
    ],
)
def test_a_name_of_ones_own_in_text(text):
    done = redact(text % "4711-x", rules=Rules(names=["employee number"]))
    assert "4711" not in done.value
    assert done.counts == {"employee_number": 1}


_WORDS = st.sampled_from(["staff", "id", "the", "s", "my"])


@given(
    st.lists(_WORDS, min_size=1, max_size=3),
    st.lists(st.lists(_WORDS, min_size=1, max_size=3).map(" ".join), max_size=4),
    st.lists(_WORDS, max_size=3),
    st.sampled_from([" ", "_", "-"]),
)
def test_no_name_hides_another(name, others, before, between):
    text = f"{between.join(before + name)}: QX7-55"
    names = [*others, " ".join(name)]
    assert "QX7" not in redact(text, rules=Rules(names=names)).value


def test_a_name_of_ones_own_in_structures():
    given_ = {
        "employeeNumber": 4711,
        "old_employee_number": "x",
        "number": 4711,
        "headers": [("Employee-Number", "4711")],
        "fields": [{"name": "employee number", "value": "4711"}],
        "employee_numbers_seen": 3,
    }
    assert value(given_, names=["employee number"]) == {
        "employeeNumber": "[REDACTED:employee_number]",
        "old_employee_number": "[REDACTED:employee_number]",
        "number": 4711,
        "headers": [("Employee-Number", "[REDACTED:employee_number]")],
        "fields": [{"name": "employee number", "value": "[REDACTED:employee_number]"}],
        "employee_numbers_seen": 3,
    }


def test_what_is_allowed_stays_and_hides_nothing_else():
    allow = [r"support@example\.com", r"10\.\d+\.\d+\.\d+", "hunter2"]
    assert value("support@example.com and bob@example.com", allow=allow) == (
        "support@example.com and [REDACTED:email]"
    )
    assert value("from 10.0.0.1 to 192.168.7.9", allow=allow) == "from 10.0.0.1 to [REDACTED:ip]"
    assert value({"password": "hunter2"}, allow=allow) == {"password": "hunter2"}
    assert value({"password": "hunter3"}, allow=allow) == {"password": "[REDACTED:password]"}
    chat = [{"role": "ai", "content": "Your password?"}, {"role": "user", "content": "hunter2"}]
    assert value(chat, allow=allow) == chat
    assert value("Bot: Your password?\nAnn: hunter2", allow=allow).endswith("hunter2")
    kept = value("password=hunter2 bob@example.com", allow=[".+@.+"])
    assert kept == "password=[REDACTED:password] bob@example.com"


PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("ghp_" + "a1B2" * 9, "a1B2a1B2"),
        ("AKIA" + "Q3EGZ7MV" * 2, "Q3EGZ7MV"),
        (PRIVATE_KEY, "MIIEvQIBADANBgkq"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "dozjgNry"),
        ("postgresql://me:hunter22@host/db", "hunter22"),
        ("Authorization: Bearer 8fj3kd9s0dkf7slq", "8fj3kd9s"),
        ("$2b$12$abcdefghijklmnopqrstuv0123456789ABCDEFGHIJKLM", "abcdefghij"),
    ],
)
def test_no_rule_allows_a_secret_that_its_form_gives_away(text, secret):
    for what in (text, {"password": text}, [f"it is {text} here"], text.encode()):
        assert secret not in str(value(what, allow=["(?s).+"]))
    assert value("bob@example.com", allow=["(?s).+"]) == "bob@example.com"


SLOW = r"(\w+\s?)+$"


def test_a_pattern_without_end_drops_the_text_and_stops_nobody(caplog):
    rules = Rules(patterns={"slow": SLOW, "ticket": "TICK-[0-9]+"})
    long = "word " * 2000 + "!"
    done = redact([long, long, long, "TICK-7"], rules=rules)
    assert done.value == ["[REDACTED:failed]"] * 4
    # What threads of other tests log is none of it.
    texts = [one.getMessage() for one in caplog.records]
    (told,) = [text for text in texts if "the pattern" in text]
    assert f"the pattern {SLOW} of [redaction] takes longer than 1 s" in told
    assert "word" not in told


def test_while_a_pattern_searches_others_run():
    rules = Rules(patterns={"slow": SLOW})
    began, done = threading.Event(), threading.Event()

    def search():
        began.set()
        redact("word " * 2000 + "!", rules=rules)
        done.set()

    thread = threading.Thread(target=search)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += began.is_set()
    thread.join()
    assert turns > 5  # with `re` it is 0: nothing else runs until it is through


def test_a_pseudonym_follows_one_person():
    said = [
        "Bob.Miller@example.com wrote, call +49 30 1234567",
        {"to": "bob.miller@EXAMPLE.com", "phone": "+49-30-1234567"},
        "eve@example.com",
    ]
    first = redact(said, rules=Rules(pseudonym_key=KEY))
    names = [text.split("[")[1].split("]")[0] for text in (first.value[0], first.value[1]["to"])]
    assert names[0] == names[1]
    assert names[0].startswith("REDACTED:email#")
    assert names[0] not in first.value[2]
    assert first.value[0].split("[")[2] == first.value[1]["phone"].split("[")[1]
    again = redact(first.value, rules=Rules(pseudonym_key=KEY))
    assert (again.value, again.counts) == (first.value, {})
    assert redact(first.value).value == first.value
    other = redact(said, rules=Rules(pseudonym_key=KEY + "!"))
    assert names[0] not in other.value[0]


def test_secrets_never_become_pseudonyms():
    done = redact({"password": "hunter2", "x": "ghp_" + "a1B2" * 9}, rules=Rules(pseudonym_key=KEY))
    assert done.value == {"password": "[REDACTED:password]", "x": "[REDACTED:github_token]"}


@given(st.emails())
def test_pseudonyms_are_stable(address):
    rules = Rules(pseudonym_key=KEY)
    first, second = (redact(text, rules=rules).value for text in (address, f"to {address} it goes"))
    if first.startswith("[REDACTED:email#") and first.endswith("]"):
        assert first in second


def test_a_redactor_comes_after_ours():
    seen = []

    def shout(text: str) -> str:
        seen.append(text)
        return text.replace("Miller", "[NAME]")

    done = redact(
        {"Miller": ["Bob Miller, bob@example.com", 7, None], "password": "hunter2"}, redactor=shout
    )
    assert done.value == {
        "[NAME]": ["Bob [NAME], [REDACTED:email]", 7, None],
        "password": "[REDACTED:password]",
    }
    assert not any("hunter2" in text or "bob@" in text for text in seen)


@pytest.mark.parametrize("answer", [None, 3, b"bytes"])
def test_a_redactor_that_returns_no_text_fails_closed(answer):
    done = redact(["Bob Miller"], redactor=lambda text: answer)
    assert (done.value, done.counts) == (["[REDACTED:failed]"], {"failed": 1})


def test_a_redactor_that_raises_fails_closed():
    def bad(text: str) -> str:
        raise RuntimeError(text)

    assert redact({"k": "v"}, redactor=bad).counts["failed"] == 2


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"patterns": {"Bad Kind": "x"}}, "is not a kind; use up to 40 lower-case letters"),
        ({"patterns": {"bad": "("}}, "is not a regular expression"),
        ({"patterns": {"bad": "x*"}}, "matches the empty text"),
        ({"allow": ["["]}, "is not a regular expression"),
        ({"names": ["__"]}, "contains no word"),
        ({"pseudonym_key": "short"}, "at least 16 characters"),
        ({"namen": ["x"]}, "namen"),
    ],
)
def test_mistakes_are_reported(rules, message):
    with pytest.raises(ValidationError, match=message):
        Rules(**rules)


def test_rules_are_equal_whatever_they_have_seen():
    rules = Rules()
    redact("a harmless text", rules=rules)
    assert rules == Rules()
    assert b"a harmless text" not in pickle.dumps(rules)


def test_rules_come_from_the_settings(folder, monkeypatch):
    (folder / "kp.toml").write_text(
        '[redaction]\nnames = ["employee number"]\npatterns = { ticket = "TICK-[0-9]{6}" }\n'
    )
    monkeypatch.setenv("KP_REDACTION__PSEUDONYM_KEY", KEY)
    settings = Settings()
    assert settings.redaction.names == ["employee number"]
    assert KEY not in repr(settings)
    assert "[REDACTED:ticket]" in redact("TICK-123456", rules=settings.redaction).value


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            '[redaction]\npatterns = { bad = "(" }',
            r"redaction.patterns.bad.* not a regular expression",
        ),
        ("[redaction]\nallowed = []", "allow"),
    ],
)
def test_mistakes_in_the_settings_name_their_place(folder, toml, message):
    (folder / "kp.toml").write_text(toml)
    with pytest.raises(ConfigError, match=message) as caught:
        Settings()
    assert "kp.toml" in str(caught.value)


def test_a_pseudonym_key_that_is_too_short_is_not_shown(monkeypatch):
    monkeypatch.setenv("KP_REDACTION__PSEUDONYM_KEY", "hunter2")
    with pytest.raises(ConfigError, match="at least 16 characters") as caught:
        Settings()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "user bob / pass hunter22",
        "the wifi password hunter22",
        '- textbox "Password" [ref=e1]: hunter22',
    ],
)
def test_a_rule_allows_what_only_a_wording_gives_away(text):
    assert value(text) != text
    assert value(text, allow=["hunter22"]) == text
