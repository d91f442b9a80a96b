"""What must stay: names that only look telling, and texts that only look sensitive."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from tests.redaction.drawn import fill

# name, values separated by blanks (see `fill`)
_LOOK_ALIKE_NAMES: Final = (
    (
        "max_tokens tokens token_count num_tokens tokens_used prompt_tokens total_tokens "
        "max_completion_tokens token_limit token_budget tokens_per_minute cached_tokens "
        "reasoning_tokens token_usage output_token_details audio_tokens tokensUsed",
        "4096 128 17",
    ),
    (
        "tokenizer tokenizer_name tokenization token_type token_counter token_splitter tokenizer_config "
        "special_tokens_map",
        "cl100k_base basic spm-v3",
    ),
    (
        "author authors author_id coauthor authority authored_by authorship authentic",
        "jane acme-bot 7",
    ),
    (
        "keyboard keyboards keyword keywords key_points keynote keyframe keychain_name keystroke_ms "
        "keyspace",
        "qwerty two 31",
    ),
    (
        "primary_key foreign_key sort_key partition_key hash_key cache_key group_key public_key_type "
        "idempotency_key object_key row_key dedup_key i18n_key routing_key join_key map_key key_order "
        "key_count primaryKey sortKey",
        "order_id tenant#7 orders/2024/11/part-0001.parquet",
    ),
    (
        "password_policy password_length passwordless password_strength password_expires_at "
        "password_required has_password password_changed password_reset_url password_min_length "
        "is_password_protected password_hint_shown show_password forgot_password passwordMinLength",
        "strong 12 2024-11-02",
    ),
    (
        "passenger passengers passengerName bypass compass compassHeading passage passing_score "
        "passed pass_rate passive trespass encompass passthrough passport_country",
        "north 44 0.92",
    ),
    ("monkey donkey turkey whiskey hockey jockey keyed hotkey_label smokey lackey", "red 3"),
    (
        "secretary secretariat secretion secret_santa secret_name secrets_count is_secret "
        "secret_version secretsManagerArn",
        "office latest 3",
    ),
    (
        "session_count session_duration session_length session_timeout sessions_total session_type "
        "session_start assessed possession obsession sessionDurationMs",
        "5400 short 2024-11-02",
    ),
    (
        "auth_method auth_url auth_type authentication_method auth_required auth_provider auth_enabled "
        "oauth_provider authorization_endpoint authorized authorizationUrl auth_flow",
        "oidc github https://login.acme.io/authorize",
    ),
    (
        "cookie_banner cookie_count cookie_policy cookies_enabled cookie_consent cookieconsent "
        "cookiecutter cookie_domain",
        "shown 4 acme.io",
    ),
    (
        "credential_type credential_provider credentials_path credential_count accredited incredible",
        "service_account vault 2",
    ),
    (
        "pinned pin_count pinning spinner opinion shipping pingback pinterest pin_color ping_ms "
        "pinned_at",
        "yes 12 blue",
    ),
    (
        "signature_of sig_figs signal significance design assigned signed_at signup_source "
        "signature_algorithm",
        "f(x) 3 RS256",
    ),
    (
        "card_type cardinality cardboard card_title discard card_count card_brand scorecard wildcard "
        "card_component cards",
        "visa 12 Summary",
    ),
    (
        "code code_review status_code zip_code country_code error_code exit_code language_code "
        "postal_code area_code code_block codec currency_code http_code source_code product_code "
        "countryCode statusCode",
        "200 DE EUR E1021",
    ),
    (
        "key_name key_id_prefix api_key_name api_key_env key_type key_vault_name key_size key_path "
        "ssh_key_path access_key_rotation_days public_key_path api_key_count",
        "main 2048 prod-eu",
    ),
    (
        "account_type account_name account_status accounting account_manager accountability",
        "premium active sales",
    ),
    ("access access_level accessibility accessed_at access_mode accessory access_count", "read 3"),
    ("otp_enabled otp_length otpauth_issuer top option adopted cpu_hotplug", "true 6 b"),
    (
        "connection connection_count connection_timeout connections connection_pool_size",
        "5 30 open",
    ),
    ("phrase phrases catch_phrase phrase_count rephrase", "hello 3"),
    ("social social_links social_media security security_level security_group", "x high sg-web"),
    ("seed random_seed seeds seeded seed_value", "42 1337 7"),
    ("salt_and_pepper_noise hash_algorithm checksum_type nonce_length", "0.1 sha256 12"),
)
_LOOK_ALIKE_WRITTEN: Final = (
    "{n}={s}", "{n}: {s}", "A=1\n{n}={s}\nB=2", '{{"{n}": "{s}"}}', "run({n}='{s}', n=1)",
    "--{n} {s}", "https://a.io/x?{n}={s}&p=2", "the {n} is {s}",
)  # fmt: skip

_TEXTS: Final = (
    ("assorted", 'pod api-7f9c8d6b5-x2k9p is Running | image: nginx:1.25.3@sha256:{h64} | {"finish_reason":"stop","id":"chatcmpl-{x29}"}'),
    ("assorted", "thread_{x24} run_{x24} | openai response resp_{h50} | checkpoint_id: 1ef{h5}-{h4}-6{h3}-bfff-{h12}"),
    ("assorted", "ls -la\ntotal 48\ndrwxr-xr-x 2 root root 4096 Jan 1 x | Elapsed: 00:01:23.456 | ratio 16:9, 4:3, 1920x1080"),
    ("assorted", "The tokens are split by spaces | Use a session to group requests | Set the key to a unique value | Press any key to continue"),
    ("assorted", 'key: string, value: number | keys: [a, b, c] | {"key": "name", "op": "eq", "value": "Bob"} | sort by key desc'),
    ("assorted", "password reset email sent to user | Passwords do not match | Incorrect password. Try again. | password must not be empty"),
    ("assorted", 'Your password expires in 14 days | The password field is required | type="password" placeholder="Password" | passwords are hashed with bcrypt'),
    ("assorted", "auth: none | auth = null | authorization: optional | session: closed | session = requests.Session()"),
    ("assorted", 'async with session.get(url) as resp: | token = request.headers.get("X-Token") | if token.type == "NAME": | tokens = text.split()'),
    ("assorted", 'secret = os.environ["SECRET"] | api_key = config["api_key"] | key = f"user:{user_id}" | const key = `${a}-${b}`'),
    ("assorted", 'def login(username, password): | login(username, password) | User(name="Bob", password=None) | password: <hidden>'),
    ("assorted", "card: 3 of spades | Card title goes here | account: savings | account balance: $4,512.33 | pin the message"),
    ("assorted", "code: 42 | error code: E1234 | exit code 137 | promo code SAVE20 | zip code 94107-1234 | country code: +1"),
    ("assorted", "step 123456 of 500000 | loss 0.1234567 at 1234567 | seed: 1234567890 | epoch 1718068370 | timestamp=1718068370.510"),
    ("assorted", "2024-11-21 01:29:33.123456789+00:00 | 20241121T012933Z | Nov 21 01:29:33 host app[1234]: | 21/Nov/2024:01:29:33 +0000"),
    ("assorted", "order 1234-5678-9012 shipped | invoice 2024-001234 | tracking 9400 1118 9956 1234 5678 90 | flight UA 1234 at 10:45 | ISBN-13: 978-0-306-40615-7"),
    ("assorted", "GTIN 00012345600012 | UPC 036000291452 | VIN 1HGCM82633A004352 | patent US 7,123,456 B2 | RFC 9110 section 15.5.2"),
    ("assorted", "price 1.234.567,89 EUR | 1,234,567.89 | 12 345 678 | latitude 37.774929, longitude -122.419416 | [-0.123, 1.456e-05, 3.0]"),
    ("assorted", "matrix [[1, 2, 3], [4, 5, 6]] | range 0-9999 | pages 100-150 | score 21-19 21-17 | 2-1-0 | 3.14159265358979"),
    ("assorted", "git checkout -b feature/token-refresh | fix(auth): handle null session (#1234) | Merge pull request #4567 from acme/key-rotation"),
    ("assorted", "npm ERR! code E404 | pip install tokenizers==0.15.2 | torch 2.13.0+cpu | Python 3.11.7 (main, Dec  5 2023) | CUDA 12.4.131"),
    ("assorted", "/usr/local/lib/python3.11/site-packages/jwt/api_jwt.py | /etc/ssl/private/ | ~/.ssh/id_ed25519.pub | /home/ | /Users/Shared"),
    ("assorted", "https://example.com/reset-password?step=2 | https://a.io/oauth/authorize?response_type=code&scope=openid | https://x.io/#section-1.2.3"),
    ("assorted", "SELECT * FROM tokens WHERE id = 5 | ALTER TABLE users ADD COLUMN password VARCHAR(255) | INSERT INTO logs (id, msg) VALUES (1, 'ok')"),
    ("assorted", "ssh-rsa AAAAB3NzaC1yc2E{b340} user | -----BEGIN CERTIFICATE-----\nMIID{b60}\n-----END CERTIFICATE----- | -----BEGIN PUBLIC KEY-----"),
    ("assorted", "color: #1a2b3c; background: rgb(10, 20, 30) | U+1F600 | \\u00e9 | &nbsp; | %20 | 0xdeadbeef | deadbeefcafebabe"),
    ("assorted", '{"type":"object","properties":{"password":{"type":"string"},"token":{"type":"string","description":"API token"}}}'),
    ("assorted", '{"name":"get_token_price","arguments":{"token":"ETH"}} | token symbol: USDC | ERC-20 token transfer | swap 1.5 ETH for token'),
    ("assorted", "a session on cookies and baking | cookie recipe: 200g flour | The cookie jar | chocolate chip cookies: 24 pieces | secret ingredient: cinnamon"),
    ("assorted", "the key to success is persistence | The key is small and silver | keys: house, car, office | a piano key is 22mm wide | key findings: 3"),
    ("assorted", "SSN is required | card number is required | enter your phone number | phone: + | IBAN missing | email: n/a | @here deploy v1.2.3"),
    ("assorted", "1.1.1.1.1 | version 10.0.19045.3693 | Windows NT 10.0; Win64 | Safari/605.1.15 | AppleWebKit/537.36 | v2.0.0.1 | build 1.0.0.12"),
    ("assorted", "Set password to at least 12 characters | The new password was accepted | password: required, min 8 | Reset your password at https://a.io/reset | pass the key as an argument"),
    ("assorted", "pass: 12, fail: 3 | PASS test_login (0.12s) | passed 25 of 30 | token limit exceeded: 8192 | Authorization succeeded for user 42 | auth module v2 loaded"),
    ("assorted", 'session duration: 35 min | key=value pairs | key -> value | primary key (id) | "key": 5 | keyCode: 13 | keyboard: US | shift key pressed | API key rotation policy'),
    ("assorted", 'The tokenization step took 5s | token 5 of 100 | next token: " the" | token ids: [101, 2023, 102] | logprob of token \'yes\' is -0.12 | bearer plants | Basic training'),
    ("assorted", "signature: def f(x: int) -> int | signature mismatch at line 20 | cookie consent accepted | accept cookies to continue | secretary@ | secret sauce | keys()[0]"),
    ("assorted", "row 1234567890 updated | user 98765432 logged in | ticket #10023456 | PR-20241121-001 | 2024-11-21 vs 2023-11-20 | 08:30-17:30 | 9am-5pm | 1-800-FLOWERS"),
    ("assorted", 'GPU 0: 24564MiB | load 0.52 0.58 0.59 | eth0: mtu 1500 | 127.0.0.1 | v10.2.3.4-beta | php 8.3.0.1 | sha1:{h40} | etag "{h32}-5" | cursor: {x24} | nextPageToken: {x24}'),
    ("assorted", "request_id={U} | correlation-id: {U} | trace {h32} span {h16} | build #20241121.3 | layer {h12}: Pull complete | digest: sha256:{h64} size: 1234 | rev {h7}"),
    ("assorted", "https://s3.amazonaws.com/b/{U}/f.png | https://cdn.io/a.{h20}.js | data-v-{h8} | css-1{l5}-Button | k8s-{l5}-{l5} | node-{h8} | ip route via | inode 12345678"),
    ("assorted", "df -h /home | cd /home && ls | /home/runner/work | C:\\Program Files\\x | \\\\server\\share\\x | ~/Downloads | /Users/ | $HOME/.config | %APPDATA%\\x"),
    ("assorted", "phone number required | call 911 | text 'STOP' to 12345 | dial 0 | press 1 | extension 204 | call stack: 12 frames | tel aviv | cell A1:B2 | fax not available"),
    ("assorted", "latency p99 123.456 ms | 12.34.56 | 1.2.3 | 10.15 macOS | ratio 3:2:1 | aspect 16:9 | 00:1A | ab:cd | time 12:34:56 | a::b | ::before | 1:: | fe80 prefix"),
    ("assorted", "card declined | 4 cards dealt | card 1234 | IBAN format: DE + 20 digits | account 12345 | acct mgr | SSN format XXX-XX-XXXX | email@ | @user | user@host | a @ b"),
    ("uuid", "{U} | run {U} done | id={U} | urn:uuid:{U} | kp:trace:{U} | kp:agent:planner-{d2}"),
    ("run_ids", "call_{x24} | toolu_01{x22} | chatcmpl-{x29} | msg_01{x22} | run-{U} | resp_{h48}"),
    ("run_ids", "req_011C{x20} | asst_{x24} | thread_{x24} | step_{x24} | file-{x22} | lc_run--{U}"),
    ("run_ids", "fc_{h48} | rs_{h48} | chatcmpl-tool-{h32} | evt_1{x23} | cus_{x14} | pi_3{x23}"),
    ("run_ids", "tool_call_id: call_{x24} | trace_id={h32} | span_id={h16} | X-Request-Id: {U}"),
    ("hashes", "{h40} | {h64} | {h32} | sha256:{h64} | commit {h40} | index {h7}..{h7} 100644"),
    ("hashes", "md5sum: {h32}  file.bin | etag: \"{h32}\" | ETag: W/\"{h40}\" | blake3={h64}"),
    ("hashes", "integrity sha512-{b86}== | sha256-{b43}= | --hash=sha256:{h64} | @sha256:{h64}"),
    ("hashes", "image: acme/api:prod-{h40} | app-{h40}.tar.gz | main.{h20}.chunk.js | v1-{h12}"),
    ("hashes", "checksum {h64} ok | Merge {h7} into {h7} | blob {h40} | git show {h10}^:a.py"),
    ("cloud_ids", "i-0{h16} | vpc-0{h16} | subnet-{h17} | ami-0{h16} | arn:aws:s3:::bucket-{d12}"),
    ("cloud_ids", "arn:aws:iam::{d12}:role/app | projects/p/locations/eu/jobs/{d18} | pod-{l10}-{l5}"),
    ("cloud_ids", "api-7d9f{h6}-{l5} 1/1 Running | sg-0{h16} | eni-{h17} | i18n-key-{d3}"),
    ("times", "2024-02-1{d1}T01:15:36.{d6}Z | 2024-11-2{d1} 10:22:33,{d3} | 17{d8} | 17{d11}"),
    ("times", "Sat, 21 Nov 2026 01:{d2}:07 GMT | 20241{d1}12T101112Z | 12/1{d1}/2024 | 10:22:33.{d6}"),
    ("times", "took 0:00:0{d1}.{d6} | [2026-11-21 01:0{d1}:07 +0000] | 2024-W3{d1}-2 | 01:1{d1}:36"),
    ("versions", "v1.{d2}.{d1}-rc.1 | python 3.11.{d2} | numpy==1.26.{d1} | 20.18.{d1}+build.{d3}"),
    ("versions", "version 1.{d1}.3.4 | Version: 10.0.{d1}.1 | v4.{d1}.0.1 | driver 535.1{d1}.03.02"),
    ("versions", "Chrome/120.0.60{d2}.71 | release 2.{d1}.1.0 | FileVersion=6.1.76{d2}.17514"),
    ("versions", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/12{d1}.0.0.0 Safari/537.36"),
    ("orders", "#W{d7} | order {d8} | INV-2024-{d5} | ticket PROJ-{d4} | SKU {d10} | PO{d6} | RMA-{d8}"),
    ("orders", "tracking 1Z{A16} | booking {A6} | part no. {d4}-{d3}-{d2} | case {d8} | lot {d5}"),
    ("orders", "978-3-16-14{d4}-0 | ISBN 97831614{d5} | EAN 40{d11} | ISSN {d4}-{d4} | doi:10.{d4}/x.{d5}"),
    ("numbers", "{d5} | 3.14159{d9} | -{d4}.{d12} | 1,{d3},{d3}.00 | $1{d1},{d3}.50 | 1 {d3} {d3} | 1e-{d1}"),
    ("numbers", "52.5{d5}, 13.4{d5} | 40.7{d4} N 74.0{d4} W | 1{d1}.5 MB/s | {d3}x{d3} px | {d2}%"),
    ("numbers", "x = {d3} + {d4} * ({d2} - {d1}) | [{d3}, {d3}, {d3}] | {d1}-{d2}, {d2}:{d2} | 1/{d3}"),
    ("numbers", "rows {d5}-{d5} | pages {d3}-{d3} | port 80{d2} | pid {d5} | {d9} bytes | {d6} of {d7}"),
    ("numbers", "id {d10} | user 1{d9} | total: {d7} | 0x{h8} | 0b10{d1} | 1_000_{d3} | {d4}/{d4}"),
    ("local", "127.0.0.1:80{d2} | 0.0.0.0 | ::1 | ping 203.0.113.9 | 192.0.2.1 or 198.51.100.7 | localhost:3{d3} | http://[::1]:80{d2}/x | 255.255.255.0"),
    ("colours", "#1a2b3c | #fff | rgba(1, 2, 3, 0.4) | 0xff{h6} | color: #{h6};"),
    ("models", "gpt-4o-2024-08-06 | claude-3-5-sonnet-20241022 | text-embedding-3-large | o{d1}-mini"),
    ("models", "meta-llama/Llama-3.1-70B-Instruct | gemini-1.5-pro-002 | ft:gpt-4o-mini:acme::{x8}"),
    ("models", "sentence-transformers/all-MiniLM-L6-v2 | mistral-large-2407 | us.anthropic.claude-v2:1"),
    ("paths", "/usr/lib/python3.11/json/decoder.py:{d2} | C:\\Windows\\System32\\x.dll | /root/.cache"),
    ("paths", "/home | /home/ | C:\\Users\\Public\\x | /etc/passwd | ~/.ssh/config | ./src/{a6}/mod.rs"),
    ("paths", "s3://bucket/key/part-{d5}.parquet | gs://b/o/{U}.json | file:///etc/hosts | /tmp/tmp{l8}"),
    ("urls", "https://example.com/a/{d5}?page=2&sort=key | https://docs.io/auth/tokens#password"),
    ("urls", "https://github.com/acme/app/commit/{h40} | https://a.io/home/about | git@github.com:a/b.git"),
    ("urls", "https://arxiv.org/abs/2{d3}.{d5} | https://youtu.be/{x11} | postgresql://localhost/db"),
    ("urls", "https://medium.com/@jane/post-{h12} | npm i @types/node@20.{d1}.1 | react@18.2.0"),
    ("base64", "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA{b120}== | {b120}"),
    ("code", "token = tokenizer.encode(text) | def get_password(self) -> str: | if not token: return None"),
    ("code", "password = getpass.getpass() | self.token = token | password: str | api_key: str | None = None"),
    ("code", "for key, value in items: cache[key] = value | key = lambda row: row[0] | const token = await getToken()"),
    ("code", "session = Session() | with requests.Session() as session: | auth = HTTPBasicAuth(user, password)"),
    ("code", "secrets.token_hex(16) | os.environ['API_KEY'] | process.env.TOKEN | ${{ secrets.GITHUB_TOKEN }}"),
    ("code", "SELECT key, token FROM t WHERE token IS NULL | password VARCHAR(255) NOT NULL | PRIMARY KEY (id)"),
    ("code", "import secrets, token | from auth import login | raise AuthError('invalid token') | git reset HEAD@{1}"),
    ("code", "std::vector<int>::iterator | a::b::c() | x[1:2:3] | {'key': 'value'} | @app.route('/login')"),
    ("code", "function signature(a, b) { return a + b; } | password?: string; | token: Token; | key={item.id}"),
    ("code", "<input type=\"password\" name=\"password\"> | <label for=\"password\">Password</label> | type: password"),
    ("code", "--password-stdin | -p 8080:80 | mkdir -p /var/data/x | ssh -p 2222 host | curl -u $USER:$PASS x"),
    ("code", "docker run -p 80:80 -e DEBUG=1 acme/app:1.2 | cp -p a b | ps -p 4242 | psql -p 5432 -U app"),
    ("code", "token_pattern=r'\\b\\w+\\b' | stop_token_ids=[1, 2] | pad_token='<pad>' | eos_token_id: 50256"),
    ("prose", "Token usage: 512 prompt, 42 completion. | I forgot my password, can you reset it?"),
    ("prose", "The secret is to use fresh basil. | The key is under the mat. | The key is to start early."),
    ("prose", "The password must contain 8 characters. | password reset link sent | Password: required field"),
    ("prose", "A session is a series of requests. | Session 3: Introduction | Auth: see the docs | Token: a unit of text"),
    ("prose", "The access code of ethics matters. | PIN numbers are 4 digits long. | The pass is closed in winter."),
    ("prose", "Your session has expired. | Cookies: we use them. | The card is blue. | Security: we take it seriously."),
    ("prose", "Error code 1234 returned. | status code: 404 | exit code 137 | the zip code is 94107 | code 200 OK"),
    ("prose", "Chapter key: C major. | Key: value pairs are stored. | key: the important one | Keys: 12 found"),
    ("prose", "密码不能为空 | 请输入密码。 | 密码长度至少8位 | パスワードを忘れた場合 | 비밀번호를 잊으셨나요? | Забыли пароль?"),
    ("prose", "¿Olvidaste tu contraseña? | Mot de passe oublié ? | Das Passwort ist zu kurz. | La clave es la paciencia."),
    ("prose", "Ten people called 3 times on day 14. | Call me at 5 pm. | room 1204 | flight LH 4711 | Gate 22"),
    ("prose", "He scored 45-12-33. | 10-20-30 rule | call +1 for help | phone: none | tel: n/a | a 555 timber"),
    ("prose", "meet @ 5 | @channel please | price @ $5.00 each | a@b | user@localhost | foo@bar | 1@2"),
    ("prose", "The basic authentication flow | Bearer of bad news | bearer tokens expire | basic auth is required"),
    ("prose", "The verification code was sent. | Enter the code below | your code looks good | review the code 3 times"),
    ("prose", "abandon all hope, able and willing | the seed phrase is never shared | mnemonic devices help memory"),
    ("prose", "PRIVATE KEY handling is described below. | BEGIN CERTIFICATE | -----BEGIN CERTIFICATE-----"),
    ("logs", "INFO 10.5s worker=7 status=200 dur=12.5ms | 2024-08-06T10:22:33Z level=info msg=\"token refreshed\""),
    ("logs", "auth=ok session=new user=anonymous | key=orders:2024:11 hit=true | cache key users:{d4} missed"),
    ("logs", "Connection refused: [Errno 111] | login failed: invalid password | 401 Unauthorized: token expired"),
    ("json", '{"key": "value", "token_count": 5} | {"keys": ["a", "b"], "sort_key": "name"} | {"code": 200}'),
    ("json", '{"id": "{U}", "object": "chat.completion", "usage": {"total_tokens": 55}} | {"etag": "{h32}"}'),
    ("json", '{"key": "users/{d4}/avatar.png"} | {"Key": "data/{h32}.json", "Size": {d4}} | {"name": "key", "value": "x"}'),
    ("json", '{"name": "password", "type": "string", "description": "The user password"} | {"required": ["password", "token"]}'),
    ("placeholders", "password=<your password> | api_key=YOUR_API_KEY | token: *** | TOKEN=${TOKEN} | key: xxxx"),
    ("placeholders", "sk-... | Bearer <token> | password: ******** | secret=[REDACTED] | API_KEY=$API_KEY | sk-xxxxxxxx"),
)  # fmt: skip


def _look_alikes() -> list[tuple[str, Any]]:
    source = random.Random(22)
    cases: list[tuple[str, Any]] = []
    for names, values in _LOOK_ALIKE_NAMES:
        for name in names.split():
            family = names.split()[0]
            value = source.choice(values.split())
            cases += [(family, {"args": {name: value}}), (family, [(name, value), ("a", "b")])]
            cases += [
                (family, written.format(n=name, s=source.choice(values.split())))
                for written in source.sample(_LOOK_ALIKE_WRITTEN, 4)
            ]
    return cases


def _texts() -> list[tuple[str, Any]]:
    source = random.Random(23)
    cases: list[tuple[str, Any]] = []
    for family, templates in _TEXTS:
        for template in templates.split(" | "):
            for around in ("{}", "Step 3 returned {} and went on."):
                text = around.replace("{}", fill(template, source))
                cases.append((family, text))
            text = fill(template, source)
            cases += [
                (family, {"content": text, "n": 1}),
                (family, json.dumps({"input": json.dumps({"q": text})})),
            ]
    return cases


LOOKALIKES: Final = _look_alikes()
BENIGN: Final = _texts()
