from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from kp_langchain.errors import ConfigError
from kp_langchain.redaction import LEVELS, Redaction, redact

# Bodies for made-up credentials; joined to their prefixes only here, so no file holds a whole one.
ALNUM = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5kL7nP9rS1tU3wX5zA7cE9gJ1kM3oR5uV7xY9aD1fH3iL5nQ7tW9z"
HEX = "0a1b2c3d4e5f60718293a4b5c6d7e8f90f1e2d3c4b5a69788796a5b4c3d2e1f0"
UPPER = "A1B2C3D4E5F6G7H8J9K0L1M2N3P4Q5R6S7T8"


def _part(value: str) -> str:
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


JWT = ".".join([_part('{"alg":"HS256","typ":"JWT"}'), _part('{"sub":"1234"}'), ALNUM[:43]])

TELLING = (
    "password PASSWORD passwd pwd passphrase secret token apiKey api_key API-KEY access_key "
    "accessKey private_key client_secret CLIENT-SECRET authorization auth_token authToken "
    "cookie session_id sessionId sessionToken credential credentials otp x-api-key "
    "X-Auth-Token dbPassword DB_PASSWORD MYSQL_PWD userPasswd newPassword signingKey "
    "encryption_key webhook_secret aws_secret_access_key OPENAI_API_KEY refreshToken "
    "csrf_token JSESSIONID apikey mysqlpassword verificationCode one_time_password "
    "PASSWORD_PROD token2"
)
NAMES = TELLING.split()

FORMATS = [
    ("aws_key", "AKIA" + UPPER[:16]),
    ("aws_key", "ASIA" + UPPER[:16]),
    ("google_key", "AIza" + ALNUM[:35]),
    ("google_token", "ya29." + ALNUM),
    ("google_token", "GOCSPX-" + ALNUM[:28]),
    ("github_token", "ghp_" + ALNUM[:36]),
    ("github_token", "gho_" + ALNUM[:36]),
    ("github_token", "ghs_" + ALNUM[:36]),
    ("github_token", "github_pat_" + ALNUM[:22] + "_" + ALNUM[:59]),
    ("gitlab_token", "glpat-" + ALNUM[:20]),
    ("gitlab_token", "glrt-" + ALNUM[:20]),
    ("slack_token", "xoxb-123456789012-123456789012-" + ALNUM[:24]),
    ("slack_token", "xapp-1-A0123456789-1234567890123-" + HEX),
    ("stripe_key", "sk_live_" + ALNUM[:24]),
    ("stripe_key", "rk_test_" + ALNUM[:24]),
    ("stripe_key", "whsec_" + ALNUM[:32]),
    ("openai_key", "sk-proj-" + ALNUM),
    ("openai_key", "sk-svcacct-" + ALNUM),
    ("model_key", "sk-" + ALNUM[:48]),
    ("anthropic_key", "sk-ant-api03-" + ALNUM),
    ("openrouter_key", "sk-or-v1-" + HEX),
    ("huggingface_token", "hf_" + ALNUM[:34]),
    ("npm_token", "npm_" + ALNUM[:36]),
    ("pypi_token", "pypi-AgEIcHlwaS5vcmc" + ALNUM),
    ("sendgrid_key", "SG." + ALNUM[:22] + "." + ALNUM[:43]),
    ("twilio_key", "SK" + HEX[:32]),
    ("mailchimp_key", HEX[:32] + "-us12"),
    ("telegram_token", "123456789:AA" + ALNUM[:33]),
    ("digitalocean_token", "dop_v1_" + HEX),
    ("shopify_token", "shpat_" + HEX[:32]),
    ("databricks_token", "dapi" + HEX[:32]),
    ("grafana_token", "glsa_" + ALNUM[:32] + "_" + HEX[:8]),
    ("vault_token", "hvs." + ALNUM),
    ("docker_token", "dckr_pat_" + ALNUM[:27]),
    ("linear_key", "lin_api_" + ALNUM[:40]),
    ("langsmith_key", "lsv2_pt_" + HEX[:32] + "_" + HEX[:10]),
    ("groq_key", "gsk_" + ALNUM[:52]),
    ("registry_key", "kp_" + ALNUM[:32]),
    ("jwt", JWT),
]


