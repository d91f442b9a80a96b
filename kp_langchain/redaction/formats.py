"""Credentials that say what they are: issuers' published token formats.

One row per form: the kind, the literals it can begin with, and what follows. All literals are
looked for in one pass; a row's own expression runs only where one of its literals was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kp_langchain.redaction.spans import Span, long_runs, starts_word, trie


class _Form(NamedTuple):
    kind: str
    prefixes: str  # separated by spaces
    rest: str


_ALNUM = "[A-Za-z0-9]"
_URL64 = r"[A-Za-z0-9_\-]"
_HEX = "[0-9a-fA-F]"
# The look-ahead keeps ordinary hyphenated names out of the shorter, less telling prefixes.
_WITH_DIGITS = r"(?=(?:[A-Za-z_\-]{0,40}[0-9]){2})"

_FORMS = (
    # Clouds and hosting
    _Form("aws_key", "AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _Form("aws_key", "ABSK", r"[A-Za-z0-9+/]{60,}={0,2}"),
    _Form("aws_key", "bedrock-api-key-", r"[A-Za-z0-9+/=\-_]{20,}"),
    _Form("google_key", "AIza", _URL64 + "{35}"),
    _Form("google_token", "ya29.", r"[A-Za-z0-9_\-.]{20,}"),
    _Form("google_token", "GOCSPX-", _URL64 + "{20,}"),
    _Form("google_token", "1//0", _URL64 + "{30,}"),
    _Form("alibaba_key", "LTAI", _ALNUM + "{16,30}(?![A-Za-z0-9])"),
    _Form("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", _HEX + "{40,}"),
    _Form("heroku_key", "HRKU-", _URL64 + "{30,}"),
    _Form("fly_token", "fm1r_ fm1a_ fm2_ fo1_", r"[A-Za-z0-9+/_\-]{40,}={0,3}"),
    _Form("yandex_key", "AQVN", _URL64 + "{30,}"),
    _Form("yandex_token", "t1.", r"[A-Za-z0-9_\-]{5,200}={0,2}\.[A-Za-z0-9_\-]{60,}={0,2}"),
    _Form("scaling_token", "tk-us-", _URL64 + "{40,}"),
    _Form("databricks_token", "dapi", _HEX + "{32}"),
    _Form("supabase_key", "sbp_ sb_secret_", _ALNUM + r"[A-Za-z0-9_\-]{20,}"),
    _Form("netlify_token", "nfp_", _ALNUM + "{30,}"),
    _Form("vercel_token", "vercel_blob_rw_", r"\w{20,}"),
    _Form("render_key", "rnd_", _ALNUM + "{24,}"),
    _Form("planetscale_token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[\w\-.=]{30,}"),
    _Form("tailscale_key", "tskey-", r"[A-Za-z0-9\-]{20,}"),
    _Form("clickhouse_key", "4b1d", _ALNUM + "{38}(?![A-Za-z0-9])"),
    # Code, packages, delivery
    _Form("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM + "{30,}"),
    _Form("github_token", "github_pat_", r"\w{22,}"),
    _Form(
        "gitlab_token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct- glwt- "
        "GR1348941",
        r"[A-Za-z0-9_\-=.]{16,}",
    ),
    _Form("bitbucket_token", "ATBB ATCTT3 ATATT3", r"[A-Za-z0-9_\-=]{24,}"),
    _Form("npm_token", "npm_", _ALNUM + "{36}"),
    _Form("pypi_token", "pypi-", _URL64 + "{50,}"),
    _Form("rubygems_key", "rubygems_", _HEX + "{40,}"),
    _Form("clojars_token", "CLOJARS_", _ALNUM + "{50,}"),
    _Form("docker_token", "dckr_pat_ dckr_oat_", _URL64 + "{20,}"),
    _Form("artifactory_token", "cmVmd AKCp", _ALNUM + "{50,}"),
    _Form("buildkite_token", "bkua_", _HEX + "{30,}"),
    _Form("circleci_token", "CCIPAT_ CCIPRJ_", _ALNUM + r"\w{30,}"),
    _Form("sonar_token", "sqp_ sqa_ squ_", _HEX + "{40}"),
    _Form("octopus_key", "API-", "[A-Z0-9]{25,}(?![A-Za-z0-9])"),
    _Form("pulumi_token", "pul-", _HEX + "{40}"),
    _Form("prefect_token", "pnu_ pnb_", _ALNUM + "{30,}"),
    _Form("infracost_key", "ico-", _ALNUM + "{32}"),
    _Form("openshift_token", "sha256~", _URL64 + "{43}"),
    _Form("doppler_token", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", r"[\w.]{30,}"),
    _Form("vault_token", "hvs. hvb. hvr.", _URL64 + "{24,}"),
    _Form("vault_token", "s.", _WITH_DIGITS + _ALNUM + "{24}(?![A-Za-z0-9_.])"),
    _Form("harness_key", "pat. sat.", _URL64 + r"{22}\.[A-Za-z0-9]{20,26}\.[A-Za-z0-9]{20}"),
    _Form("onepassword_key", "A3-", r"[A-Z0-9]{6}-(?:[A-Z0-9]{5,11}-?){3,5}[A-Z0-9]{5}"),
    _Form("onepassword_token", "ops_eyJ", r"[A-Za-z0-9+/=_\-]{40,}"),
    _Form("postman_key", "PMAK-", r"[A-Za-z0-9\-]{40,}"),
    _Form("age_key", "AGE-SECRET-KEY-1", "[A-Z0-9]{50,}"),
    _Form("figma_token", "figd_", _URL64 + "{20,}"),
    # Models
    _Form("anthropic_key", "sk-ant-", _URL64 + "{20,}"),
    _Form("openai_key", "sk-proj- sk-svcacct- sk-admin- sk-None-", _URL64 + "{20,}"),
    _Form("openrouter_key", "sk-or-v1-", _ALNUM + "{30,}"),
    _Form("langfuse_key", "sk-lf-", r"[0-9a-f\-]{30,}"),
    _Form("model_key", "sk-", _WITH_DIGITS + _URL64 + "{20,}"),
    _Form("huggingface_token", "hf_ api_org_", _ALNUM + "{30,}"),
    _Form("groq_key", "gsk_", _ALNUM + "{40,}"),
    _Form("replicate_token", "r8_", _ALNUM + "{30,}"),
    _Form("perplexity_key", "pplx-", _ALNUM + "{30,}"),
    _Form("xai_key", "xai-", _ALNUM + "{40,}"),
    _Form("nvidia_key", "nvapi-", _URL64 + "{40,}"),
    _Form("fireworks_key", "fw_", _WITH_DIGITS + _ALNUM + "{22,}"),
    _Form("together_key", "tgp_v1_", _URL64 + "{30,}"),
    _Form("langsmith_key", "lsv2_pt_ lsv2_sk_ ls__", r"\w{30,}"),
    _Form("pinecone_key", "pcsk_", r"\w{40,}"),
    _Form("tavily_key", "tvly-", r"[A-Za-z0-9\-]{20,}"),
    _Form("firecrawl_key", "fc-", "[0-9a-f]{32}(?![A-Za-z0-9])"),
    _Form("e2b_key", "e2b_", "[0-9a-f]{40}"),
    _Form("elevenlabs_key", "sk_", "[0-9a-f]{48}"),
    _Form("jina_key", "jina_", _ALNUM + r"[\w\-]{40,}"),
    # Messages, mail, telephony
    _Form(
        "slack_token",
        "xoxb- xoxp- xoxa- xoxr- xoxs- xoxe- xoxe. xoxc- xoxd- xapp- xwfp-",
        r"[A-Za-z0-9\-.%]{16,}",
    ),
    _Form("slack_webhook", "hooks.slack.com/", r"(?:services|workflows|triggers)/[\w+/\-]{20,}"),
    _Form("discord_webhook", "/api/webhooks/", r"\d{15,22}/[\w\-]{40,}"),
    _Form("teams_webhook", "webhook.office.com/", r"[\w@/\-]{40,}"),
    _Form("teams_webhook", "outlook.office.com/webhook/", r"[\w@/\-]{40,}"),
    _Form("sendgrid_key", "SG.", _URL64 + r"{16,32}\.[A-Za-z0-9_\-]{30,}"),
    _Form("twilio_key", "SK", _HEX + "{32}(?![A-Za-z0-9])"),
    _Form("mailgun_key", "key-", r"(?<![A-Za-z0-9]key-)" + _HEX + "{32}(?![A-Za-z0-9])"),
    _Form("brevo_key", "xkeysib-", r"[0-9a-f]{60,}-\w{16}"),
    _Form("resend_key", "re_", _WITH_DIGITS + _ALNUM + r"{8}_[A-Za-z0-9]{20,}"),
    _Form("facebook_token", "EAA", _ALNUM + "{80,}"),
    # Money and shops
    _Form(
        "stripe_key",
        "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_",
        _ALNUM + "{10,}",
    ),
    _Form("stripe_key", "whsec_", r"[A-Za-z0-9+/]{24,}={0,2}"),
    _Form("square_token", "sq0atp- sq0csp- sq0idp-", _URL64 + "{22,}"),
    _Form("shopify_token", "shpat_ shpss_ shppa_ shpca_", _HEX + "{32}"),
    _Form("razorpay_key", "rzp_live_ rzp_test_", _ALNUM + "{14,}"),
    _Form(
        "plaid_token", "access-sandbox- access-development- access-production-", r"[0-9a-f\-]{36}"
    ),
    _Form("flutterwave_key", "FLWSECK FLWPUBK", r"(?:_TEST)?-[A-Za-z0-9]{12,}(?:-X)?"),
    _Form("easypost_key", "EZAK EZTK", _ALNUM + "{54}"),
    _Form("duffel_token", "duffel_live_ duffel_test_", _URL64 + "{30,}"),
    _Form("freemius_key", "sk_", r"(?=\S{0,29}[~^])[!-&(-~]{29}(?![A-Za-z0-9])"),
    # Watching and working together
    _Form("newrelic_key", "NRAK- NRII- NRAA- NRJS- NRRA-", _URL64 + "{19,}"),
    _Form("dynatrace_token", "dt0c01. dt0s01. dt0s16.", r"[A-Za-z0-9]{20,26}\.[A-Za-z0-9]{50,}"),
    _Form("grafana_token", "glsa_ glc_", r"[\w+/=]{32,}"),
    _Form("sentry_token", "sntrys_ sntryu_", r"[\w+/=]{40,}"),
    _Form("linear_key", "lin_api_ lin_oauth_", _ALNUM + "{32,}"),
    _Form("notion_token", "ntn_ secret_", _ALNUM + "{40,}"),
    _Form("airtable_token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _Form("typeform_token", "tfp_", r"[\w\-=.]{40,}"),
    _Form("frameio_token", "fio-u-", _URL64 + "{40,}"),
    _Form("hubspot_token", "pat-na1- pat-eu1-", r"[0-9a-f\-]{36}"),
    _Form("posthog_key", "phx_", _ALNUM + "{30,}"),
    _Form("contentful_token", "CFPAT-", _URL64 + "{40,}"),
    _Form("readme_key", "rdme_", _ALNUM + "{40,}"),
    _Form("dropbox_token", "sl.", _WITH_DIGITS + r"[A-Za-z0-9_\-]{80,}"),
    _Form("mapbox_token", "sk. pk.", r"[A-Za-z0-9]{50,100}\.[A-Za-z0-9_\-]{20,24}"),
    _Form("adobe_secret", "p8e-", _ALNUM + r"[A-Za-z0-9_\-]{30,}"),
    _Form("authress_key", "sc_ ext_ scauth_ authress_", r"\w{5,40}\.\w{4,8}\.acc[_\-]\S{20,90}"),
    _Form("settlemint_token", "sm_aat_ sm_pat_ sm_sat_", _ALNUM + "{16}"),
    _Form("defined_key", "dnkey-", _URL64 + "{50,}"),
    _Form("registry_key", "kp_", _WITH_DIGITS + _ALNUM + "{24,}"),
    # Signed tokens
    _Form("jwt", "eyJ", r"[\w\-]{8,4096}\.[\w\-]{4,8192}(?:\.[\w\-]*)?(?:\.[\w\-]+){0,2}={0,2}"),
    _Form("jwt", "ZXlK", r"[A-Za-z0-9+/_\-]{60,}={0,2}"),
)

# Forms without a fixed beginning: the literal that must be present, then the expression.
_LOOSE = (
    ("mailchimp_key", "-us", re.compile(r"[0-9a-f]{32}-us\d{1,2}(?!\w)", re.ASCII)),
    (
        "telegram_token",
        ":AA",
        re.compile(r"\d{8,10}:AA[\w\-]{32,34}(?![\w\-])", re.ASCII),
    ),
    (
        "discord_token",
        ".",
        re.compile(r"[MNO][\w\-]{22,27}\.[\w\-]{6}\.[\w\-]{27,40}(?![\w\-])", re.ASCII),
    ),
    (
        "terraform_token",
        ".atlasv1.",
        re.compile(r"[A-Za-z0-9]{14}\.atlasv1\.[\w\-=]{40,}", re.ASCII),
    ),
    (
        "azure_secret",
        "8Q~",
        re.compile(r"[\w.~\-]{3}8Q~[\w.~\-]{30,36}", re.ASCII),
    ),
)
_PASSWORD_HASH = re.compile(
    r"\$(?:apr1|1|2[abxy]|5|6|y|argon2(?:id?|d)|scrypt|pbkdf2[\w\-]{0,8})\$"
    r"[A-Za-z0-9./+=$,\-]{12,200}",
    re.ASCII,
)


_BY_PREFIX: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _form in _FORMS:
    _compiled = re.compile(_form.rest, re.ASCII)
    for _prefix in _form.prefixes.split():
        _BY_PREFIX.setdefault(_prefix, []).append((_form.kind, _compiled))

_PREFIX = re.compile(trie(sorted(_BY_PREFIX)))
_SHORTEST = 18  # characters of the shortest form, prefix included
# A prefix this long with a mark at its end is told from words without a boundary before it.
_FREE_LENGTH = 4


def find_formats(text: str) -> Iterator[Span]:
    """Yield the credentials in `text` that an issuer's published format gives away.

    Args:
        text: Any text; the work grows linearly with its length.
    """
    for first, last in long_runs(text, _SHORTEST):
        position = first
        while (found := _PREFIX.search(text, position, last)) is not None:
            position = found.start() + 1
            span = _form_end(text, found.start(), found.group())
            if span is not None:
                yield span
                position = span.end
        for kind, literal, pattern in _LOOSE:
            if text.find(literal, first, last) >= 0:
                for match in pattern.finditer(text, first, min(last + 1, len(text))):
                    if starts_word(text, match.start()):
                        yield Span(*match.span(), kind)
    if "$" in text:
        for match in _PASSWORD_HASH.finditer(text):
            yield Span(*match.span(), "password_hash")


def _form_end(text: str, start: int, longest: str) -> Span | None:
    """Try the forms whose prefix begins at `start`, the longest prefix first."""
    for length in range(len(longest), 1, -1):
        forms = _BY_PREFIX.get(longest[:length])
        if forms is None:
            continue
        free = length >= _FREE_LENGTH and not longest[length - 1].isalnum()
        if not free and not starts_word(text, start):
            continue
        for kind, pattern in forms:
            match = pattern.match(text, start + length)
            if match is not None:
                # A path leading to the secret is no part of it.
                first = match.start() if longest[length - 1] == "/" else start
                return Span(first, match.end(), kind)
    return None
