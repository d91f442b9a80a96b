"""Notations that stand a name next to its value, and what only looks like one."""

from __future__ import annotations

from typing import Any, Final

FOUND: Final[dict[str, tuple[str, ...]]] = {
    "pairs of keys": (
        "aws cloudformation create-stack --parameters ParameterKey=Pw,ParameterValue=x "
        'ParameterKey="DBPassword",ParameterValue="{p}"',
        "- ParameterKey: MasterUserPassword\n  ParameterValue: {p}\n",
        "- VariableName: API_TOKEN\n  VariableValue: {x32}\n",
        "AKIA{A16}:{b40}",
        "ci,AKIA{A16},{b40}\n",
        "the keys are ASIA{A16} and {b40}",
    ),
    "settings": (
        "[b2]\ntype = b2\naccount = 0012ab\nkey = {x31}\n",
        "[az]\ntype = azureblob\naccount = shop\nkey = {x86}==\n",
        "erl -name a@host -setcookie {x20}",
        "GOOGLE_CREDENTIALS_B64={x60}",
        "KEYSTORE_BASE64: {x80}",
        "AZDO_PAT={l52}",
        "WIF: 5{z50}",
    ),
    "connections": (
        "DRIVER={MySQL};UID=bob;Pwd={{p}};Option=3",
        "postgres%3A%2F%2Fapp%3A{x16}%40db%2Fshop",
        "next=https%3A%2F%2Fbob%3A{x16}%40a.io%2F",
        "https://{h32}:x@sentry.a.io/12",
        "https://{x24}:@api.a.io/v1",
        "https://{x40}:x-oauth-basic@github.com/a/b.git",
    ),
    "web": (
        "Cookie: theme=dark; remember_web_59ba={x40}",
        "Set-Cookie: ring={x22}; Max-Age=3600; SameSite=Lax",
        "Cookie: li_at={u60}; lang=en",
        "Cookie: rack={x40}",
        "curl -b 'ring={x32}; theme=dark' https://a.io",
        "https://maps.a.io/geo?key={h31}&q=x",
        "GET /v1/now.json?q=a&key={h32} HTTP/1.1",
        "https://app.a.io/cb?code=x1&state={x24}",
        "http://localhost:8000/login?state={u32}&scope=openid",
        "POST /acs\nSAMLResponse={b120}",
        '<input type="hidden" name="SAMLResponse" value="{b120}"/>',
        "RelayState={x30}",
    ),
    "printed by PHP": (
        "Array\n(\n    [host] => db\n    [password] => {p}\n)\n",
        "Cfg Object\n(\n    [apiKey:Cfg:private] => {x32}\n)",
        "Cfg Object\n(\n    [password:protected] => {p}\n)",
        'array(2) {\n  ["user"]=>\n  string(3) "bob"\n  ["password"]=>\n  string(9) "{p}"\n}',
        'object(C)#3 (1) {\n  ["token":"C":private]=>\n  string(32) "{x32}"\n}',
        'a:2:{s:4:"user";s:3:"bob";s:8:"password";s:12:"{p}";}',
    ),
    "tables": (
        "COPY users (id, password, day) FROM stdin;\n1\t\\N\tMon\n2\t{p}\tTue\n\\.\n",
        "COPY public.t (id, owner, pwd) FROM stdin;\n1\tann\t\\N\n2\tbob\t{p}\n\\.",
        'COPY "T" ("Id", "Secret") FROM stdin WITH (FORMAT csv);\n1,\n2,{x24}\n\\.',
    ),
    "calls": (
        'Client::builder().with_api_key("{x32}").build()',
        'new Builder().withPassword("{p}").build()',
        "opts.usingApiKey('{x32}')",
        "withSecret(`{x32}`)",
        '.basic_auth("bob", Some("{p}"))',
    ),
    "forms": (
        "type(text=\"{p}\") into field 'Password'",
        "Action: type(text='{p}') into field \"Passphrase\"",
        "fill(value='{p}') in field 'Confirm password'",
        "send_keys('{p}') to element 'password'",
        "Typing '{p}' into input field named Password",
    ),
    "below": (
        "The password is:\r\n\r\n{p}\r\n\r\nBye",
        "Temporary password:\n\n\n{p}\n\nBye",
        "Votre mot de passe :\n\n{p}\n\nMerci",
    ),
    "changes": (
        "changed the password from {p} to x9",
        "Password rotated from '{p}' to 'old'",
        "Passwort von {p} auf neu geändert",
        "Changing DB_PASSWORD from x7 to {p}",
        "password: {p} -> none",
        "mot de passe changé de x1 à {p}",
    ),
    "words": (
        "Le mot de passe du wifi est velvet-copper-{a6}-anchor, merci",
        "Das Passwort lautet marble-harbor-{a6}.",
        "La contraseña es lantern-{a6}-thistle",
        "cactus-anchor-{a6}-orbit is the password",
        "The passphrase is harbor cactus {a6} thistle.",
        'the passphrase "marble orbit {a6} meadow" unlocks it',
    ),
}
"""By family, texts whose longest drawn part must go; see `drawn.compose`."""