@pytest.mark.parametrize(("kind", "secret"), FORMATS)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "I used {} and it failed.",
        "({})",
        "see {}.",
        "{}, then",
        "a=1&t={}&b=2",
        "'{}'",
        '"{}"',
        "`{}`",
        "\x1b[31m{}\x1b[0m",
        "first\\n{}\\nlast",
        "q%3D{}%26n",
        "令牌{}是",
    ],
)
def test_published_formats_are_found_anywhere(kind: str, secret: str, around: str) -> None:
    result = redact(around.format(secret), level="private")
    assert secret not in result.value
    assert secret[8:-4] not in result.value
    assert result.counts


@pytest.mark.parametrize(("kind", "secret"), FORMATS)
def test_a_format_names_its_kind_and_leaves_the_rest(kind: str, secret: str) -> None:
    result = redact(f"before {secret} after")
    assert result.value == f"before [REDACTED:{kind}] after"
    assert result.counts == {kind: 1}


@pytest.mark.parametrize(
    "name",
    NAMES,
)
def test_telling_names_work_alike_in_every_notation(name: str) -> None:
    value = "Tr0ub4dor!3"
    written = [
        f"{name}={value}",
        f"{name}='{value}'",
        f'{name} = "{value}"',
        f"{name}: {value}",
        f"--{name} {value} --verbose",
        f"--{name}={value}",
        json.dumps({name: value}),
        json.dumps({"arguments": json.dumps({name: value})}),
        json.dumps({"a": json.dumps({"b": json.dumps({name: value})})}),
        repr({name: value}),
        f"connect(user='bob', {name}='{value}', port=1)",
        f"<{name}>{value}</{name}>",
        f"https://x.example/a?u=1&{name}={value}&n=2",
        f"A=1\n{name}={value}\nB=2",
        f"db:\n  {name}: {value}\n  port: 1\n",
        f"log\\n{name}={value}\\nmore",
        f"q%26{name}%3D{value}",
        f"\x1b[1m{name}={value}\x1b[0m",
    ]
    structured: list[Any] = [
        {name: value},
        {"a": [{"b": {name: value}}]},
        {name: [value, value]},
        {name: value.encode()},
        [(name, value), ("accept", "*/*")],
        {"headers": [{"name": name, "value": value}]},
        ["tool", f"--{name}", value, "--verbose"],
        (name, value),
    ]
    for case in [*written, *structured]:
        result = redact(case, level="private")
        assert value not in str(result.value), (case, result.value)
        assert sum(result.counts.values()) >= 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 4096),
        ("total_tokens", "1033"),
        ("tokens", 128),
        ("author", "acme-bot"),
        ("keyboard", "qwerty"),
        ("tokenizer", "cl100k_base"),
        ("monkey", "capuchin"),
        ("pin_count", 4821),
        ("pinned", "yes"),
        ("compass", "north"),
        ("password_policy", "at least 8"),
        ("has_password", True),
        ("secret_santa", "office party"),
        ("primary_key", "order_id"),
        ("public_key_type", "ed25519"),
        ("eos_token", "</s>"),
        ("next_page_token", "abc123"),
        ("cookies_enabled", True),
        ("session_length_ms", 5400),
        ("auth_type", "kerberos"),
        ("card_type", "visa"),
        ("password", None),
        ("api_key", ""),
        ("secret", False),
        ("token", "${TOKEN}"),
        ("api_key", "<YOUR_API_KEY>"),
    ],
)
def test_look_alike_names_and_empty_values_stay(name: str, value: object) -> None:
    for case in ({"args": {name: value}}, json.dumps({name: value}), f"run({name}={value!r}, n=1)"):
        result = redact(case)
        assert result.value == case
        assert result.counts == {}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://app:p@ss@w0rd@db.io/x", "p@ss@w0rd"),
        ("mongodb+srv://u:s3cr:t!@c0.mongodb.net/t?w=1", "s3cr:t!"),
        ("redis://:hunter22@cache:6379/0", "hunter22"),
        ("Server=db1;User Id=sa;Password=Hunter2;Encrypt=true", "Hunter2"),
        ("jdbc:mysql://db:3306/x?user=app&password=MC164QKY", "MC164QKY"),
        ("Authorization: Bearer l__2ByMzchQ-0YLKVnpbpe5So", "l__2ByMzchQ"),
        ("curl -H 'Authorization: Basic Ym9iOnB3ZDEyMw==' https://a.io", "Ym9iOnB3"),
        ('Authorization: Digest username="bob", response="6629fae4"', "6629fae4"),
        ("Cookie: sid=redpanda63; theme=dark", "redpanda63"),
        ("Set-Cookie: refresh=r3fr3sh; HttpOnly", "r3fr3sh"),
        ("redis-cli -h c -a hunter22 ping", "hunter22"),
        ("mysql -u root -phunter22 shop", "hunter22"),
        ("sshpass -p hunter22 ssh a@b", "hunter22"),
        ("curl -u bob:hunter22 https://a.io", "hunter22"),
        ("CREATE USER 'app' IDENTIFIED BY 'hunter22';", "hunter22"),
        ("ALTER ROLE app PASSWORD 'hunter22'", "hunter22"),
        ("machine api.io login bob password hunter22", "hunter22"),
        ("//registry.npmjs.org/:_authToken=494d46c9-28cf", "494d46c9-28cf"),
        ("admin:$apr1$2weOfruE$UZ3NuD2J3fgPi.rHvSkgw5", "UZ3NuD2J3fgPi"),
        ("The password is correct-horse-battery-staple.", "correct-horse"),
        ("the api key is a1b2c3d4e5, keep it", "a1b2c3d4e5"),
        ("Password (temporary): hunter22", "hunter22"),
        ("config['password'] = 'hunter22'", "hunter22"),
        ('password: str = "hunter22"', "hunter22"),
        ('password = """hunter22"""', "hunter22"),
        ('{"password": {"v": ["hunter22"]}}', "hunter22"),
        ('{"password": "it\'s\\"quoted\\" hunter22"}', "hunter22"),
        ('{"password": "cut off hunter22', "hunter22"),
        ("| password | hunter22 |", "hunter22"),
        ("пароль: hunter22", "hunter22"),
    ],
)
def test_secrets_known_by_their_surroundings(text: str, secret: str) -> None:
    assert secret not in redact(text, level="private").value


