"""Names that tell what they hold: `password`, `apiKey`, `X-Auth-Token`, `card_number`.

A name is split into words (camel, snake, kebab case) and read from its end, as English does: a
`token_limit` is a limit, an `access_token` is a token. So look-alikes (`tokenizer`, `monkey`,
`password_policy`) need no list of their own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class Telling(NamedTuple):
    """What a telling name says about its value.

    Attributes:
        kind: What the value is, as the placeholder names it.
        strong: Whether any value counts, rather than only one that looks generated.
        identifier: Whether it identifies a person (and stays at level "private").
    """

    kind: str
    strong: bool = True
    identifier: bool = False

    @property
    def open(self) -> bool:
        """Whether a mapping under the name holds ordinary things too, each with its own name."""
        return not self.strong or self.kind in _OPEN_KINDS


_OPEN_KINDS = frozenset({"session", "authorization", "token", "card", "pin"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-zß-öø-ɏ]+|[0-9]+|[^\W\d_A-Za-z]+")
_MAX_NAME = 128


def word_set(text: str) -> frozenset[str]:
    """Return the words of a table written as running text."""
    return frozenset(text.split())


# Words that may follow the noun without changing what it is.
_AFTER = word_set(
    "prod production dev development staging stage test testing qa live sandbox old new current "
    "previous prev backup value val text txt str string raw plain plaintext clear encrypted enc "
    "encoded base64 b64 hex secondary default main v hash hashed digest md5 sha sha1 "
    "sha256 bcrypt field input arg param header again repeat repeated confirmation confirm json "
    "base"
)
# First words that turn the name into a question or an action about the thing.
_ASKING = word_set(
    "is has have had no not needs need requires require required use uses using show hide allow "
    "allows enable enables enabled disable disabled with without should can could forgot forget "
    "supports support valid validate check verify verified missing expired invalid num number "
    "count total max min n"
)

_SINGLE = {
    **dict.fromkeys(
        word_set(
            "password passwords passwd passwds pwd pwds passphrase passphrases passcode psw pswd "
            "pword passw pwrd psk bindpw rootpw userpw passwort kennwort losungswort zugangscode senha "
            "contrasena contraseña contraseñas clave wachtwoord motdepasse hasło haslo lösenord "
            "losenord passord adgangskode salasana heslo jelszó jelszo parolă parola şifre sifre "
            "lozinka geslo slaptažodis parole пароль пароли парола κωδικός 密码 密碼 口令 パスワード "
            "비밀번호 暗証番号"
        ),
        Telling("password"),
    ),
    **dict.fromkeys(
        word_set("secret secrets clientsecret passkey kubeconfig 密钥 密鑰"), Telling("secret")
    ),
    **dict.fromkeys(word_set("token jwt bearer jeton 令牌"), Telling("token")),
    **dict.fromkeys(word_set("apikey apikeys apitoken"), Telling("api_key")),
    **dict.fromkeys(word_set("cookie cookies"), Telling("cookie")),
    **dict.fromkeys(
        word_set("session sessid sessionid jsessionid phpsessid aspsessionid xsrf csrf csrftoken"),
        Telling("session"),
    ),
    **dict.fromkeys(word_set("credential credentials creds"), Telling("credential")),
    **dict.fromkeys(word_set("authorization auth"), Telling("authorization")),
    **dict.fromkeys(word_set("otp totp hotp otps 验证码 驗證碼"), Telling("otp")),
    **dict.fromkeys(word_set("pin"), Telling("pin")),
    **dict.fromkeys(word_set("cvv cvv2 cvc cvc2 cvn csc"), Telling("cvv")),
    **dict.fromkeys(word_set("mnemonic"), Telling("private_key")),
    **dict.fromkeys(word_set("pass pw"), Telling("password", False)),
    **dict.fromkeys(
        word_set("sid authentication signature sig sas dsn hmac salt pem"), Telling("secret", False)
    ),
    **dict.fromkeys(word_set("privkey sshkey"), Telling("private_key")),
    **dict.fromkeys(
        word_set("phone telephone mobile cellphone tel fax msisdn whatsapp handy telefon telefono"),
        Telling("phone", identifier=True),
    ),
    **dict.fromkeys(word_set("ccnum ccnumber cardnumber"), Telling("card", identifier=True)),
    "passport": Telling("passport", identifier=True),
    **dict.fromkeys(word_set("ssn ssns nino"), Telling("ssn", identifier=True)),
    **dict.fromkeys(word_set("iban ibans"), Telling("iban", identifier=True)),
    **dict.fromkeys(word_set("card"), Telling("card", False, True)),
}

_KEY_OWNERS = word_set(
    "api access secret private encryption encrypt decryption signing sign master ssh account "
    "shared storage deploy deployment auth app application client consumer hmac aes des rsa dsa "
    "gpg pgp tls ssl insert ingest ingestion license licence service integration subscription "
    "webhook function session host admin write server project security token user root vault "
    "wallet seed recovery jwt cookie crypto symmetric wrapping data personal developer dev"
)
_KEY_OTHERS = word_set(
    "primary foreign sort partition public pub cache idempotency group order object row dict map "
    "hash routing range index unique composite natural surrogate search lookup translation i18n "
    "message config configuration setting registry answer hot short shortcut json yaml s3 bucket "
    "redis dedup deduplication event trace span run job task file path blob column field sorting "
    "join parent n state thread memory store item product first last next prev any each by"
)
TOKEN_OTHERS = word_set(
    "max min total num number count prompt completion input output eos bos pad padding stop unk "
    "unknown sep cls mask special end start begin first last next previous prev page continuation "
    "pagination sync cancel cancellation image text word sub subword vocab control fill "
    "placeholder separator delimiter line newline new each one per single current cursor resume"
)
_CODE_OWNERS = {
    **dict.fromkeys(
        word_set(
            "verification confirmation auth authentication time otp backup recovery reset login "
            "sms 2fa mfa fa factor passcode activation authorization signin totp unlock door "
            "oauth tan"
        ),
        Telling("otp"),
    ),
    "security": Telling("cvv"),
    "card": Telling("cvv"),
    "pin": Telling("pin"),
    "pass": Telling("password"),
    "access": Telling("otp"),
}
_PAIRS = {
    ("pass", "phrase"): Telling("password"),
    ("pass", "word"): Telling("password"),
    ("pass", "wd"): Telling("password"),
    **{
        (owner, what): Telling("private_key")
        for owner in ("seed", "recovery", "backup", "mnemonic", "wallet", "secret")
        for what in ("phrase", "words", "seed")
    },
    **{
        (owner, what): Telling("phone", identifier=True)
        for owner in ("phone", "mobile", "telephone", "contact", "cell", "fax", "whatsapp", "tel")
        for what in ("number", "no", "num", "nr")
    },
    **dict.fromkeys((("auth", "code"), ("code", "verifier")), Telling("token")),
    **dict.fromkeys((("oauth", "verifier"), ("secret", "id")), Telling("token", False)),
    **dict.fromkeys((("security", "answer"), ("secret", "answer")), Telling("secret")),
    ("maiden", "name"): Telling("secret"),
    **dict.fromkeys(
        (
            ("de", "passe"),
            ("palavra", "passe"),
            ("kata", "sandi"),
            ("mat", "khau"),
            ("de", "acceso"),
        ),
        Telling("password"),
    ),
    ("clave", "secreta"): Telling("secret"),
    ("snmp", "community"): Telling("secret"),
    ("community", "string"): Telling("secret"),
    ("cvc", "code"): Telling("cvv"),
    ("cvv", "code"): Telling("cvv"),
    ("magic", "link"): Telling("token", False),
    ("webhook", "url"): Telling("token", False),
    ("bank", "account"): Telling("account", identifier=True),
    ("cc", "number"): Telling("card", identifier=True),
    ("session", "id"): Telling("session"),
    ("sess", "id"): Telling("session"),
    ("sid", "cookie"): Telling("session"),
    ("access", "id"): Telling("api_key"),
    ("api", "id"): Telling("api_key", False),
    ("connection", "string"): Telling("connection_string", False),
    ("card", "number"): Telling("card", identifier=True),
    ("card", "num"): Telling("card", identifier=True),
    ("card", "no"): Telling("card", identifier=True),
    ("credit", "card"): Telling("card", identifier=True),
    ("debit", "card"): Telling("card", identifier=True),
    ("account", "number"): Telling("account", identifier=True),
    ("account", "no"): Telling("account", identifier=True),
    ("routing", "number"): Telling("account", identifier=True),
    ("passport", "number"): Telling("passport", identifier=True),
    ("security", "number"): Telling("ssn", identifier=True),
    ("amz", "credential"): Telling("credential"),
}
_PASS_OWNERS = word_set(
    "db database user smtp mail email ftp sftp root admin mysql pg postgres redis rabbitmq ssh "
    "vpn wifi login account my proxy http basic imap ldap auth mongo sudo registry docker become "
    "store key require service application app site web bind cert keystore truststore"
)

_LAST_OF_SEVERAL = {last for _, last in _PAIRS} | word_set(
    "key keys token tokens code codes id pass"
)

# Names written as one word: what they end with, and which split name that stands for.
_GLUED = (
    ("password", "password"),
    ("passwd", "password"),
    ("passphrase", "password"),
    ("passwort", "password"),
    ("kennwort", "password"),
    ("passcode", "password"),
    ("apikey", "apikey"),
    ("secretkey", "apikey"),
    ("accesskey", "apikey"),
    ("privatekey", "apikey"),
    ("signingkey", "apikey"),
    ("encryptionkey", "apikey"),
    ("masterkey", "apikey"),
    ("accountkey", "apikey"),
    ("authkey", "apikey"),
    ("oauthkey", "apikey"),
    ("secret", "secret"),
    ("token", "token"),
    ("sessionid", "session"),
    ("sessid", "session"),
    ("pwd", "password"),
    ("credential", "credential"),
    ("credentials", "credential"),
    ("sessionkey", "session"),
)
# Endings that count when the value looks generated, whoever the owner.
_GLUED_WEAK = ("key", "keys", "auth")


def split_name(name: str) -> list[str]:
    """Split a name into its lower-case words: `sharedSecret2` gives shared, secret, 2."""
    return [word.lower() for word in _WORD.findall(name)]


@lru_cache(maxsize=8192)
def telling(name: str) -> Telling | None:
    """Say what a name tells about its value, or None when it tells nothing.

    Args:
        name: A mapping key, header, variable, flag or column name. One of more than 128
            characters is not a name.
    """
    if not name or len(name) > _MAX_NAME or "[REDACTED:" in name:
        return None
    words = split_name(name)
    whole = len(words)
    while len(words) > 1 and (words[-1] in _AFTER or words[-1].isdigit()):
        if words[-1] == "base" and words[-2] != "key":
            break
        words.pop()
    if not words or (len(words) > 1 and words[0] in _ASKING):
        return None
    last = words[-1]
    before = words[-2] if len(words) > 1 else ""
    pair = _PAIRS.get((before, last))
    if pair is not None:
        return pair
    if last in ("key", "keys"):
        if len(words) == 1 and whole > 1:  # key_v2, keyProd
            return Telling("api_key", strong=False)
        return _key(words[:-1])
    if last in ("token", "tokens"):
        return _token(last, words[:-1])
    if last in ("code", "codes"):
        return _CODE_OWNERS.get(before)
    if last == "id" and before == "key" and len(words) > 2:
        return _key(words[:-2])
    if last == "pass" and before in _PASS_OWNERS:
        return Telling("password")
    single = _SINGLE.get(last)
    if single is not None:
        return single
    return _glued(last)


@lru_cache(maxsize=8192)
def may_tell(name: str) -> bool:
    """Tell whether a name that tells nothing by itself may do so with words before it."""
    if len(name) > _MAX_NAME:
        return False
    words = split_name(name)
    while words and (words[-1] in _AFTER or words[-1].isdigit()):
        words.pop()
    if not words:  # it only says more of a noun before it
        return True
    last = words[-1]
    return last in _LAST_OF_SEVERAL or last in _SINGLE or _glued(last) is not None


def _key(owners: list[str]) -> Telling | None:
    if not owners or owners[-1] in _KEY_OTHERS:
        # "lob_pub_api_key" ends in an owner; "public_key" does not, and is public.
        return None
    if owners[-1] in _KEY_OWNERS:
        private = owners[-1] in ("private", "ssh", "rsa", "gpg", "pgp")
        return Telling("private_key" if private else "api_key")
    return Telling("api_key", strong=False)


def _token(last: str, owners: list[str]) -> Telling | None:
    if owners and owners[-1] in TOKEN_OTHERS:
        return None
    if last == "token":
        return Telling("token")
    counted = not owners or owners[-1] not in _KEY_OWNERS | {"refresh", "bearer", "csrf", "id"}
    return None if counted else Telling("token")


def _glued(word: str) -> Telling | None:
    for ending, stands_for in _GLUED:
        if word.endswith(ending):
            owner = word[: -len(ending)]
            return None if owner in TOKEN_OTHERS | _ASKING else _SINGLE[stands_for]
    if word.endswith("pass"):
        return Telling("password") if word[:-4] in _PASS_OWNERS else None
    for ending in _GLUED_WEAK:
        owner = word.removesuffix(ending)
        if owner != word and len(owner) > 1:  # snykkey, where "monkey" holds no such value
            return None if owner in _KEY_OTHERS | _ASKING else Telling("api_key", strong=False)
    return None