KEPT: Final[tuple[Any, ...]] = (
    "https://github.com/acme/shop/blob/main/src/auth.py#L10-L20",
    "https://github.com/acme/shop/blob/main/src/token_store.go#L112C3-L130",
    "https://gitlab.com/acme/shop/-/blob/main/lib/session_token.rb#L10-20",
    "https://bitbucket.org/acme/shop/src/main/auth.py#lines-10:20",
    "--- PASS: TestLoginPassword2 (0.02s)",
    "PASS: TestApiKeyV2 (1.20s)",
    "ok  \tgithub.com/acme/auth\t0.012s",
    "FAIL\tgithub.com/acme/shop/token\t0.034s",
    "mscorlib, Version=4.0.0.0, Culture=neutral, PublicKeyToken=b77a5c561934e089",
    '<assemblyIdentity name="Newtonsoft.Json" publicKeyToken="30ad4fe6b2a6aeed"/>',
    "sonar-scanner -Dsonar.projectKey=shop -Dsonar.sources=src",
    "RelayState=%2Fstart",
    "Rotating credentials: skipped (dry run)",
    "const [token, setToken] = useState<string | null>(null);",
    "Fingerprint of the deploy key: SHA256:kCzqIkVv1vI5oVtQ5b0ZfU3sQ7x1mYbq2Zl0xN4bZ3E (RSA)",
    'Public-Key-Pins: pin-sha256="d6qzRu9zOECb90Uez27xWltNsj0e1Md7GkYYkVoZWmM="; max-age=600',
    'Public key pin: pin-sha256="d6qzRu9zOECb90Uez27xWltNsj0e1Md7GkYYkVoZWmM="; max-age=600',
    "session id: 6eff3e25-f16e-4e7a-b563-3a099dc386d7",
    {"session_id": "6eff3e25-f16e-4e7a-b563-3a099dc386d7"},
    "Set-Cookie: theme=dark; Path=/; Max-Age=31536000; SameSite=Lax; Secure",
    "Cookie: lang=de-DE; tz=Europe/Zurich; consent=1",
    {"Cookie": "theme=dark; Path=/"},
    "pin: connector 4",
    "api_key_id: key-prod-1",
    "value: { get_secret: shop-db }",
    "password → argon2id → database",
    {"Credentials": {"Expiration": "2026-01-01T00:00:00Z", "Region": "eu-west-1"}},
    {"kind": "Secret", "stringData": {"host": "db1", "port": "5432"}},
    "kind: Secret\nstringData:\n  REDIS_HOST: cache.lan\n  redis-port: 6379\n",
    "kind: Secret\nstringData:\n  cfg: |\n    host: db1\n    port: 5432\n",
    {"ParameterKey": "InstanceType", "ParameterValue": "t3.micro7"},
    "https://a.io/x?key=created_at",
    "https://a.io/x?key=6eff3e25-f16e-4e7a-b563-3a099dc386d7",
    "https://a.io/list?state=open&page=2",
    "https://a.io/oauth/callback?error=access_denied&state=",
    "key = created_at",
    "LOGO_PNG_B64=iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
    "COPY t (id, name) FROM stdin;\n1\tbob7x\n\\.\n",
    "COPY public.users (id, password) FROM '/tmp/users7.csv';",
    'withToken("header")',
    "type(\"hello7\") into field 'Search'",
    "changed the password from the console to the CLI",
    "The passphrase is stored in the system keychain.",
    "Here is your password policy:\n\nMinimum length: 12 characters\n",
    "[section.password]\nmin_length = 12\n",
    "Array\n(\n    [key] => value\n    [token_count] => 12\n)\n",
    "postgres%3A%2F%2Flocalhost%3A5432%2Fdb",
    "7569217076986 boxes, 756 rows in 9217 tables",
    "routing the request to 12 nodes",
    "https://wa.me/message/ABC",
    "password = ''\nuser = 'bob7'\n",
    'password="" + value7 + ""',
    '1,"{""user"":""bob7"",""password"":""""}"\n',
    "<password><![CDATA[]]></password>",
    "pay to nl92abna0417164300 now",
    "pay to gb83 west 1234 5698 7654 32.",
    "Cookie: lang=nl; consent=necessary; tz=Europe%2FAmsterdam",
    {"cookies": {"theme": "dark", "lang": "nl", "tz": "America%2FArgentina%2FUshuaia"}},
    "cy.get('[data-test=search]').type('9358')",
    'users.resetPassword("bob7")',
    'page.inputPassword("field7")',
    'field.isPassword("x7")',
    'audit.logSecret("done")',
    'vault.readSecret("shop-db")',
    "ParameterKey=Subnets,ParameterValue=hunter22",
    "name,value\npassword,must be changed by the user\nday,Mon\n",
    "password: |\n  The password must be changed soon.\nuser: bob7\n",
    "5KMWWy2d3Mjc8LojNoj8Lcz9B1aWu8bRofUgGwQk959Dw5h2iyx",
    "wif: none",
    "INSERT INTO t (a, name) VALUES\n (1, 'fen7'),\n (2, 'x9');",
    "<PasswordPolicy><Value>strong7</Value></PasswordPolicy>",
    "UPDATE t SET password = '' WHERE note = 'it''s 7'",
)
"""Texts and records that stay as they are."""

