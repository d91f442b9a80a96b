"""Field names that mark their value as sensitive: `password`, `apiKey`, `X-Auth-Token`.

A name is split into words (camel, snake, kebab case). Its last word says what it is, as in English:
a `token_limit` is a limit, an `access_token` is a token. So look-alikes (`tokenizer`, `monkey`,
`password_policy`) need no list of their own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from kp_langchain.redaction.national_ids import label_kind


class SensitiveField(NamedTuple):
    """What a sensitive field name says about its value.

    Attributes:
        kind: The kind of the value, as the placeholder names it.
        is_strong: Whether every value is sensitive, rather than only one that looks random.
        is_identifier: Whether the value identifies a person; such a value is kept at level
            "private".
    """

    kind: str
    is_strong: bool = True
    is_identifier: bool = False

    @property
    def may_hold_fields(self) -> bool:
        """Whether a mapping under this name may also hold ordinary fields with names of their own."""
        return not self.is_strong or self.kind in _KINDS_WITH_FIELDS


_KINDS_WITH_FIELDS = frozenset({"session", "authorization", "token", "card", "pin"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-zß-öø-ɏ]+|[0-9]+|[^\W\d_A-Za-z]+")
_MAX_NAME = 128


def word_set(text: str) -> frozenset[str]:
    """Return the words of `text`, which are separated by white space."""
    return frozenset(text.split())


# Words that may follow the noun without changing its meaning.
_QUALIFIERS = word_set(
    "prod production dev development staging stage test testing qa live sandbox old new current "
    "previous prev backup value val text txt str string raw plain plaintext clear encrypted enc "
    "encoded base64 b64 hex secondary default main v hash hashed digest md5 sha sha1 "
    "sha256 bcrypt field input arg param header again repeat repeated confirmation confirm json "
    "base"
)
# First words that make the name a question about the value, an action on it, or a count.
_PREDICATES = word_set(
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
        SensitiveField("password"),
    ),
    **dict.fromkeys(
        word_set("secret secrets clientsecret passkey kubeconfig 密钥 密鑰"),
        SensitiveField("secret"),
    ),
    **dict.fromkeys(word_set("token jwt bearer jeton 令牌"), SensitiveField("token")),
    **dict.fromkeys(word_set("apikey apikeys apitoken"), SensitiveField("api_key")),
    **dict.fromkeys(word_set("cookie cookies"), SensitiveField("cookie")),
    **dict.fromkeys(
        word_set("session sessid sessionid jsessionid phpsessid aspsessionid xsrf csrf csrftoken"),
        SensitiveField("session"),
    ),
    **dict.fromkeys(word_set("credential credentials creds"), SensitiveField("credential")),
    **dict.fromkeys(word_set("authorization auth"), SensitiveField("authorization")),
    **dict.fromkeys(word_set("otp totp hotp otps 验证码 驗證碼"), SensitiveField("otp")),
    **dict.fromkeys(word_set("pin"), SensitiveField("pin")),
    **dict.fromkeys(word_set("cvv cvv2 cvc cvc2 cvn csc"), SensitiveField("cvv")),
    **dict.fromkeys(word_set("mnemonic"), SensitiveField("private_key")),
    **dict.fromkeys(word_set("pass pw"), SensitiveField("password", False)),
    **dict.fromkeys(
        word_set("sid authentication signature sig sas dsn hmac salt pem"),
        SensitiveField("secret", False),
    ),
    **dict.fromkeys(word_set("privkey sshkey"), SensitiveField("private_key")),
    **dict.fromkeys(
        word_set("phone telephone mobile cellphone tel fax msisdn whatsapp handy telefon telefono"),
        SensitiveField("phone", is_identifier=True),
    ),
    **dict.fromkeys(
        word_set("ccnum ccnumber cardnumber"), SensitiveField("card", is_identifier=True)
    ),
    "passport": SensitiveField("passport", is_identifier=True),
    **dict.fromkeys(word_set("ssn ssns nino"), SensitiveField("ssn", is_identifier=True)),
    **dict.fromkeys(word_set("iban ibans"), SensitiveField("iban", is_identifier=True)),
    **dict.fromkeys(word_set("card"), SensitiveField("card", False, True)),
}

_KEY_OWNERS = word_set(
    "api access secret private encryption encrypt decryption signing sign master ssh account "
    "shared storage deploy deployment auth app application client consumer hmac aes des rsa dsa "
    "gpg pgp tls ssl insert ingest ingestion license licence service integration subscription "
    "webhook function session host admin write server project security token user root vault "
    "wallet seed recovery jwt cookie crypto symmetric wrapping data personal developer dev"
)
_NOT_SECRET_KEYS = word_set(
    "primary foreign sort partition public pub cache idempotency group order object row dict map "
    "hash routing range index unique composite natural surrogate search lookup translation i18n "
    "message config configuration setting registry answer hot short shortcut json yaml s3 bucket "
    "redis dedup deduplication event trace span run job task file path blob column field sorting "
    "join parent n state thread memory store item product first last next prev any each by"
)
MODEL_TOKEN_WORDS = word_set(
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
        SensitiveField("otp"),
    ),
    "security": SensitiveField("cvv"),
    "card": SensitiveField("cvv"),
    "pin": SensitiveField("pin"),
    "pass": SensitiveField("password"),
    "access": SensitiveField("otp"),
}
_PHRASES = {
    ("pass", "phrase"): SensitiveField("password"),
    ("pass", "word"): SensitiveField("password"),
    ("pass", "wd"): SensitiveField("password"),
    **{
        (owner, what): SensitiveField("private_key")
        for owner in ("seed", "recovery", "backup", "mnemonic", "wallet", "secret")
        for what in ("phrase", "words", "seed")
    },
    **{
        (owner, what): SensitiveField("phone", is_identifier=True)
        for owner in ("phone", "mobile", "telephone", "contact", "cell", "fax", "whatsapp", "tel")
        for what in ("number", "no", "num", "nr")
    },
    **dict.fromkeys((("auth", "code"), ("code", "verifier")), SensitiveField("token")),
    **dict.fromkeys((("oauth", "verifier"), ("secret", "id")), SensitiveField("token", False)),
    **dict.fromkeys((("security", "answer"), ("secret", "answer")), SensitiveField("secret")),
    ("maiden", "name"): SensitiveField("secret"),
    **dict.fromkeys(
        (
            ("de", "passe"),
            ("palavra", "passe"),
            ("kata", "sandi"),
            ("mat", "khau"),
            ("de", "acceso"),
        ),
        SensitiveField("password"),
    ),
    ("clave", "secreta"): SensitiveField("secret"),
    ("snmp", "community"): SensitiveField("secret"),
    ("community", "string"): SensitiveField("secret"),
    ("cvc", "code"): SensitiveField("cvv"),
    ("cvv", "code"): SensitiveField("cvv"),
    ("magic", "link"): SensitiveField("token", False),
    ("webhook", "url"): SensitiveField("token", False),
    ("bank", "account"): SensitiveField("account", is_identifier=True),
    ("cc", "number"): SensitiveField("card", is_identifier=True),
    ("session", "id"): SensitiveField("session"),
    ("sess", "id"): SensitiveField("session"),
    ("sid", "cookie"): SensitiveField("session"),
    ("access", "id"): SensitiveField("api_key"),
    ("api", "id"): SensitiveField("api_key", False),
    ("connection", "string"): SensitiveField("connection_string", False),
    ("card", "number"): SensitiveField("card", is_identifier=True),
    ("card", "num"): SensitiveField("card", is_identifier=True),
    ("card", "no"): SensitiveField("card", is_identifier=True),
    ("credit", "card"): SensitiveField("card", is_identifier=True),
    ("debit", "card"): SensitiveField("card", is_identifier=True),
    ("account", "number"): SensitiveField("account", is_identifier=True),
    ("account", "no"): SensitiveField("account", is_identifier=True),
    ("routing", "number"): SensitiveField("account", is_identifier=True),
    ("passport", "number"): SensitiveField("passport", is_identifier=True),
    ("security", "number"): SensitiveField("ssn", is_identifier=True),
    ("amz", "credential"): SensitiveField("credential"),
}
_PASS_OWNERS = word_set(
    "db database user smtp mail email ftp sftp root admin mysql pg postgres redis rabbitmq ssh "
    "vpn wifi login account my proxy http basic imap ldap auth mongo sudo registry docker become "
    "store key require service application app site web bind cert keystore truststore"
)

_PHRASE_ENDS = {last for _, last in _PHRASES} | word_set("key keys token tokens code codes id pass")

# Names written as one word: their ending, and the word of `_SINGLE` with the same meaning.
_COMPOUND_ENDINGS = (
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
# Endings that mark a value as sensitive only if it looks random, whatever word comes before.
_WEAK_ENDINGS = ("key", "keys", "auth")


def split_name(name: str) -> list[str]:
    """Split a name into its lower-case words: `sharedSecret2` gives shared, secret, 2."""
    return [word.lower() for word in _WORD.findall(name)]


@lru_cache(maxsize=8192)
def classify_name(name: str) -> SensitiveField | None:
    """Return what a name says about its value, or None if the name is not sensitive.

    Args:
        name: The name of a mapping key, header, variable, flag or column. A text of more than 128
            characters is not a name.
    """
    if not name or len(name) > _MAX_NAME or "[REDACTED:" in name:
        return None
    words = split_name(name)
    whole = len(words)
    while len(words) > 1 and (words[-1] in _QUALIFIERS or words[-1].isdigit()):
        if words[-1] == "base" and words[-2] != "key":
            break
        words.pop()
    if not words or (len(words) > 1 and words[0] in _PREDICATES):
        return None
    last = words[-1]
    before = words[-2] if len(words) > 1 else ""
    phrase = _PHRASES.get((before, last))
    if phrase is not None:
        return phrase
    identifier = label_kind(name)
    if identifier is not None:
        return SensitiveField(identifier, is_identifier=True)
    if last in ("key", "keys"):
        if len(words) == 1 and whole > 1:  # key_v2, keyProd
            return SensitiveField("api_key", is_strong=False)
        return _classify_key(words[:-1])
    if last in ("token", "tokens"):
        return _classify_token(last, words[:-1])
    if last in ("code", "codes"):
        return _CODE_OWNERS.get(before)
    if last == "id" and before == "key" and len(words) > 2:
        return _classify_key(words[:-2])
    if last == "pass" and before in _PASS_OWNERS:
        return SensitiveField("password")
    single = _SINGLE.get(last)
    if single is not None:
        return single
    return _classify_compound(last)


@lru_cache(maxsize=8192)
def may_end_name(name: str) -> bool:
    """Return whether a name may be the end of a sensitive name of several words.

    Args:
        name: A name that is not sensitive by itself, such as "key" in "API key".
    """
    if len(name) > _MAX_NAME:
        return False
    words = split_name(name)
    while words and (words[-1] in _QUALIFIERS or words[-1].isdigit()):
        words.pop()
    if not words:  # it only qualifies a noun before it
        return True
    last = words[-1]
    return last in _PHRASE_ENDS or last in _SINGLE or _classify_compound(last) is not None


def _classify_key(owners: list[str]) -> SensitiveField | None:
    if not owners or owners[-1] in _NOT_SECRET_KEYS:
        # "lob_pub_api_key" ends in an owner; "public_key" does not, and is public.
        return None
    if owners[-1] in _KEY_OWNERS:
        private = owners[-1] in ("private", "ssh", "rsa", "gpg", "pgp")
        return SensitiveField("private_key" if private else "api_key")
    return SensitiveField("api_key", is_strong=False)


def _classify_token(last: str, owners: list[str]) -> SensitiveField | None:
    if owners and owners[-1] in MODEL_TOKEN_WORDS:
        return None
    if last == "token":
        return SensitiveField("token")
    is_count = not owners or owners[-1] not in _KEY_OWNERS | {"refresh", "bearer", "csrf", "id"}
    return None if is_count else SensitiveField("token")


def _classify_compound(word: str) -> SensitiveField | None:
    for ending, equivalent in _COMPOUND_ENDINGS:
        if word.endswith(ending):
            owner = word[: -len(ending)]
            return None if owner in MODEL_TOKEN_WORDS | _PREDICATES else _SINGLE[equivalent]
    if word.endswith("pass"):
        return SensitiveField("password") if word[:-4] in _PASS_OWNERS else None
    for ending in _WEAK_ENDINGS:
        owner = word.removesuffix(ending)
        if owner != word and len(owner) > 1:  # "snykkey"; a "monkey" has no random value
            return (
                None
                if owner in _NOT_SECRET_KEYS | _PREDICATES
                else SensitiveField("api_key", is_strong=False)
            )
    return None
