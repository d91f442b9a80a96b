"""Identifiers of persons and places, in the writings of many countries and systems."""

from __future__ import annotations

import json
import random
from typing import Any, Final

# family, what has to go (separated by " | "); for paths and users the name is marked <...>
_WRITTEN: Final = (
    ("email", "ravi.kumar+news@mail.example.co.uk | o'brien@acme.io | j_doe-99@sub.dept.uni.edu"),
    ("email", "maria%40example.com | jose.garcia%40acme.io | x@y.museum | a.b@xn--bcher-kva.example"),
    ("email_unicode", "joão.silva@bücher.example | 用户@例子.公司 | андрей@пример.рф | søren@øre.dk"),
    ("email_spelt", "bob (at) acme (dot) io | bob [at] acme [dot] io | bob{at}acme.io | bob(at)acme.io"),
    ("email_spelt", "jane dot doe at acme dot com | jane.doe at acme dot com | jane_doe AT acme DOT org"),
    ("email_quoted", "\"john doe\"@example.com | <jane@acme.io> | mailto:jane@acme.io?subject=x"),
    ("phone_intl", "+49 151 23582239 | +44 20 7946 0958 | +1 (415) 555-2671 | +1-415-555-2671"),
    ("phone_intl", "+33 6 12 34 56 78 | +39 06 698 12345 | +34 612 34 56 78 | +31 6 12345678"),
    ("phone_intl", "+86 138 1234 5678 | +81 90-1234-5678 | +82 10-1234-5678 | +91 98765 43210"),
    ("phone_intl", "+55 11 91234-5678 | +52 55 1234 5678 | +54 9 11 1234-5678 | +61 412 345 678"),
    ("phone_intl", "+7 912 345-67-89 | +90 532 123 45 67 | +27 82 123 4567 | +234 803 123 4567"),
    ("phone_intl", "+971 50 123 4567 | +972 54-123-4567 | +966 50 123 4567 | +20 100 123 4567"),
    ("phone_intl", "+46 70 123 45 67 | +47 412 34 567 | +45 20 12 34 56 | +358 41 2345678"),
    ("phone_intl", "+41 (0)79 123 45 67 | +49 (0) 151 23582239 | +44(0)7911 123456 | +43 664/1234567"),
    ("phone_e164", "+4915123582239 | +442079460958 | +14155552671 | +8613812345678 | +5511912345678"),
    ("phone_uri", "tel:+1-415-555-2671 | tel:+4915123582239 | tel:+44-20-7946-0958;ext=12"),
    ("phone_00", "0049 151 23582239 | 0044 20 7946 0958 | 0033 6 12 34 56 78 | 001-415-555-2671"),
    ("phone_full_width", "\uff0b81 90\uff0d1234\uff0d5678 | +49\u2011151\u201123582239 | +33\u00a06\u00a012\u00a034\u00a056\u00a078"),
    ("phone_us", "(415) 555-2671 | 415-555-2671 | 415.555.2671 | 1-415-555-2671 | (415)555-2671"),
    ("phone_national", "06 12 34 56 78 | 06.12.34.56.78 | 01 42 68 53 00 | 0151 23582239 | 030/8836335"),
    ("phone_national", "07911 123456 | 020 7946 0958 | 0161 496 0000 | 0412 345 678 | (02) 9876 5432"),
    ("phone_national", "090-1234-5678 | 03-1234-5678 | 010-1234-5678 | 02-312-3456 | 0532 123 45 67"),
    ("phone_national", "(11) 91234-5678 | (21) 2345-6789 | 011 15-1234-5678 | 082 123 4567 | 0803 123 4567"),
    ("phone_national", "8 (912) 345-67-89 | 8-912-345-67-89 | 06-12345678 | 06 12345678 | 070-123 45 67"),
    ("phone_national", "079 123 45 67 | 0664 1234567 | 0912 345 678 | 081-234-5678 | 054-123-4567"),
    ("phone_named", "tel: 512 345 678 | phone 98765 43210 | Tel. 22 123 45 67 | mobile: 13812345678"),
    ("phone_named", "call me at 4155552671 | call 555-0134 | text me on 07911123456 | fax: 2345 6789"),
    ("phone_named", "WhatsApp 912 345 678 | cell: 4155552671 | Phone number is 612345678 | ☎ 2123 4567"),
    ("phone_named", "电话：13812345678 | 手机号 13912345678 | 電話番号：0312345678 | 전화: 021234567"),
    ("phone_named", "телефон: 4951234567 | teléfono: 912 345 678 | téléphone : 0142685300 | Handy: 15123582239"),
    ("ipv4", "35.149.83.227 | 10.185.6.58 | 192.168.1.17:8080 | 172.16.254.1/24 | [203.0.114.9]"),
    ("ipv4", "client=198.51.101.7, | http://203.0.114.77/x | ip-10-20-30-40.ec2.internal | 203.0.114.5."),
    ("ipv6", "2001:db8:8f74::cdb9 | fe80::fc8a:1e30%eth0 | [2001:db8::8a2e:370:7334]:443 | 2a02:8071:abcd::1"),
    ("ipv6", "2001:0db8:85a3:0000:0000:8a2e:0370:7334 | ::ffff:192.0.2.128 | 2606:4700::6810:84e5"),
    ("ipv6", "http://[2001:db8:1::ab9:c0a8:102]/x | 2001:db8::/32 | fd12:3456:789a:1::1"),
    ("mac", "df:ef:f8:f6:f4:57 | DF-EF-F8-F6-F4-57 | dfef.f8f6.f457 | 3C:22:FB:01:9A:7E"),
    ("card", "4242 4242 4242 4242 | 4111111111111111 | 378282246310005 | 3782 822463 10005"),
    ("card", "5555-5555-5555-4444 | 6011 1111 1111 1117 | 3056 9309 0259 04 | 3530111333300000"),
    ("card", "6212345678901232 | 2223003122003222 | 5019717010103742 | 6759649826438453"),
    ("iban", "DE89370400440532013000 | GB29 NWBK 6016 1331 9268 19 | FR1420041010050500013M02606"),
    ("iban", "NL91ABNA0417164300 | NO9386011117947 | MT84MALT011000012345MTLCAST001S | ch9300762011623852957"),
    ("iban", "BE68 5390 0754 7034 | be68 5390 0754 7034 | PL61109010140000071219812874 | DE89-3704-0044-0532-0130-00"),
    ("iban", "BR1800360305000010009795493C1 | SA0380000000608010167519 | IT60X0542811101000000123456"),
    ("ssn", "488-85-6170 | SSN: 488856170 | ssn 488 85 6170 | Social Security Number: 488-85-6170"),
    ("home", "/home/<bwayne>/x | /Users/<bwayne>/Library | C:\\Users\\<bwayne>\\x | C:\\\\Users\\\\<bwayne>\\\\x"),
    ("home", "\\\\?\\C:\\Users\\<bwayne>\\x | /mnt/c/Users/<bwayne>/x | file:///home/<bwayne>/x | c:/users/<bwayne>/x"),
    ("home", "file:///C:/Users/<bwayne>/x | /var/home/<bwayne>/x | /export/home/<bwayne>/x | ~<bwayne>/bin"),
    ("home", "%2Fhome%2F<bwayne>%2Fx | C:\\Documents and Settings\\<bwayne>\\x | \\\\wsl$\\Ubuntu\\home\\<bwayne>\\x"),
    ("home", "C%3A%5CUsers%5C<bwayne>%5Cx | /cygdrive/c/Users/<bwayne>/x | /c/Users/<bwayne>/x | /home/<bwayne>"),
    ("home", "HOME=/home/<bwayne> | cd /home/<bwayne>&& ls | D:\\Users\\<bwayne>\\x | (/Users/<bwayne>)"),
    ("home", "\\/home\\/<bwayne>\\/x | \\/Users\\/<bwayne>\\/x | smb://srv/home/<bwayne>/x | /private/var/home/<bwayne>/"),
    ("home", "-rw-r--r-- 1 <bwayne> <bwayne> 512 x | <bwayne>@host:/var/log$ | <bwayne>@laptop:~$ ls"),
)  # fmt: skip
_AROUND: Final = (
    "{}", "Please contact {} about it.", "Found: {}, continuing.", "value '{}'", "(see {})",
    "地址{}。", "a={} b=2", "\tid\t{}\tx", "line\\n{}\\nmore", "<td>{}</td>",
)  # fmt: skip


