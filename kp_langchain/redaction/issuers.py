"""The table of the issuers' published token formats: a prefix, and an expression for the rest.

Source: the issuers' own documentation.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class TokenFormat(NamedTuple):
    """A published token format.

    Attributes:
        kind: The kind that the placeholder names.
        prefixes: The literals that a token may start with, separated by spaces.
        rest: An expression for the text after the prefix.
    """

    kind: str
    prefixes: str
    rest: str


_ALNUM = "[A-Za-z0-9]"
_URL64 = r"[A-Za-z0-9_\-]"
_HEX = "[0-9a-fA-F]"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# Required after short, common prefixes, so that ordinary hyphenated names do not match.
_WITH_DIGITS = r"(?=(?:[A-Za-z_\-]{0,40}[0-9]){2})"

TOKEN_FORMATS: Final = (
    # Cloud and hosting
    TokenFormat("aws_key", "AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    TokenFormat("aws_key", "ABSK", r"[A-Za-z0-9+/]{60,}={0,2}"),
    TokenFormat("aws_key", "bedrock-api-key-", r"[A-Za-z0-9+/=\-_]{20,}"),
    TokenFormat("google_key", "AIza", _URL64 + "{35}"),
    TokenFormat("google_token", "ya29.", r"[A-Za-z0-9_\-.]{20,}"),
    TokenFormat("google_token", "GOCSPX-", _URL64 + "{20,}"),
    TokenFormat("google_token", "1//0", _URL64 + "{30,}"),
    TokenFormat("alibaba_key", "LTAI", _ALNUM + "{16,30}(?![A-Za-z0-9])"),
    TokenFormat("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", _HEX + "{40,}"),
    TokenFormat("heroku_key", "HRKU-", _URL64 + "{30,}"),
    TokenFormat("fly_token", "fm1r_ fm1a_ fm2_ fo1_", r"[A-Za-z0-9+/_\-]{40,}={0,3}"),
    TokenFormat("yandex_key", "AQVN", _URL64 + "{30,}"),
    TokenFormat("yandex_token", "t1.", r"[A-Za-z0-9_\-]{5,200}={0,2}\.[A-Za-z0-9_\-]{60,}={0,2}"),
    TokenFormat("scaling_token", "tk-us-", _URL64 + "{40,}"),
    TokenFormat("databricks_token", "dapi", _HEX + "{32}"),
    TokenFormat("supabase_key", "sbp_ sb_secret_", _ALNUM + r"[A-Za-z0-9_\-]{20,}"),
    TokenFormat("netlify_token", "nfp_", _ALNUM + "{30,}"),
    TokenFormat("vercel_token", "vercel_blob_rw_", r"\w{20,}"),
    TokenFormat("render_key", "rnd_", _ALNUM + "{24,}"),
    TokenFormat("planetscale_token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[\w\-.=]{30,}"),
    TokenFormat("tailscale_key", "tskey-", r"[A-Za-z0-9\-]{20,}"),
    TokenFormat("clickhouse_key", "4b1d", _ALNUM + "{38}(?![A-Za-z0-9])"),
    TokenFormat("aws_token", "IQoJb3JpZ2lu FwoGZXIvYXdz FQoGZXIvYXdz", r"[A-Za-z0-9+/=%]{80,}"),
    TokenFormat("aws_key", "amzn.mws.", _UUID),
    TokenFormat("amazon_key", "amzn1.oa2-cs.v1.", _HEX + "{60,}"),
    TokenFormat("amazon_token", "Atza| Atzr| Atc|", r"[A-Za-z0-9_\-]{60,}"),
    TokenFormat("google_key", "GOOG1E", "[A-Z0-9]{54,60}(?![A-Za-z0-9])"),
    TokenFormat("google_key", "GOOG", "[A-Z0-9]{20}(?![A-Za-z0-9])"),
    TokenFormat("google_key", "AQ.Ab8", _URL64 + "{40,}"),
    TokenFormat("firebase_key", "AAAA", _URL64 + "{7}:APA91b[A-Za-z0-9_\\-]{100,}"),
    TokenFormat("tencent_key", "AKID", _ALNUM + "{32}(?![A-Za-z0-9])"),
    TokenFormat("volcengine_key", "AKLT", _WITH_DIGITS + _ALNUM + "{40,}"),
    TokenFormat("baidu_key", "ALTAK-", _ALNUM + "{21}"),
    TokenFormat("digitalocean_key", "DO00 DO801", "[A-Z0-9]{15,18}(?![A-Za-z0-9])"),
    TokenFormat("scaleway_key", "SCW", "[A-Z0-9]{17}(?![A-Za-z0-9])"),
    TokenFormat("cloudflare_key", "v1.0-", _HEX + "{24}-" + _HEX + "{100,}"),
    TokenFormat("cloudflare_token", "cfut_ cfat_ cfk_", _WITH_DIGITS + _ALNUM + "{36,}"),
    TokenFormat("vercel_token", "vcp_ vci_ vca_ vcr_ vck_", _WITH_DIGITS + _ALNUM + "{24,}"),
    TokenFormat("netlify_token", "nfc_ nfo_ nfu_ nfb_", _WITH_DIGITS + _ALNUM + "{30,}"),
    TokenFormat("neon_key", "napi_", "[a-z0-9]{60,}"),
    TokenFormat("mongodb_key", "mdb_sa_sk_", _URL64 + "{30,}"),
    TokenFormat("aiven_password", "AVNS_", _URL64 + "{15,}"),
    TokenFormat("cockroach_key", "CCDB1_", r"\w{40,}"),
    TokenFormat("databricks_token", "dkea dose dsapi", _HEX + "{32}"),
    TokenFormat("materialize_key", "mzp_", _HEX + "{40,}"),
    TokenFormat("elastic_key", "essu_", r"[A-Za-z0-9+/_\-]{40,}={0,2}"),
    TokenFormat("backblaze_key", "K00", r"\d[A-Za-z0-9/+]{27}(?![A-Za-z0-9/+])"),
    TokenFormat("confluent_key", "cflt", r"(?=\S{0,20}\d)[A-Za-z0-9+/]{56,64}"),
    # Code, packages, delivery
    TokenFormat("gitlab_token", "glrtr- glwt- gldtt- gldp-", r"[A-Za-z0-9_\-=.]{16,}"),
    TokenFormat("atlassian_token", "ATTA", _HEX + "{60,}"),
    TokenFormat("cargo_token", "cio", _WITH_DIGITS + _ALNUM + "{32}(?![A-Za-z0-9])"),
    TokenFormat("nuget_key", "oy2", "[a-z0-9]{43}(?![A-Za-z0-9])"),
    TokenFormat("packagist_token", "packagist_", r"[ou][ru]t_[a-f0-9]{40,}"),
    TokenFormat("sourcegraph_token", "sgp_", r"(?:[a-zA-Z0-9]{1,20}_)?[A-Fa-f0-9]{40,64}"),
    TokenFormat("sourcegraph_token", "sgd_ slk_", _HEX + "{60,}"),
    TokenFormat("buildkite_token", "bkct_ bkpt_ bkaj_", _ALNUM + r"[\w\-]{30,}"),
    TokenFormat("infisical_token", "st.", _HEX + r"{20,}\." + _HEX + r"{20,}\." + _HEX + "{20,}"),
    TokenFormat("bitwarden_token", "0.", _UUID + r"\.[A-Za-z0-9]{20,}:[A-Za-z0-9+/]{20,}={0,2}"),
    TokenFormat("figma_token", "figo_ figu_ figor_ figoh_", _URL64 + "{30,}"),
    TokenFormat("postman_key", "PMAT-", "[A-Z0-9]{26}"),
    TokenFormat("snyk_token", "snyk_uat. snyk_sat.", r"[\w.\-]{30,}"),
    TokenFormat("intra42_secret", "s-s4t2ud- s-s4t2af-", _HEX + "{64}"),
    TokenFormat("expo_token", "ExponentPushToken[ ExpoPushToken[", r"[\w\-]{18,}\]"),
    TokenFormat("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM + "{30,}"),
    TokenFormat("github_token", "github_pat_", r"\w{22,}"),
    TokenFormat(
        "gitlab_token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct- glwt- "
        "GR1348941",
        r"[A-Za-z0-9_\-=.]{16,}",
    ),
    TokenFormat("bitbucket_token", "ATBB ATCTT3 ATATT3", r"[A-Za-z0-9_\-=]{24,}"),
    TokenFormat("npm_token", "npm_", _ALNUM + "{36}"),
    TokenFormat("pypi_token", "pypi-", _URL64 + "{50,}"),
    TokenFormat("rubygems_key", "rubygems_", _HEX + "{40,}"),
    TokenFormat("clojars_token", "CLOJARS_", _ALNUM + "{50,}"),
    TokenFormat("docker_token", "dckr_pat_ dckr_oat_", _URL64 + "{20,}"),
    TokenFormat("artifactory_token", "cmVmd AKCp", _ALNUM + "{50,}"),
    TokenFormat("buildkite_token", "bkua_", _HEX + "{30,}"),
    TokenFormat("circleci_token", "CCIPAT_ CCIPRJ_", _ALNUM + r"\w{30,}"),
    TokenFormat("sonar_token", "sqp_ sqa_ squ_", _HEX + "{40}"),
    TokenFormat("octopus_key", "API-", "[A-Z0-9]{25,}(?![A-Za-z0-9])"),
    TokenFormat("pulumi_token", "pul-", _HEX + "{40}"),
    TokenFormat("prefect_token", "pnu_ pnb_", _ALNUM + "{30,}"),
    TokenFormat("infracost_key", "ico-", _ALNUM + "{32}"),
    TokenFormat("openshift_token", "sha256~", _URL64 + "{43}"),
    TokenFormat("doppler_token", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", r"[\w.]{30,}"),
    TokenFormat("vault_token", "hvs. hvb. hvr.", _URL64 + "{24,}"),
    TokenFormat("vault_token", "s.", _WITH_DIGITS + _ALNUM + "{24}(?![A-Za-z0-9_.])"),
    TokenFormat("harness_key", "pat. sat.", _URL64 + r"{22}\.[A-Za-z0-9]{20,26}\.[A-Za-z0-9]{20}"),
    TokenFormat("onepassword_key", "A3-", r"[A-Z0-9]{6}-(?:[A-Z0-9]{5,11}-?){3,5}[A-Z0-9]{5}"),
    TokenFormat("onepassword_token", "ops_eyJ", r"[A-Za-z0-9+/=_\-]{40,}"),
    TokenFormat("postman_key", "PMAK-", r"[A-Za-z0-9\-]{40,}"),
    TokenFormat("age_key", "AGE-SECRET-KEY-1", "[A-Z0-9]{50,}"),
    TokenFormat("figma_token", "figd_", _URL64 + "{20,}"),
    # Models
    TokenFormat("anthropic_key", "sk-ant-", _URL64 + "{20,}"),
    TokenFormat("openai_key", "sk-proj- sk-svcacct- sk-admin- sk-None-", _URL64 + "{20,}"),
    TokenFormat("openrouter_key", "sk-or-v1-", _ALNUM + "{30,}"),
    TokenFormat("langfuse_key", "sk-lf-", r"[0-9a-f\-]{30,}"),
    TokenFormat("model_key", "sk-", _WITH_DIGITS + _URL64 + "{20,}"),
    TokenFormat("huggingface_token", "hf_ api_org_", _ALNUM + "{30,}"),
    TokenFormat("groq_key", "gsk_", _ALNUM + "{40,}"),
    TokenFormat("replicate_token", "r8_", _ALNUM + "{30,}"),
    TokenFormat("perplexity_key", "pplx-", _ALNUM + "{30,}"),
    TokenFormat("xai_key", "xai-", _ALNUM + "{40,}"),
    TokenFormat("nvidia_key", "nvapi-", _URL64 + "{40,}"),
    TokenFormat("fireworks_key", "fw_", _WITH_DIGITS + _ALNUM + "{22,}"),
    TokenFormat("together_key", "tgp_v1_", _URL64 + "{30,}"),
    TokenFormat("langsmith_key", "lsv2_pt_ lsv2_sk_ ls__", r"\w{30,}"),
    TokenFormat("pinecone_key", "pcsk_", r"\w{40,}"),
    TokenFormat("tavily_key", "tvly-", r"[A-Za-z0-9\-]{20,}"),
    TokenFormat("firecrawl_key", "fc-", "[0-9a-f]{32}(?![A-Za-z0-9])"),
    TokenFormat("e2b_key", "e2b_", "[0-9a-f]{40}"),
    TokenFormat("elevenlabs_key", "sk_", "[0-9a-f]{48}"),
    TokenFormat("jina_key", "jina_", _ALNUM + r"[\w\-]{40,}"),
    TokenFormat("openai_key", "sess-", _ALNUM + "{40}"),
    TokenFormat("voyage_key", "pa-", _WITH_DIGITS + _URL64 + "{43}(?![A-Za-z0-9])"),
    TokenFormat("cerebras_key", "csk-", _WITH_DIGITS + _ALNUM + "{40,}"),
    TokenFormat("anyscale_key", "esecret_", _ALNUM + "{30,}"),
    TokenFormat("runpod_key", "rpa_", _WITH_DIGITS + _ALNUM + "{36,}"),
    TokenFormat("modal_key", "ak- as-", _WITH_DIGITS + _ALNUM + "{22}(?![A-Za-z0-9_\\-])"),
    TokenFormat("cursor_key", "key_", r"(?<![\w\-].{4})" + _HEX + "{64}(?![A-Za-z0-9])"),
    TokenFormat("cursor_key", "crsr_", _HEX + "{60,}"),
    TokenFormat("llamacloud_key", "llx-", _ALNUM + "{40,}"),
    TokenFormat("mem0_key", "m0-", _WITH_DIGITS + _ALNUM + "{36,}"),
    TokenFormat("logfire_token", "pylf_v", r"\d_[a-z]{2}_[A-Za-z0-9]{36,}"),
    TokenFormat("wandb_key", "wandb_v", r"\d_[A-Za-z0-9_\-]{40,}"),
    TokenFormat("brave_key", "BSA", _WITH_DIGITS + _URL64 + "{27,29}(?![A-Za-z0-9_\\-])"),
    TokenFormat("zep_key", "z_", "(?=[A-Za-z0-9_\\-]{0,8}eyJ)" + r"[A-Za-z0-9_.\-]{40,}"),
    # Messaging, mail, telephony
    TokenFormat("slack_token", "xoxo-", r"[A-Za-z0-9\-.%]{16,}"),
    TokenFormat(
        "slack_webhook", "hooks", r".slack.com/(?:services|workflows|triggers)/[\w+/\-]{20,}"
    ),
    TokenFormat("zapier_webhook", "hooks.zapier.com/", r"hooks/(?:catch|standard)/\d+/[\w/\-]{5,}"),
    TokenFormat("make_webhook", ".make.com/ .integromat.com/", "(?=[a-z]{0,20}[0-9])[a-z0-9]{25,}"),
    TokenFormat("ifttt_webhook", "/with/key/", _URL64 + "{16,}"),
    TokenFormat("chat_webhook", "/bot/v2/hook/ /webhook/send?key=", r"[A-Za-z0-9\-]{20,}"),
    TokenFormat("chat_webhook", "/hooks/", "(?=[a-z]{0,20}[0-9])[a-z0-9]{26}(?![A-Za-z0-9])"),
    TokenFormat("telegram_token", "bot", r"\d{8,10}:[\w\-]{30,40}"),
    TokenFormat("mandrill_key", "md-", _WITH_DIGITS + _URL64 + "{22}(?![A-Za-z0-9_\\-])"),
    TokenFormat("mailersend_key", "mlsn.", _HEX + "{60,}"),
    TokenFormat("brevo_key", "xsmtpsib-", r"[0-9a-f]{60,}-\w{16}"),
    TokenFormat("intercom_token", "dG9rO", r"[A-Za-z0-9+/]{40,}={0,2}"),
    TokenFormat("instagram_token", "IGQV IGAA", _WITH_DIGITS + _URL64 + "{80,}"),
    TokenFormat("twitter_token", "AAAAAAAAAAAAAAAAAAAA", r"(?=A{0,20}\w)[A-Za-z0-9%+/=_\-]{40,}"),
    TokenFormat("tiktok_token", "act. clt.", r"(?=[\w]{0,40}\d)[A-Za-z0-9!.*_\-]{60,}"),
    TokenFormat("pagerduty_key", "pdus+", r"_[\w\-]{20,}"),
    TokenFormat(
        "slack_token",
        "xoxb- xoxp- xoxa- xoxr- xoxs- xoxe- xoxe. xoxc- xoxd- xapp- xwfp-",
        r"[A-Za-z0-9\-.%]{16,}",
    ),
    TokenFormat(
        "slack_webhook", "hooks.slack.com/", r"(?:services|workflows|triggers)/[\w+/\-]{20,}"
    ),
    TokenFormat("discord_webhook", "/api/webhooks/", r"\d{15,22}/[\w\-]{40,}"),
    TokenFormat("teams_webhook", "webhook.office.com/", r"[\w@/\-]{40,}"),
    TokenFormat("teams_webhook", "outlook.office.com/webhook/", r"[\w@/\-]{40,}"),
    TokenFormat("sendgrid_key", "SG.", _URL64 + r"{16,32}\.[A-Za-z0-9_\-]{30,}"),
    TokenFormat("twilio_key", "SK", _HEX + "{32}(?![A-Za-z0-9])"),
    TokenFormat(
        "mailgun_key",
        "key-",
        r"(?:(?<![\w\-]key-)|(?<=\\[nrt]key-))" + _HEX + "{32}(?![A-Za-z0-9])",
    ),
    TokenFormat("brevo_key", "xkeysib-", r"[0-9a-f]{60,}-\w{16}"),
    TokenFormat("resend_key", "re_", _WITH_DIGITS + _ALNUM + r"{8}_[A-Za-z0-9]{20,}"),
    TokenFormat("facebook_token", "EAA", _ALNUM + "{80,}"),
    # Payments and shops
    TokenFormat(
        "stripe_key",
        "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_",
        _ALNUM + "{10,}",
    ),
    TokenFormat("stripe_key", "whsec_", r"[A-Za-z0-9+/]{24,}={0,2}"),
    TokenFormat("square_token", "sq0atp- sq0csp- sq0idp-", _URL64 + "{22,}"),
    TokenFormat("shopify_token", "shpat_ shpss_ shppa_ shpca_", _HEX + "{32}"),
    TokenFormat("razorpay_key", "rzp_live_ rzp_test_", _ALNUM + "{14,}"),
    TokenFormat(
        "plaid_token", "access-sandbox- access-development- access-production-", r"[0-9a-f\-]{36}"
    ),
    TokenFormat("flutterwave_key", "FLWSECK FLWPUBK", r"(?:_TEST)?-[A-Za-z0-9]{12,}(?:-X)?"),
    TokenFormat("easypost_key", "EZAK EZTK", _ALNUM + "{54}"),
    TokenFormat("duffel_token", "duffel_live_ duffel_test_", _URL64 + "{30,}"),
    TokenFormat("freemius_key", "sk_", r"(?=\S{0,29}[~^])[!-&(-~]{29}(?![A-Za-z0-9])"),
    TokenFormat("square_token", "EAAA", _WITH_DIGITS + _URL64 + "{56,64}(?![A-Za-z0-9_\\-])"),
    TokenFormat(
        "paypal_token", "access_token$", r"(?:production|sandbox)\$[a-z0-9]{12,20}\$[a-f0-9]{30,}"
    ),
    TokenFormat("paypal_token", "A21AA", _URL64 + "{60,}"),
    TokenFormat("shopify_token", "shptka_ shpua_ shpit_ shprt_", _HEX + "{32}"),
    TokenFormat("woocommerce_key", "ck_ cs_", _HEX + "{40}(?![A-Za-z0-9])"),
    TokenFormat("checkout_key", "sk_ sk_test_ sk_sbox_", _UUID),
    TokenFormat("checkout_key", "sk_sbox_", _ALNUM + "{20,}"),
    TokenFormat("adyen_key", "AQE", r"[A-Za-z0-9]{10,100}-[A-Za-z0-9+/]{20,100}={0,2}-\S{16,40}"),
    TokenFormat("secret_token", "secret-token:", r"[A-Za-z0-9_\-.~%]{8,}"),
    TokenFormat("shippo_token", "shippo_live_ shippo_test_", _HEX + "{40}"),
    TokenFormat("klaviyo_key", "pk_", _HEX + "{34}(?![A-Za-z0-9])"),
    # Monitoring and collaboration
    TokenFormat("honeycomb_key", "hcaik_ hcbik_ hcamk_ hcaac_", _ALNUM + "{40,}"),
    TokenFormat("axiom_token", "xaat- xapt-", _UUID),
    TokenFormat("launchdarkly_key", "api- sdk-", r"(?<![\w\-].{4})" + _UUID),
    TokenFormat("configcat_key", "configcat-sdk-1/", r"[\w\-]{20,24}/[\w\-]{20,24}"),
    TokenFormat("grafana_token", "eyJrIjoi", r"[A-Za-z0-9+/]{60,}={0,2}"),
    TokenFormat("asana_token", "0/ 1/ 2/", r"(?:\d{10,20}/)?\d{10,20}:[0-9a-f]{32}"),
    TokenFormat("clickup_token", "pk_", r"\d{6,10}_[A-Z0-9]{28,34}(?![A-Za-z0-9])"),
    TokenFormat("salesforce_token", "00D", r"[A-Za-z0-9]{12,15}![A-Za-z0-9._]{60,}"),
    TokenFormat("salesforce_token", "5Aep861", r"[A-Za-z0-9._]{60,}"),
    TokenFormat("zoho_token", "1000.", _HEX + r"{32}\." + _HEX + "{32}"),
    TokenFormat("adafruit_key", "aio_", _WITH_DIGITS + _ALNUM + "{28}(?![A-Za-z0-9])"),
    TokenFormat("ubidots_key", "BBFF-", _ALNUM + "{30}"),
    TokenFormat("newrelic_key", "NRAK- NRII- NRAA- NRJS- NRRA-", _URL64 + "{19,}"),
    TokenFormat(
        "dynatrace_token", "dt0c01. dt0s01. dt0s16.", r"[A-Za-z0-9]{20,26}\.[A-Za-z0-9]{50,}"
    ),
    TokenFormat("grafana_token", "glsa_ glc_", r"[\w+/=]{32,}"),
    TokenFormat("sentry_token", "sntrys_ sntryu_", r"[\w+/=]{40,}"),
    TokenFormat("linear_key", "lin_api_ lin_oauth_", _ALNUM + "{32,}"),
    TokenFormat("notion_token", "ntn_ secret_", _ALNUM + "{40,}"),
    TokenFormat("airtable_token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    TokenFormat("typeform_token", "tfp_", r"[\w\-=.]{40,}"),
    TokenFormat("frameio_token", "fio-u-", _URL64 + "{40,}"),
    TokenFormat("hubspot_token", "pat-na1- pat-eu1-", r"[0-9a-f\-]{36}"),
    TokenFormat("posthog_key", "phx_", _ALNUM + "{30,}"),
    TokenFormat("contentful_token", "CFPAT-", _URL64 + "{40,}"),
    TokenFormat("readme_key", "rdme_", _ALNUM + "{40,}"),
    TokenFormat("dropbox_token", "sl.", _WITH_DIGITS + r"[A-Za-z0-9_\-]{80,}"),
    TokenFormat("mapbox_token", "sk. pk.", r"[A-Za-z0-9]{50,100}\.[A-Za-z0-9_\-]{20,24}"),
    TokenFormat("adobe_secret", "p8e-", _ALNUM + r"[A-Za-z0-9_\-]{30,}"),
    TokenFormat(
        "authress_key", "sc_ ext_ scauth_ authress_", r"\w{5,40}\.\w{4,8}\.acc[_\-]\S{20,90}"
    ),
    TokenFormat("settlemint_token", "sm_aat_ sm_pat_ sm_sat_", _ALNUM + "{16}"),
    TokenFormat("defined_key", "dnkey-", _URL64 + "{50,}"),
    TokenFormat("registry_key", "kp_", _WITH_DIGITS + _ALNUM + "{24,}"),
    # Wallets
    TokenFormat(
        "wallet_key", "xprv yprv zprv tprv", r"[1-9A-HJ-NP-Za-km-z]{100,112}(?![A-Za-z0-9])"
    ),
    # Frameworks
    TokenFormat("django_key", "django-insecure-", r"\S{30,60}"),
    TokenFormat("laravel_key", "base64:", r"[A-Za-z0-9+/]{43}=(?![A-Za-z0-9=])"),
    # Signed tokens
    TokenFormat("paseto", "v1. v2. v3. v4.", r"(?:local|public)\.[\w\-]{20,}(?:\.[\w\-]+)?"),
    TokenFormat(
        "paseto",
        "k1. k2. k3. k4.",
        r"(?:local|secret|local-wrap\.pie|secret-wrap\.pie|local-pw|secret-pw)\.[\w\-]{20,}",
    ),
    TokenFormat("macaroon", "MDAx MDAy MDAz", r"[A-Za-z0-9+/_\-]{80,}={0,2}"),
    TokenFormat("macaroon", "AgE", r"[A-Z][A-Za-z0-9_\-]{80,}={0,2}"),
    TokenFormat(
        "jwt", "eyJ", r"[\w\-]{8,4096}\.[\w\-]{4,8192}(?:\.[\w\-]*)?(?:\.[\w\-]+){0,2}={0,2}"
    ),
    TokenFormat("jwt", "ZXlK", r"[A-Za-z0-9+/_\-]{60,}={0,2}"),
)
