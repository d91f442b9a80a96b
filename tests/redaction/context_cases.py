"""Secrets without a form of their own: a name, a command or a sentence gives them away."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from tests.redaction.context_templates import TEMPLATES
from tests.redaction.drawn import compose, fill
from tests.redaction.more_templates import MORE

# The value's form is nothing special; the name beside it says whose it is.
_VENDORS: Final = [
    "algolia",
    "beamer",
    "bitbucket",
    "cloudflare",
    "cohere",
    "coinbase",
    "confluent",
    "contentful",
    "datadog",
    "drone",
    "dropbox",
    "etsy",
    "fastly",
    "finicity",
    "flickr",
    "freshbooks",
    "gitter",
    "heroku",
    "hubspot",
    "intercom",
    "jfrog",
    "kraken",
    "kucoin",
    "launchdarkly",
    "linkedin",
    "looker",
    "mailgun",
    "mattermost",
    "messagebird",
    "netlify",
    "nytimes",
    "okta",
    "plaid",
    "rapidapi",
    "sendbird",
    "snyk",
    "squarespace",
    "sumologic",
    "travis",
    "twitch",
    "twitter",
    "zendesk",
    "linode",
    "vultr",
    "hetzner",
    "binance",
    "alchemy",
    "infura",
    "etherscan",
    "deepgram",
    "assemblyai",
    "mistral",
    "cerebras",
    "serper",
    "serpapi",
    "opsgenie",
    "rollbar",
    "bugsnag",
    "codacy",
    "semaphore",
    "postmark",
    "sparkpost",
    "mailjet",
    "amplitude",
    "mixpanel",
    "segment",
    "customerio",
    "trello",
    "clickup",
    "coda",
    "wise",
    "paddle",
    "polygon",
    "tiingo",
    "quandl",
]
_VENDOR_NAMES: Final = (
    "{v}_api_key", "{v}ApiKey", "{v}-api-token", "{V}_KEY", "{V}_TOKEN", "{v}key", "{V}KEY",
    "{v}_secret", "{v}SecretKey", "{v}_access_key", "{v}.api.key", "{v}_client_secret",
    "{v}token", "X-{t}-Key", "{V}_ACCESS_TOKEN", "{v}_oauthkey", "{v}-auth", "{t}Token",
)  # fmt: skip
_VENDOR_VALUES: Final = ("{h32}", "{x32}", "{l40}", "{u43}", "{U}", "{h64}", "{x20}")
_VENDOR_WRITTEN: Final = (
    "{n}={s}", '{n} = "{s}"', "{n}: {s}", '{{"{n}": "{s}"}}', "export {n}='{s}'", "{n} := \"{s}\"",
    "--{n} {s} --quiet", "client({n}='{s}', retries=3)", "https://x.io/a?{n}={s}&page=2",
    "I set {n} to {s} and ran it.", "'{n}' => '{s}',", "<{n}>{s}</{n}>", "{n}\\n{n}={s}\\n",
)  # fmt: skip
_VENDOR_PROSE: Final = (
    "The {t} key is {s}.", "My {v} api token is {s}, keep it safe.", "{t} API key: {s}",
    "use this key for {v}: {s}", "{t} secret is `{s}`", "here is the {t} access token: {s}",
    "the {v} token {s} expired", "Your {t} API Key has been created: {s}",
)  # fmt: skip
_SEED_WORDS: Final = [
    "abandon",
    "ability",
    "able",
    "canyon",
    "carbon",
    "cargo",
    "carpet",
    "debate",
    "decade",
    "deer",
    "eager",
    "eagle",
    "earth",
    "fabric",
    "gadget",
    "galaxy",
    "habit",
    "hammer",
    "icon",
    "idea",
    "jacket",
    "jaguar",
    "kangaroo",
    "kidney",
    "label",
    "ladder",
    "machine",
    "magnet",
    "naive",
    "napkin",
    "oak",
    "object",
    "paddle",
    "palace",
    "quality",
    "quantum",
    "rabbit",
    "raccoon",
    "saddle",
    "sail",
    "table",
    "tackle",
    "umbrella",
    "unable",
    "vacuum",
    "valid",
    "wagon",
    "walnut",
    "yard",
    "year",
    "zebra",
    "zero",
]
_SEEDS: Final = (
    "seed phrase: {s}", "mnemonic: {s}", "The recovery phrase is {s}.", "MNEMONIC=\"{s}\"",
    "my wallet seed: {s}", "seed words: {s}", '{"mnemonic": "{s}"}', "secret recovery phrase: {s}",
    "backup phrase = {s}", "Here are the 12 words of my wallet: {s}",
)  # fmt: skip


def _wrapped(text: str, source: random.Random) -> Any:
    shape = source.randrange(6)
    if shape == 0:
        return {"role": "tool", "content": text}
    if shape == 1:
        return json.dumps({"input": json.dumps({"text": text})})
    if shape == 2:
        return f"Observation: done\n{text}\n"
    return text


def _made() -> list[tuple[str, Any, str]]:
    source = random.Random(21)
    cases: list[tuple[str, Any, str]] = []
    for vendor in _VENDORS:
        for _ in range(6):
            secret = fill(source.choice(_VENDOR_VALUES), source)
            name = source.choice(_VENDOR_NAMES).format(v=vendor, V=vendor.upper(), t=vendor.title())
            text = source.choice(_VENDOR_WRITTEN).format(n=name, s=secret)
            cases.append(("vendor name", _wrapped(text, source), secret))
            cases.append(("vendor mapping", {"config": {name: secret, "region": "eu"}}, secret))
            secret = fill(source.choice(_VENDOR_VALUES), source)
            text = source.choice(_VENDOR_PROSE).format(v=vendor, t=vendor.title(), s=secret)
            cases.append(("vendor prose", _wrapped(text, source), secret))
    for family, templates in {**TEMPLATES, **MORE}.items():
        for template in templates:
            for _ in range(3):
                text, secret = compose(template, source)
                cases.append((family, _wrapped(text, source), secret))
    for template in _SEEDS:
        for count in (12, 24, 12):
            secret = " ".join(source.choices(_SEED_WORDS, k=count))
            cases.append(("seed", _wrapped(template.replace("{s}", secret), source), secret))
    return cases


CONTEXT: Final = _made()
