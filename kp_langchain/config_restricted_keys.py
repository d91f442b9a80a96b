"""The keys of a configuration file that apply only if the user trusts the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kp_langchain.redaction.custom_rules import KEY_CHARS_MIN

# Keys that send, redirect or load code; `restricted_paths` yields them, and more.
_RESTRICTED_KEYS = ("registry_url", "database_url", "api_key", "embedding_model", "agent_id")
_SENT_VISIBILITIES = ("org", "network")
_BOOLEAN = TypeAdapter(bool)


def restricted_paths(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the keys that send, redirect, un-redact or load code, each as its path in the tables.

    A value of a wrong type is passed over: validation reports it.
    """
    for key in _RESTRICTED_KEYS:
        if isinstance(values.get(key), str):
            yield (key,)
    if values.get("send_scores_to"):
        yield ("send_scores_to",)
    with suppress(ValidationError):
        if not _BOOLEAN.validate_python(values.get("disabled", True)):
            yield ("disabled",)
    run_keys = values.get("run_keys")
    if isinstance(run_keys, dict):  # the store keeps the values of these keys
        yield from (("run_keys", key) for key in run_keys)
    redaction = values.get("redaction")
    if isinstance(redaction, dict):
        if isinstance(redaction.get("allow"), list):
            yield ("redaction", "allow")
        pseudonym_key = redaction.get("pseudonym_key")
        # Whoever has the key can identify the people.
        if isinstance(pseudonym_key, str) and len(pseudonym_key) >= KEY_CHARS_MIN:
            yield ("redaction", "pseudonym_key")
        if isinstance(redaction.get("redactor"), str):  # it is imported
            yield ("redaction", "redactor")
    domains = values.get("domains")
    policies: list[tuple[tuple[str, ...], Any]] = [(("defaults",), values.get("defaults"))]
    if isinstance(domains, dict):
        policies += [(("domains", name), policy) for name, policy in domains.items()]
    for path, policy in policies:
        if isinstance(policy, dict):
            if policy.get("visibility") in _SENT_VISIBILITIES:
                yield (*path, "visibility")
            if policy.get("privacy_level") == "private":
                yield (*path, "privacy_level")