@pytest.mark.parametrize("kind", ["RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", ""])
@pytest.mark.parametrize("newline", ["\n", "\\n", "\r\n"])
@pytest.mark.parametrize("closed", [True, False])
def test_private_key_blocks_go_whole_even_when_cut_off(
    kind: str, newline: str, closed: bool
) -> None:
    body = newline.join(["MIIEpAIBAAKCAQEA", ALNUM[:64], ALNUM[10:74]])
    block = f"-----BEGIN {kind}PRIVATE KEY-----{newline}{body}{newline}"
    if closed:
        block += f"-----END {kind}PRIVATE KEY-----"
    result = redact({"file": f"key:{newline}{block}"})
    assert ALNUM[:20] not in result.value["file"]
    assert result.counts["private_key"] == 1


IDENTIFIERS = [
    ("email", "ravi.kumar+news@mail.example.co.uk"),
    ("email", "joão.silva@bücher.example"),
    ("email", "maria%40example.com"),
    ("phone", "+49 151 23582239"),
    ("phone", "(539) 436-5224"),
    ("phone", "539-436-5224"),
    ("phone", "06 43 68 57 62"),
    ("phone", "+15394365224"),
    ("ip", "35.149.83.227"),
    ("ip", "2001:db8:8f74::cdb9"),
    ("ip", "fe80::fc8a:1e30"),
    ("mac", "df:ef:f8:f6:f4:57"),
    ("card", "4242 4242 4242 4242"),
    ("card", "4111111111111111"),
    ("card", "378282246310005"),
    ("iban", "DE89370400440532013000"),
    ("iban", "GB29 NWBK 6016 1331 9268 19"),
    ("ssn", "488-85-6170"),
    ("home_path", "jane.doe"),
]


