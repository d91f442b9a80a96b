"""Secrets without a form of their own: a name, a command or a sentence gives them away."""

from __future__ import annotations

import html
import json
import random
from typing import Any, Final
from urllib.parse import quote

from tests.redaction.drawn import fill, password

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

_PASSWORDS: Final = (
    ("prose", "my password's {s}"),
    ("prose", "PASSWORD {s}"),
    ("prose", "The password for bob is {s}."),
    ("prose", "log in as admin with password {s} please"),
    ("prose", "password is now {s}"),
    ("prose", "Username: bob, Password: {s}"),
    ("prose", "the new passphrase will be '{s}'"),
    ("prose", "I changed the root password to {s}"),
    ("prose", "user bob / pass {s}"),
    ("prose", "credentials: admin / {s}"),
    ("prose", "login: admin, pw: {s}"),
    ("prose", "Your temporary password is: {s}"),
    ("command", "wget --user bob --password {s} https://a.io/x"),
    ("command", "wget --http-password={s} https://a.io/x"),
    ("command", "mongosh -u root -p {s} --authenticationDatabase admin"),
    ("command", "mongodump --username app -p{s} --db x"),
    ("command", "openssl rsa -in k.pem -passin pass:{s} -out o.pem"),
    ("command", "openssl enc -aes-256-cbc -k {s} -in a -out b"),
    ("command", "lftp -u bob,{s} ftp.a.io"),
    ("command", "az login -u bob@a.io -p {s}"),
    ("command", "aws configure set aws_secret_access_key {s}"),
    ("command", "git clone https://{s}@github.com/acme/app.git"),
    ("command", "git clone https://oauth2:{s}@gitlab.com/acme/app.git"),
    ("command", "kubectl create secret generic db --from-literal=password={s}"),
    ("command", "kubectl create secret generic db --from-literal=DB_PASS={s}"),
    ("command", "docker run -e MYSQL_ROOT_PASSWORD={s} -d mysql:8"),
    ("command", "docker login -u bob -p {s} ghcr.io"),
    ("command", "htpasswd -b -c .htpasswd bob {s}"),
    ("command", "echo {s} | sudo -S apt update"),
    ("command", "echo '{s}' | docker login -u bob --password-stdin"),
    ("command", "echo 'bob:{s}' | chpasswd"),
    ("command", "useradd -m -p {s} bob"),
    ("command", "net use Z: \\\\srv\\share /user:bob {s}"),
    ("command", "smbclient //srv/share -U bob%{s}"),
    ("command", "mount -t cifs //srv/x /m -o username=bob,password={s}"),
    ("command", "ldapsearch -D cn=admin,dc=a -w {s} -b dc=a"),
    ("command", "snmpwalk -v3 -u bob -A {s} host"),
    ("command", "ipmitool -H h -U root -P {s} power on"),
    ("command", "curl -u 'bob:{s}' https://a.io"),
    ("command", "curl --user bob:{s} https://a.io"),
    ("command", "curl -d 'user=bob&password={s}' https://a.io/login"),
    ("command", "curl -H 'X-Api-Key: {s}' https://a.io"),
    ("command", "http -a bob:{s} GET https://a.io"),
    ("command", "psql 'host=db user=app password={s} dbname=x'"),
    ("command", "PGPASSWORD='{s}' psql -h db -U app"),
    ("command", "mysql -uroot -p'{s}' shop"),
    ("command", "mysqldump --password={s} shop"),
    ("command", "sqlplus scott/{s}@orcl"),
    ("command", "7z x -p{s} a.zip"),
    ("command", "unzip -P {s} a.zip"),
    ("command", "zip -P {s} a.zip f"),
    ("command", "gpg --batch --passphrase {s} -d f.gpg"),
    ("command", "ansible-playbook s.yml --extra-vars 'ansible_become_pass={s}'"),
    ("command", "keytool -storepass {s} -keystore k.jks"),
    ("command", "rabbitmqctl add_user bob {s}"),
    ("command", "nmcli dev wifi connect Home password {s}"),
    ("command", "net user bob {s} /add"),
    ("command", "winrm -username:bob -password:{s}"),
    ("command", "ConvertTo-SecureString '{s}' -AsPlainText -Force"),
    ("command", "setx API_TOKEN {s}"),
    ("command", "$env:API_TOKEN = '{s}'"),
    ("command", "set DB_PASSWORD={s}"),
    ("command", "heroku config:set SECRET_KEY={s}"),
    ("command", "vault kv put secret/db password={s}"),
    ("command", "sshpass -p '{s}' ssh bob@h"),
    ("file", "ENV DB_PASSWORD={s}"),
    ("file", "ENV DB_PASSWORD {s}"),
    ("file", "ARG NPM_TOKEN={s}"),
    ("file", "    environment:\n      - POSTGRES_PASSWORD={s}\n      - A=1"),
    ("file", "    environment:\n      POSTGRES_PASSWORD: {s}\n"),
    ("file", "db.io:5432:shop:app:{s}"),
    ("file", "machine a.io\n  login bob\n  password {s}\n"),
    ("file", "[client]\nuser=root\npassword={s}\n"),
    ("file", "define('DB_PASSWORD', '{s}');"),
    ("file", 'define( "AUTH_KEY", "{s}" );'),
    ("file", "$db = ['user' => 'app', 'password' => '{s}'];"),
    ("file", "$config['db_password'] = '{s}';"),
    ("file", "{ :user => 'app', :password => '{s}' }"),
    ("file", "password: '{s}', host: 'db'"),
    ("file", 'cfg := Config{User: "app", Password: "{s}"}'),
    ("file", "spring.datasource.password={s}"),
    ("file", "spring:\n  datasource:\n    username: app\n    password: {s}\n"),
    ("file", '<bean password="{s}" user="app"/>'),
    ("file", '<property name="password" value="{s}"/>'),
    ("file", '<add key="ClearTextPassword" value="{s}" />'),
    ("file", "<password>\n  {s}\n</password>"),
    ("file", "<password type='plain'>{s}</password>"),
    ("file", "<ns:Password>{s}</ns:Password>"),
    ("file", "<string name=\"api_key\">{s}</string>"),
    ("file", "<key>password</key>\n<string>{s}</string>"),
    ("file", "<input type='password' name='pw' value='{s}'>"),
    ("file", '<input name="csrf_token" value="{s}" type="hidden">'),
    ("file", '<meta name="csrf-token" content="{s}">'),
    ("file", 'variable "db_password" {{\n  default = "{s}"\n}}'),
    ("file", 'resource "x" "y" {{\n  master_password = "{s}"\n}}'),
    ("file", "password: |\n  {s}\n"),
    ("file", "password: >-\n  {s}\nport: 1"),
    ("file", "passwords:\n  - {s}\n  - other\n"),
    ("file", "{{password: '{s}', // note\n}}"),
    ("file", "password = {s}   # the old one"),
    ("file", "network={{\n  ssid=\"Home\"\n  psk=\"{s}\"\n}}"),
    ("file", "requirepass {s}"),
    ("file", "rootpw {s}"),
    ("file", "BUNDLE_ENTERPRISE__CONTRIBSYS__COM=cafe{s}:beef{s}"),
    ("file", 'SECRET_KEY_BASE: "{s}"'),
    ("code", "conn = psycopg2.connect(host='db', user='app', password='{s}')"),
    ("code", "auth=('bob', '{s}')"),
    ("code", "requests.get(url, auth=HTTPBasicAuth('bob', '{s}'))"),
    ("code", "client.login('bob', '{s}')"),
    ("code", "os.environ['DB_PASSWORD'] = '{s}'"),
    ("code", "process.env.DB_PASSWORD = '{s}';"),
    ("code", "config.set('password', '{s}')"),
    ("code", "headers.append('X-Api-Key', '{s}')"),
    ("code", 'setPassword("{s}")'),
    ("code", "if password == '{s}': ok()"),
    ("code", 'String password = "{s}";'),
    ("code", 'const char *password = "{s}";'),
    ("code", "let password: String = \"{s}\".into();"),
    ("code", "password := `{s}`"),
    ("code", "private static final String API_SECRET = \"{s}\";"),
    ("web", "https://a.io/cb#access_token={s}&state=x"),
    ("web", "username=bob&password={s}&remember=1"),
    ("web", "grant_type=password&username=bob&password={s}"),
    ("web", 'Content-Disposition: form-data; name="password"\r\n\r\n{s}\r\n--b--'),
    ("web", "Set-Cookie: session={s}; Path=/; HttpOnly"),
    ("web", "Cookie: theme=dark; sessionid={s}; lang=de"),
    ("web", "Authorization: Token {s}"),
    ("web", "Proxy-Authorization: Basic Ym9i{s}=="),
    ("web", "X-Vault-Token: {s}"),
    ("web", "authorization: ApiKey {s}"),
    ("web", "Ocp-Apim-Subscription-Key: {s}"),
    ("web", '{{"query": "mutation", "variables": {{"password": "{s}"}}}}'),
    ("web", "https://b.blob.core.windows.net/c/f?sv=2022&sr=b&sp=r&sig={s}%3D"),
    ("web", "https://d1.cloudfront.net/f?Expires=1&Signature={s}__&Key-Pair-Id=APKA"),
    ("web", "https://storage.googleapis.com/b/f?X-Goog-Expires=9&X-Goog-Signature={s}"),
    ("web", "https://b.s3.amazonaws.com/k?X-Amz-Security-Token={s}&X-Amz-Date=1"),
    ("web", "https://b.s3.amazonaws.com/k?AWSAccessKeyId=A&Expires=1&Signature={s}%3D"),
    ("database", "CREATE USER app IDENTIFIED BY '{s}';"),
    ("database", "CREATE USER app IDENTIFIED WITH mysql_native_password BY '{s}';"),
    ("database", "CREATE USER app IDENTIFIED BY \"{s}\""),
    ("database", "CREATE ROLE app WITH LOGIN PASSWORD '{s}';"),
    ("database", "ALTER USER app WITH ENCRYPTED PASSWORD '{s}';"),
    ("database", "ALTER LOGIN sa WITH PASSWORD = N'{s}';"),
    ("database", "SET PASSWORD FOR 'bob'@'h' = PASSWORD('{s}');"),
    ("database", "GRANT ALL ON *.* TO 'a'@'%' IDENTIFIED BY '{s}'"),
    ("database", "UPDATE users SET password = '{s}' WHERE id = 1"),
    ("database", "INSERT INTO users (name, password) VALUES ('bob', '{s}')"),
    ("database", "WHERE username='bob' AND password='{s}'"),
    ("connection", "postgresql://app:{s}@db.io:5432/shop"),
    ("connection", "mysql+pymysql://app:{s}@db/shop"),
    ("connection", "mongodb+srv://app:{s}@c0.mongodb.net/x"),
    ("connection", "amqps://app:{s}@mq.io/vh"),
    ("connection", "redis://default:{s}@cache:6379/0"),
    ("connection", "app:{s}@tcp(db.io:3306)/shop?parseTime=true"),
    ("connection", "jdbc:oracle:thin:app/{s}@db:1521:orcl"),
    ("connection", "jdbc:sqlserver://db;user=app;password={s};encrypt=true"),
    ("connection", "Server=db;Database=x;User Id=app;Password={s};"),
    ("connection", "DRIVER={{x}};SERVER=db;UID=app;PWD={s}"),
    ("connection", "Endpoint=sb://a/;SharedAccessKeyName=r;SharedAccessKey={s}="),
    ("connection", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={s}=="),
    ("connection", "smtp://bob:{s}@mail.a.io:587"),
    ("connection", "ftp://bob:{s}@ftp.a.io/x"),
    ("connection", "sftp://bob:{s}@a.io"),
    ("connection", "//bob:{s}@a.io/x"),
    ("connection", "socks5h://u:{s}@proxy:1080"),
    ("escaped", "&quot;password&quot;:&quot;{s}&quot;"),
    ("escaped", "&#34;password&#34;: &#34;{s}&#34;"),
    ("escaped", "%22password%22%3A%22{q}%22"),
    ("escaped", "%7B%22password%22%3A%20%22{q}%22%7D"),
    ("escaped", "u%3Dbob%26password%3D{q}%26n%3D1"),
    ("escaped", "password\\u003d{s}\\u0026n=1"),
    ("escaped", "\\u0022password\\u0022:\\u0022{s}\\u0022"),
    ("escaped", "password=\x1b[32m{s}\x1b[0m"),
    ("escaped", "\x1b[1mpassword\x1b[0m: {s}"),
    ("escaped", "**Password:** {s}"),
    ("escaped", "**Password**: `{s}`"),
    ("escaped", "Password: **{s}**"),
    ("escaped", "| Password | `{s}` |"),
    ("escaped", "- password → {s}"),
    ("escaped", "<td>Password</td><td>{s}</td>"),
    ("escaped", "<b>Password:</b> {s}<br>"),
)  # fmt: skip

_LANGUAGES: Final = (
    "la contraseña es {s}", "contraseña: {s}", "Contrasena = {s}", "clave de acceso: {s}",
    "le mot de passe est {s}", "Mot de passe : {s}", "mot_de_passe={s}", "motdepasse: {s}",
    "Das Passwort lautet {s}", "Passwort: {s}", "Kennwort: {s}", "Zugangsdaten: bob / {s}",
    "Benutzerpasswort={s}", "senha: {s}", "a senha é {s}", "palavra-passe: {s}", "hasło: {s}",
    "haslo={s}", "wachtwoord: {s}", "lösenord: {s}", "passord: {s}", "adgangskode: {s}",
    "salasana: {s}", "heslo: {s}", "jelszó: {s}", "parolă: {s}", "parola: {s}", "şifre: {s}",
    "sifre={s}", "пароль: {s}", "Пароль — {s}", "парола: {s}", "κωδικός: {s}", "סיסמה: {s}",
    "كلمة المرور: {s}", "密码：{s}", "密码是{s}", "密碼：{s}", "口令：{s}", "パスワード：{s}",
    "パスワードは{s}です", "暗証番号：{s}", "비밀번호: {s}", "비밀번호는 {s}", "mật khẩu: {s}",
    "kata sandi: {s}", "รหัสผ่าน: {s}", "पासवर्ड: {s}", "密钥：{s}", "令牌：{s}", "验证码：{s}",
    "رمز عبور: {s}", "парoль={s}".replace("o", "о"), "API 密钥为 {s}", "clé secrète : {s}",
    "jeton: {s}", "código PIN: {s}",
)  # fmt: skip

_CODES: Final = (
    ("otp", "Your verification code is {d6}"),
    ("otp", "Your Acme code is {d6}. Don't share it."),
    ("otp", "{d6} is your Google verification code"),
    ("otp", "G-{d6} is your Google verification code."),
    ("otp", "Use {d6} as your one-time password"),
    ("otp", "OTP: {d6}"),
    ("otp", "OTP is {d4}"),
    ("otp", "one-time code: {d3} {d3}"),
    ("otp", "2FA code {d6}"),
    ("otp", "enter the code {d6} to sign in"),
    ("otp", '{{"otp": "{d6}"}}'),
    ("otp", "mfa_code={d6}"),
    ("otp", "Your login code: {d5}"),
    ("otp", "verification_code: {A6}"),
    ("otp", "Security code: {d6}"),
    ("pin", "PIN: {d4}"),
    ("pin", "my pin is {d4}"),
    ("pin", "the PIN code is {d4}"),
    ("pin", "pin={d6}"),
    ("cvv", "CVV: {d3}"),
    ("cvv", "cvv {d3}"),
    ("cvv", "exp 12/27 CVC {d3}"),
    ("cvv", "card_cvc={d4}"),
    ("cvv", "the cvv is {d3}"),
    ("answer", "security_answer: {a9}"),
    ("answer", "Security answer: {a9}"),
    ("answer", "mother's maiden name: {a9}"),
)

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
    "my wallet seed: {s}", "seed words: {s}", '{{"mnemonic": "{s}"}}', "secret recovery phrase: {s}",
    "backup phrase = {s}", "Here are the 12 words of my wallet: {s}",
)  # fmt: skip
_BLOCKS: Final = (
    "-----BEGIN RSA PRIVATE KEY-----\n{s}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\\n{s}\\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{s}\n-----END PGP PRIVATE KEY BLOCK-----",
    '---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: "x"\n{s}\n---- END SSH2 ENCRYPTED',
    "PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nPrivate-Lines: 2\n{s}\nPrivate-MAC: ab12",
    "[Interface]\nPrivateKey = {s}=\nAddress = 10.0.0.1/24",
    "PresharedKey = {s}=\n",
    "-----BEGIN PRIVATE KEY-----{s}-----END PRIVATE KEY-----",
    "> -----BEGIN EC PRIVATE KEY-----\n> {s}\n> -----END EC PRIVATE KEY-----",
    "    -----BEGIN RSA PRIVATE KEY-----\n    {s}\n    -----END RSA PRIVATE KEY-----",
    '"-----BEGIN RSA PRIVATE KEY-----\\n" +\n"{s}\\n" +\n"-----END RSA PRIVATE KEY-----"',
    "-----BEGIN RSA PRIVATE KEY-----%0A{s}%0A-----END RSA PRIVATE KEY-----",
    "-----BEGIN OpenVPN Static key V1-----\n{s}\n-----END OpenVPN Static key V1-----",
    "<key><RSAKeyValue><D>{s}=</D></RSAKeyValue></key>",
    '{{"kty": "RSA", "n": "abc", "e": "AQAB", "d": "{s}", "p": "{s}"}}',
)


