"""Which answers to which questions are secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kp_langchain.redaction import redact
from kp_langchain.redaction.questions import secrets_given

_STRONG = "Zk7#mQ2v!pLd"
_KEY = "b3f0a9c2d1e84f7796a5c4d3e2f1a0b9"
_SEED = "ripple sunset velvet orbit canyon ladder mushroom pelican tornado glimpse harvest zebra"

_GIVEN = [
    ("What is the password?", "kestrel, thanks", "kestrel"),
    ("Do you have the password?", "it's kestrel", "kestrel"),
    ("Please provide:\n- Username\n- Password", "bob\nkestrel9", "kestrel9"),
    ("I need two things: your username and your password.", "bob / kestrel9", "kestrel9"),
    ("The page asks for a password. What should I enter?", "kestrel", "kestrel"),
    ("The site sent you a code. Can you read it to me?", "482913", "482913"),
    ("Please type the six digits from your authenticator app.", "482913", "482913"),
    ("Kannst du mir das Passwort geben?", "turmfalke", "turmfalke"),
    ("Podaj kod z SMS-a.", "705318", "705318"),
    ("Please enter the passphrase.", "tiger 7 river stone", "tiger 7 river stone"),
    ("What is your password?", "it is：kestrel", "kestrel"),
    ("Hast du das Passwort?", "turmfalke", "turmfalke"),
    ("Bitte gib mir die Passphrase für den Schlüssel.", "Wolke Eimer Stuhl", "Wolke Eimer Stuhl"),
    ("J'ai besoin de votre mot de passe.", "faucon", "faucon"),
    ("Pouvez-vous me donner le mot de passe ?", "faucon", "faucon"),
    ("¿Me puedes dar la contraseña?", "cernícalo", "cernícalo"),
    ("Mi puoi dare la password?", "gheppio", "gheppio"),
    ("Preciso da sua senha.", "peneireiro", "peneireiro"),
    ("What is the password of your account?", _STRONG, _STRONG),
    ("What is the password of your account?", f"it's `{_STRONG}`, thanks", _STRONG),
    ("I cannot go on without your password.", _STRONG, _STRONG),
    ("What is your password?", "plover83", "plover83"),
    ("What is your password?", "sunflower", "sunflower"),
    ("What is your password?", "Sure, sunflower", "sunflower"),
    ("I need your password to continue.", "sunflower", "sunflower"),
    ("Password:", "sunflower", "sunflower"),
    ("What are your username and password?", "bob / sunflower", "sunflower"),
    ("What are your username and password?", "bob:plover83", "plover83"),
    ("What's the wifi passphrase?", "correct horse battery staple", "correct horse battery staple"),
    ("What is your PIN?", "4471", "4471"),
    ("I sent a 6-digit code to your phone. Please enter it.", "482913", "482913"),
    ("What is the verification code?", "It is 482 913", "482 913"),
    ("Which API key shall I use?", f"use {_KEY} please", _KEY),
    ("Which key?", _KEY, _KEY),
    ("Please share the access token.", "tok_8f3kd92ms01", "tok_8f3kd92ms01"),
    ("Please give me your 12-word recovery phrase.", _SEED, _SEED),
    ("Which password should I set?", "sunflower", "sunflower"),
    ("Could you give me the new admin password?", "sunflower", "sunflower"),
    ("I have your name. Now the password, please.", "sunflower", "sunflower"),
    ("The password is needed next. Please enter it.", "sunflower", "sunflower"),
    ("What is your password? I need it to log in.", "sunflower", "sunflower"),
    ("Please enter your user name and password.", "carla sunflower", "sunflower"),
    ("Geben Sie bitte Benutzername und Passwort ein.", "carla sunflower", "sunflower"),
    ("Please enter the CVV.", "604", "604"),
    ("What is the code on the back of the card?", "604", "604"),
    ("Bitte geben Sie die TAN ein.", "604913", "604913"),
    ("Ich habe Ihnen eine TAN geschickt. Wie lautet sie?", "604913", "604913"),
    ("Welche TAN wurde Ihnen geschickt?", "604913", "604913"),
    ("What is the access code of the door?", "6049", "6049"),
    ("Wie lautet Ihr Passwort?", "sonnenblume", "sonnenblume"),
    ("Was ist Ihr Passwort?", "sonnenblume", "sonnenblume"),
    ("Vad är ditt lösenord?", "solros", "solros"),
    ("Wie lautet Ihr Passwort?", "Es lautet sonnenblume", "sonnenblume"),
    ("Bitte geben Sie Ihre PIN ein.", "4471", "4471"),
    ("Quel est votre mot de passe ?", "tournesol", "tournesol"),
    ("¿Cuál es tu contraseña?", "es girasol", "girasol"),
    ("Qual è la tua password?", "girasole", "girasole"),
    ("Qual é a sua senha?", "girassol", "girassol"),
    ("Wat is je wachtwoord?", "zonnebloem", "zonnebloem"),
    ("Jakie jest Twoje hasło?", "slonecznik7", "slonecznik7"),
    ("Какой у вас пароль?", "подсолнух", "подсолнух"),
    ("您的密码是什么？", "zhangsan88", "zhangsan88"),
    ("パスワードを教えてください。", "himawari7", "himawari7"),
    ("비밀번호가 무엇인가요?", "haebaragi9", "haebaragi9"),
]

_NOT_GIVEN = [
    ("Which user's password should I reset?", "carla91"),
    ("Can you paste the code here?", "line 1234"),
    ("What code do you get?", "5003"),
    ("What is your password?", "no"),
    ("What is your password?", "I do not have one"),
    ("What is your password?", "I don't know"),
    ("What is your password?", "Why do you need it?"),
    ("What is your password?", "never mind"),
    ("What is your password?", "ask Bob"),
    ("What is your password?", "I forgot it, can you reset it for me?"),
    (
        "What is your password?",
        "I would rather log in myself and then tell you what I see there. " * 7,
    ),
    ("Wie lautet Ihr Passwort?", "nein"),
    ("Wie lautet Ihr Passwort?", "Das habe ich nicht"),
    ("¿Cuál es tu contraseña?", "no la tengo"),
    ("Quel est votre mot de passe ?", "je ne sais pas"),
    ("Какой у вас пароль?", "не знаю"),
    ("Do you want to change your password?", "sure"),
    ("Did you forget your password?", "yes"),
    ("Your password was changed. Which city?", "Bern"),
    ("Your password was changed. Anything else?", "Book a flight to Bern"),
    ("Which password manager do you use?", "bitwarden"),
    ("What is the password policy?", "strong"),
    ("What is your postal code?", "8001"),
    ("Which error code do you see?", "4041"),
    ("What is the token limit?", "4096"),
    ("How many rows are there?", "4471"),
    ("I kept your password. What comes next?", "Release api-v4.1 to us-west-2"),
    ("That was the wrong password. What is your user name?", "carla91"),
    ("Password changed. Which ticket?", "OPS-3318"),
    ("Which column has the password?", "pwd_v3"),
    ("Which table holds the password column?", "accounts_v3"),
    ("Which service should get the secret?", "mail-6f5d8c-k1"),
    ("What is the name of the secret?", "DB_SECRET_V3"),
    ("Which variable has the key?", "MAPS_API_KEY3"),
    ("What is your handle, so that I can make a token?", "carla91"),
    ("What user name goes with this password?", "carla91"),
    ("Which pin is the buzzer on?", "GPIO22"),
    ("Please show me the part with the key phrase.", "a slow green turtle"),
    ("Which Redis key?", "session:3318"),
    ("Which foreign key?", "account_id3"),
    ("Please give me the cache key.", "page:3318:body"),
    ("Please enter the public key.", "ssh-ed25519"),
    ("Enter the course code.", "BIO2041"),
    ("What is the access key region?", "us-west-2"),
    ("Please share the code you want me to fix.", "print(3318)"),
    ("Delete key file job_v4.yaml?", "no, delete job_v5.yaml"),
    ("May I run `grep token lib/login_v3.py`?", "edit: lib/login_v4.py"),
    ("Enter the year of the secret party.", "2031"),
    ("Wo ist das Passwort gespeichert?", "vault_v3"),
    ("Welche Datei enthält das Passwort?", "app_v3.yaml"),
    ("Wie heißt die Tabelle mit dem Passwort?", "konten_v3"),
    ("Quel fichier contient le mot de passe ?", "app_v3.yaml"),
    ("¿Qué archivo contiene la contraseña?", "app_v3.yaml"),
    ("Dove si trova la password?", "app_v3.yaml"),
    ("Gdzie jest hasło?", "app_v3.yaml"),
    ("Какой файл содержит пароль?", "app_v3.yaml"),
    ("哪个文件包含密码？", "app_v3.yaml"),
    ("Which key shall I use?", "the one at www.my-site-234.example/random"),
    ("What is your name?", "Bob"),
    ("", "sunflower"),
]


@pytest.mark.parametrize(("question", "answer", "secret"), _GIVEN)
def test_an_answer_to_a_question_for_a_secret_gives_it(
    question: str, answer: str, secret: str
) -> None:
    assert secret in [one.text for one in secrets_given(question, answer)]


@pytest.mark.parametrize(("question", "answer"), _NOT_GIVEN)
def test_other_answers_give_none(question: str, answer: str) -> None:
    assert secrets_given(question, answer) == []


@pytest.mark.parametrize(
    ("message", "answer", "clean"),
    [
        ({"role": "assistant", "content": "Please enter the PIN."}, "5937", "[REDACTED:pin]"),
        ({"type": "ai", "content": "Which API key?"}, f"use {_KEY}", "use [REDACTED:api_key]"),
        ({"from": "gpt", "value": "Your password?"}, "sunflower", "[REDACTED:password]"),
        ({"role": "tool", "content": "Please enter the PIN."}, "5937", "5937"),
        ({"role": "user", "content": "Please enter the PIN."}, "5937", "5937"),
        ({"role": "assistant", "content": "Please enter the year."}, "5937", "5937"),
    ],
)
def test_a_log_of_a_chat_is_read_as_questions_and_answers(
    message: dict[str, str], answer: str, clean: str
) -> None:
    author, text = message
    chat = [message, {author: "user", text: answer}]
    expected = [message, {author: "user", text: clean}]
    assert redact(chat).value == expected
    assert redact({"log": chat}).value == {"log": expected}
    assert redact(f"log: {json.dumps(chat)}").value == f"log: {json.dumps(expected)}"
    assert redact(expected).value == expected


def test_a_message_of_two_lists_is_read_in_each() -> None:
    question = {"role": "assistant", "content": "Please enter the PIN."}
    answer = {"role": "user", "content": "5937"}
    clean = redact({"last": [answer], "chat": [question, answer]}).value
    assert clean["chat"][1]["content"] == "[REDACTED:pin]"


@pytest.mark.parametrize("write", [lambda value: value, json.dumps])
def test_a_chat_under_the_name_of_a_secret_goes_as_a_whole(write: Callable[[Any], Any]) -> None:
    question = {"role": "assistant", "content": "What is the password?"}
    answer = {"role": "user", "content": "it's sunflower-Tulpe99 at home"}
    clean = redact(write({"password": [question, answer]})).value
    assert "at home" not in str(clean)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (
            "Agent : Quel est le code reçu ?\nClient : 593718\nAgent : Merci.",
            'Agent : Quel est le code reçu ?\nClient : "[REDACTED:otp]"\nAgent : Merci.',
        ),
        (
            f"[10:02] bot: ¿Cuál es la contraseña?\n[10:03] ana: {_STRONG}",
            "[10:02] bot: ¿Cuál es la contraseña?\n[10:03] ana: [REDACTED:password]",
        ),
        (
            f"客服：请问密码是多少？\n用户：{_STRONG}",
            "客服：请问密码是多少？\n用户：[REDACTED:password]",
        ),
        (
            "bot> Which passphrase?\nme> tiger river stone lamp",
            "bot> Which passphrase?\nme> [REDACTED:password]",
        ),
        (
            "Agent: Please enter the PIN.\nClient: 5937",
            'Agent: Please enter the PIN.\nClient: "[REDACTED:pin]"',
        ),
        ("Agent: Please enter the PIN.\nAgent: 5937", None),
        ("Agent: What is the year?\nClient: 2031", "Agent: What is the year?\nClient: 2031"),
        ("enter_password: Please enter your password\ncancel_label: Abort", None),
        ("code_prompt: Please enter the code.\nport: 8080", None),
        ("Prompt: Please enter your password\nLabel: Abort", None),
        ("Agent: Which file has the password?\nBob: app_v3.yaml", None),
    ],
)
def test_a_transcript_is_read_as_questions_and_answers(text: str, clean: str | None) -> None:
    assert redact(text).value == (clean or text)