IN_PARTS: Final[tuple[tuple[Any, Any], ...]] = (
    ('password is Zk7"mQ2vpLd', "password is [REDACTED:password]"),
    ("the password is Zk7'mQ2vpLd.", "the password is [REDACTED:password]."),
    ('PASSWORD=Zk7"mQ2vpLd\nA=1', "PASSWORD=[REDACTED:password]\nA=1"),
    ('say "password: hunter22" now', 'say "password: [REDACTED:password]" now'),
    ('password="hunter22"and so on', 'password="[REDACTED:password]"and so on'),
    ("a:'password=hunter22'b", "a:'password=[REDACTED:password]'b"),
    (
        "changed the password from hunter22 to hunter33",
        "changed the password from [REDACTED:password] to [REDACTED:password]",
    ),
    (
        "Hi Ann, 640 217 is the one-time passcode for your session.",
        "Hi Ann, [REDACTED:otp] is the one-time passcode for your session.",
    ),
    ("관리자 비밀번호는 nDGXgSioPzkyBo 입니다.", "관리자 비밀번호는 [REDACTED:password] 입니다."),
    (
        "password: SHA256:kCzqIkVv1vI5oVtQ5b0ZfU3sQ7x1mYbq2Zl0xN4bZ3E",
        'password: "[REDACTED:password]"',
    ),
    (
        "/login?next=%2Fget%3Fpassword%3Dhunter22%26page%3D2",
        "/login?next=%2Fget%3Fpassword%3D[REDACTED:password]%26page%3D2",
    ),
    (
        "Endpoint=https://cfg.azconfig.io;Id=ab-l0-s0;Secret=Qd7Lw2Zx9BvT4kNsYh3Jm6RpC8gFe1aUoXi0bWtVME=",
        "Endpoint=https://cfg.azconfig.io;Id=ab-l0-s0;Secret=[REDACTED:secret]",
    ),
    ("Password: hunter22 -> hunter33", "Password: [REDACTED:password] -> [REDACTED:password]"),
    (
        "Cookie: theme=dark; ring=k4s9y83azl3ftwlz; Path=/",
        "Cookie: theme=dark; ring=[REDACTED:cookie]; Path=/",
    ),
    (
        "https://x-access-token:k4s9y83azl3ftwlz@github.com/acme/shop (push)",
        "https://x-access-token:[REDACTED:password]@github.com/acme/shop (push)",
    ),
    (
        "kubectl create secret generic x --from-literal=username=app --from-literal=relay=fast7x",
        "kubectl create secret generic x --from-literal=username=app "
        "--from-literal=relay=[REDACTED:secret]",
    ),
    (
        "Here is your password:\n\nQmrTRYbWzKLx\n\nBye",
        "Here is your password:\n\n[REDACTED:password]\n\nBye",
    ),
    ("AHV 756.9217.0769.85", "AHV [REDACTED:national_id]"),
    ("7569217076985", "[REDACTED:national_id]"),
    ("https://wa.me/4915123456789?text=hi", "https://wa.me/[REDACTED:phone]?text=hi"),
    ("routing 021000021", "routing [REDACTED:account]"),
    ("EHIC: 80756003300000000000", "EHIC: [REDACTED:national_id]"),
    ("::ffff:84.23.117.9 connected", "[REDACTED:ip] connected"),
    # A quote within a string, as SQL, YAML, CSV, shells, C and XML write it.
    *(
        (text.format("Wa" + quote + "s_4x"), text.format("[REDACTED:password]"))
        for quote, texts in {
            "''": (
                "UPDATE t SET password = '{}' WHERE id = 3",
                "ALTER ROLE bob WITH PASSWORD '{}' LOGIN",
                "CREATE USER bob IDENTIFIED BY '{}' ACCOUNT LOCK",
                "INSERT INTO t (a, kennwort) VALUES ('it''s', '{}')",
                "db:\n  passwort: '{}'  # a note\n  user: bob\n",
            ),
            '""': ('user,password,day\nbob,"{}",Mon\n', 'name,value\nwachtwoord,"{}"\n'),
            "'\\''": (
                "export DB_PASSWORD='{}' A='b'",
                "run --password '{}' --user 'bob'",
                "mysql -ubob -p'{}' shop",
            ),
            "'\"'\"'": ("senha='{}' ./run", "sshpass -p '{}' ssh 'a'"),
            '\\"': ('password = "{}" # a "note"', 'mot_de_passe: "{}"\nuser: bob\n'),
            "&amp;": (
                '<add value="Server=a;Password={};User=b"/>',
                "<password>{}</password><user>b</user>",
                '<login password="{}" user="b"/>',
            ),
            "&lt;": (
                '<add value="Server=a;Pwd={};User=b"/>',
                "<secretPassword>{}</secretPassword>",
            ),
            "<b>]": ("<password><![CDATA[{}]]></password>", "<db:kennwort><![CDATA[{}]]><"),
            '"m\\v': ("password {}", "the password is {} for bob", "password is {}\nuser b"),
        }.items()
        for text in texts
    ),
    (
        '1,"{""user"":""bob"",""password"":""hunter22xx""}"\n',
        '1,"{""user"":""bob"",""password"":""[REDACTED:password]""}"\n',
    ),
    ("SET password='x7abc', note='it''s'", "SET password='[REDACTED:password]', note='it''s'"),
    ("u?token=abc7x1234&amp;page=2", "u?token=[REDACTED:token]&amp;page=2"),
    ("password=abc7x&lt;/b&gt; done", "password=[REDACTED:password]&lt;/b&gt; done"),
    # The value of an element in a child element
    (
        "<AdministratorPassword><Value>fen</Value><PlainText>true</PlainText>",
        "<AdministratorPassword><Value>[REDACTED:password]</Value><PlainText>true</PlainText>",
    ),
    # Values of several lines and words
    (
        "db:\n  password: |\n    hollow fen\n\n      grey otter\n  user: bob\n",
        "db:\n  password: |\n    [REDACTED:password]\n  user: bob\n",
    ),
    (
        "- wachtwoord: >-\n    the hollow\n    fen\n  user: bob\n",
        "- wachtwoord: >-\n    [REDACTED:password]\n  user: bob\n",
    ),
    ("client_secret: |2-\n   a1\n   b2", "client_secret: |2-\n   [REDACTED:secret]"),
    (
        'password = """\nhollow fen\notter"""\nx = 1\n',
        'password = """[REDACTED:password]"""\nx = 1\n',
    ),
    ("senha = '''hollow\nfen'''\n", "senha = '''[REDACTED:password]'''\n"),
    (
        "db:\n  passwort: hollow fen otter\n  user: bob smith\n",
        'db:\n  passwort: "[REDACTED:password]"\n  user: bob smith\n',
    ),
    (
        "[db]\npassword = hollow fen otter\nuser = bob smith\n",
        "[db]\npassword = [REDACTED:password]\nuser = bob smith\n",
    ),
    (
        "name,value\nuser,bob smith\nkennwort,hollow fen otter\nday,Mon\n",
        "name,value\nuser,bob smith\nkennwort,[REDACTED:password]\nday,Mon\n",
    ),
    (
        'key;value\nmot de passe;"hollow fen; otter"\nday;Mon\n',
        'key;value\nmot de passe;"[REDACTED:password]"\nday;Mon\n',
    ),
    ("user,password\nbob smith,fen otter\n", "user,password\nbob smith,[REDACTED:password]\n"),
    # Names
    ({"puk": 12345678, "n": 12345678}, {"puk": "[REDACTED:pin]", "n": 12345678}),
    (
        "{'pin': 4711, 'sim_puk': 12345678, 'n': 4711}",
        "{'pin': '[REDACTED:pin]', 'sim_puk': '[REDACTED:pin]', 'n': 4711}",
    ),
    ("PUK: 12345678, PIN: 4711", "PUK: [REDACTED:pin], PIN: [REDACTED:pin]"),
    (
        {"wif": "5KMWWy2d3Mjc8LojNoj8Lcz9B1aWu8bRofUgGwQk959Dw5h2iyw"},
        {"wif": "[REDACTED:private_key]"},
    ),
    *(
        (text.format("fen"), text.format(f"[REDACTED:{kind}]"))
        for kind, texts in {
            "password": (
                'props.saslPassword("{}").user("bob")',
                "new Cfg().dbPassword('{}')",
                'b.keystorePassword("{}")',
                'a.withLdapBindPassword("{}")',
                "--parameters ParameterKey=DbPassword,ParameterValue={} "
                "ParameterKey=Subnets,ParameterValue=3",
                "ParameterKey=Size,ParameterValue=t3 ParameterKey=Kennwort,ParameterValue='{}'",
                "cy.get('[data-cy=\"login-password\"]').type('{}')",
            ),
            "secret": (
                'b.withBasicAuthSecret("{}")',
                "c.webhookSecret(`{}`)",
                "Name=ClientSecret,Value={} Name=Size,Value=t3",
            ),
        }.items()
        for text in texts
    ),
    (
        "cy.get('[data-test=card-pin]').type('9358')",
        "cy.get('[data-test=card-pin]').type('[REDACTED:pin]')",
    ),
    (
        "INSERT INTO t (a, kennwort, b) VALUES\n (1, 'fen', 'x7'),\n\t(2, 'it''s', 'y8')\n, (3,'z',NULL);",
        "INSERT INTO t (a, kennwort, b) VALUES\n (1, '[REDACTED:password]', 'x7'),\n"
        "\t(2, '[REDACTED:password]', 'y8')\n, (3,'[REDACTED:password]',NULL);",
    ),
    # Choices beside a session, and account numbers in small letters
    (
        {"cookies": {"connect.sid": "s%3Ak4s9y83azl3ftwlz", "theme": "dark", "tz": "Asia%2FTokyo"}},
        {"cookies": {"connect.sid": "[REDACTED:session]", "theme": "dark", "tz": "Asia%2FTokyo"}},
    ),
    (
        "get(u, cookies={'ring': 'k4s9y83azl3ftwlz', 'lang': 'nl'})",
        "get(u, cookies={'ring': '[REDACTED:cookie]', 'lang': 'nl'})",
    ),
    ("pay to nl91abna0417164300 now", "pay to [REDACTED:iban] now"),
    ("pay to gb82 west 1234 5698 7654 32.", "pay to [REDACTED:iban]."),
    ("iban de89 3704 0044 0532 0130 00", "iban [REDACTED:iban]"),
)
"""A text or record, and the same redacted: only the value goes."""