def _wrapped(text: str, secret: str, source: random.Random) -> Any:
    shape = source.randrange(6)
    if shape == 0:
        return {"role": "tool", "content": text}
    if shape == 1:
        return json.dumps({"input": json.dumps({"text": text})})
    if shape == 2:
        return f"Observation: done\n{text}\n"
    return text


def _written(template: str, secret: str) -> str:
    return (
        template.replace("{{", "{")
        .replace("}}", "}")
        .replace("{s}", secret)
        .replace("{q}", quote(secret))
    )


def _made() -> list[tuple[str, Any, str]]:
    source = random.Random(21)
    cases: list[tuple[str, Any, str]] = []
    for vendor in _VENDORS:
        for _ in range(6):
            secret = fill(source.choice(_VENDOR_VALUES), source)
            name = source.choice(_VENDOR_NAMES).format(v=vendor, V=vendor.upper(), t=vendor.title())
            text = source.choice(_VENDOR_WRITTEN).format(n=name, s=secret)
            cases.append(("vendor_name", _wrapped(text, secret, source), secret))
            cases.append(("vendor_mapping", {"config": {name: secret, "region": "eu"}}, secret))
            secret = fill(source.choice(_VENDOR_VALUES), source)
            text = source.choice(_VENDOR_PROSE).format(v=vendor, t=vendor.title(), s=secret)
            cases.append(("vendor_prose", _wrapped(text, secret, source), secret))
    for family, template in _PASSWORDS:
        for _ in range(4):
            secret = password(source) if family != "web" else fill("{x24}", source)
            if "{s}@github" in template or "=={s}" in template:
                secret = fill("{x40}", source)
            text = _written(template, secret)
            cases.append((family, _wrapped(text, secret, source), secret))
    for template in _LANGUAGES:
        for _ in range(3):
            secret = password(source)
            cases.append(("languages", _wrapped(_written(template, secret), "", source), secret))
    for family, template in _CODES:
        for _ in range(4):
            filled = fill(template.replace("{{", "\x01").replace("}}", "\x02"), source)
            text = filled.replace("\x01", "{").replace("\x02", "}")
            drawn = [word for word in _pieces(template, text)]
            cases.append((family, text, max(drawn, key=len)))
    for template in _SEEDS:
        for count in (12, 24, 12):
            secret = " ".join(source.choices(_SEED_WORDS, k=count))
            cases.append(("seed", _wrapped(_written(template, secret), "", source), secret))
    for template in _BLOCKS:
        for _ in range(3):
            secret = fill("{b43}" if "Key =" in template else "{b64}", source)
            cases.append(("key_block", _written(template, secret), secret))
    return cases


def _pieces(template: str, text: str) -> list[str]:
    """Return what was drawn: the stretches of `text` that its template does not hold."""
    start = (
        template.index("{d")
        if "{d" in template
        else template.index("{A")
        if "{A" in template
        else template.index("{a")
    )
    plain = template.replace("{{", "{")
    start = start - (template[:start].count("{{"))
    del plain
    end_text = template[
        template.rindex("}", 0, len(template) - 2 if template.endswith("}}") else None) + 1 :
    ].replace("}}", "}")
    return [text[start : len(text) - len(end_text)]]


CONTEXT: Final = _made()
_ = html