def _made() -> list[tuple[str, Any, str]]:
    source = random.Random(24)
    cases: list[tuple[str, Any, str]] = []
    for family, written in _WRITTEN:
        for form in written.split(" | "):
            secret = _inside(family, form)
            plain = form.replace("<bwayne>", "bwayne") if family == "home" else form
            for around in source.sample(_AROUND, 4):
                cases.append((family, around.replace("{}", plain), secret))
            cases.append((family, {"name": "update", "input": {"note": plain, "n": 1}}, secret))
            cases.append((family, json.dumps({"i": json.dumps({"note": plain})}), secret))
    return cases


def _inside(family: str, form: str) -> str:
    """Return the part of a written form that must not be left."""
    if family == "home":
        return "bwayne"
    if family == "email_quoted":
        return "john doe" if "john" in form else "jane@acme.io"
    if family.startswith("phone"):
        return "".join(c for c in form.split(";")[0] if c.isdigit())[-6:]
    if family in ("ipv4", "ipv6"):
        body = form.strip("[].,").removeprefix("client=").removeprefix("http://").removeprefix("[")
        for mark in ("]", "/", "%", ","):
            body = body.split(mark)[0]
        return body.removesuffix(":8080").removeprefix("ip-").split(".ec2")[0]
    if family == "ssn":
        return form.split(": ")[-1].removeprefix("ssn ")
    return form


IDENTIFIERS: Final = _made()