@pytest.mark.parametrize(("kind", "written"), IDENTIFIERS)
@pytest.mark.parametrize("around", ["Contact {} about it.", "({})", '{{"to": "{}"}}', "地址{}。"])
def test_identifiers_go_unless_private(kind: str, written: str, around: str) -> None:
    text = around.format(f"/home/{written}/app.py" if kind == "home_path" else written)
    for level in ("aggregated", "federated"):
        result = redact({"text": text}, level=level)
        assert written not in result.value["text"]
        assert result.counts == {kind: 1}
    private = redact({"text": text}, level="private")
    assert private.value == {"text": text}
    assert private.counts == {}


@pytest.mark.parametrize(
    "path",
    ["/Users/jane/x.log", "C:\\Users\\jane\\x", "C:\\\\Users\\\\jane\\\\x", "/mnt/c/Users/jane/a"],
)
def test_home_paths_lose_the_name_only(path: str) -> None:
    assert redact(path).value == path.replace("jane", "[REDACTED:home_path]")


@pytest.mark.parametrize(
    "text",
    [
        "3b38695a-5418-41f5-979f-b453043f3dc4",
        "kp:trace:3b38695a-5418-41f5-979f-b453043f3dc4",
        "b6589fc6ab0dc82cf12099d1c2d40ab994e8410c",
        "sha256:5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9",
        "2024-02-12T01:15:36.123456Z",
        "2024-08-06 10:22:33,123",
        "1718068370510",
        "20.18.6-rc.1",
        "react@18.2.0",
        "4111111111111112",
        "978-3-5887-2869-6",
        "12345-6789",
        "1 000 000",
        "call_IhFd3TfUSNcncUi04NHoNKAz",
        "toolu_015ih8GDJhaulNIRmOMNZyHe",
        "127.0.0.1:8000",
        "std::vector<int>::iterator it; a::b::c",
        "token = tokenizer.encode(text)",
        "def get_password(self) -> str:",
        "password = getpass.getpass()",
        "self.token = token",
        "password: str",
        "if not token: raise AuthError('token missing')",
        "Authorization: Bearer $TOKEN",
        "api_key=os.getenv('API_KEY')",
        'os.environ["OPENAI_API_KEY"]',
        "{{ secrets.GITHUB_TOKEN }}",
        "PWD=/usr/src/app",
        "Token usage: 512 prompt, 42 completion.",
        "I forgot my password, can you reset it?",
        "The secret is to use fresh basil.",
        "token: the smallest unit of text",
        "Authorization header is missing.",
        "https://api.acme.io/v1/users/12345/orders?page=2&per_page=50",
        "postgresql://localhost/mydb",
        "http://localhost:8080/a@b",
        "https://example.com/home/about",
        "@channel please review; price @ $5.00",
        "git@github.com:org/repo.git",
        "/usr/lib/python3.11/json/decoder.py:42",
        "0x7ffd3a2b10 #1a2b3c",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    result = redact({"content": [text, f"Step 1 returned {text} and went on"]})
    assert result.value == {"content": [text, f"Step 1 returned {text} and went on"]}
    assert result.counts == {}


def test_unknown_level_is_refused_with_the_three_known() -> None:
    with pytest.raises(ConfigError) as caught:
        redact("x", level="secret")
    for word in ("secret", *LEVELS):
        assert repr(word) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1." * 8000,
        "a@a@a@" * 8000,
        "a@" + "a." * 24_000,
        '"' * 48_000,
        "-" * 48_000,
        "\\" * 48_000 + '"',
        "password:'" * 5000,
        'password:{"":"",' * 3000,
        "password=" * 5000,
        "token-" * 8000,
        "http://a:" * 5000,
        "-----BEGIN RSA PRIVATE KEY-----\n" * 1500,
        "eyJ-" * 12_000,
        "mysql " * 8000,
        "x(at)" * 10_000,
        "+1 555 " * 7000,
        "[REDACTED:a]" * 4000 + "password=hunter22",
        "\ud800\udfff" * 1000 + "password=hunter22",
        "İ" * 5000 + "password=hunter22",
    ],
)
def test_hostile_text_comes_back_whole_and_settled(text: str) -> None:
    once = redact(text)
    assert "hunter22" not in once.value
    assert "failed" not in once.counts
    assert redact(once.value) == Redaction(once.value, {})
