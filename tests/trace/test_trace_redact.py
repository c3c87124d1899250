"""Known secrets go, ordinary text stays, and no text makes the search slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus_lab.trace import Redactor, SessionError

# In parts, so that no scanner takes them for real ones.
BODY = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
KEYS = (
    "sk-" + BODY,
    "sk-ant-api03-" + BODY,
    "ghp_" + BODY,
    "github_pat_" + BODY,
    "glpat-" + BODY,
    "xoxb-" + "1234567890-" + BODY,
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "AIza" + BODY,
    "hf_" + BODY,
    "npm_" + BODY,
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + BODY,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nAAAA\n-----END RSA PRIVATE KEY-----",
)
AROUND = st.text(alphabet=" .,;:()[]{}\"'\n", max_size=5)


@given(key=st.sampled_from(KEYS), before=AROUND, after=AROUND)
def test_a_key_of_a_known_form_never_survives(key, before, after):
    text = Redactor.secrets().text(f"see {before}{key}{after} there")
    assert key not in text
    assert BODY not in text
    assert "[redacted: " in text
    assert text.startswith("see ")
    assert text.endswith(" there")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2&next=1", "password=[redacted: password]&next=1"),
        ('{"api_key": "ab cd", "n": 1}', '{"api_key": [redacted: password], "n": 1}'),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: [redacted: password]"),
        ("authorization: Bearer abcdefgh.ijklmnop", "authorization: [redacted: token]"),
        ("DB_PASSWORD: s3cret", "DB_PASSWORD: [redacted: password]"),
        ("https://mara:pw@host/x", "https://mara:[redacted: password]@host/x"),
        ("access_token=abcdefghijkl123", "access_token=[redacted: token]"),
        ("write to mara.lind@brightloom.example today", "write to [redacted: e-mail] today"),
        ("/home/mara/models/x.gguf", "/home/[redacted: home]/models/x.gguf"),
        ("C:\\Users\\mara\\x", "C:\\Users\\[redacted: home]\\x"),
    ],
)
def test_what_surrounds_a_secret_stays_readable(text, expected):
    assert Redactor.of().text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=192, tokens: 431, token: the next word",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "550e8400-e29b-41d4-a716-446655440000",
        "the password field is empty; ask-me-anything; risk-adjusted",
        "issue_write(owner: string, repo: string)",
        "14:05, ratio 3:1, https://example.org/a?b=c",
    ],
)
def test_ordinary_text_stays(text):
    assert Redactor.of().text(text) == text


def test_values_under_a_secret_name_go_whole_and_structure_stays():
    value = {
        "password": "x",
        "auth_token": "short",
        "n_tokens": 3,
        "list": ["a@b.io", 1, None, True],
        "inner": {"secret": 7},
    }
    assert Redactor.of().value(value) == {
        "password": "[redacted: password]",
        "auth_token": "[redacted: password]",
        "n_tokens": 3,
        "list": ["[redacted: e-mail]", 1, None, True],
        "inner": {"secret": "[redacted: password]"},
    }


def test_custom_patterns_and_bad_ones():
    redactor = Redactor.of((), [r"\bticket \d+"])
    assert redactor.text("ticket 482 of mara@b.io") == "[redacted: custom] of mara@b.io"
    assert redactor.kinds == ("custom",)
    with pytest.raises(SessionError, match="no regular expression") as caught:
        Redactor.of(patterns=["("])
    assert caught.value.next_step
    with pytest.raises(SessionError, match="moods"):
        Redactor.of(["moods"])


@pytest.mark.timeout(300)  # a search that goes back for every character takes far longer
@pytest.mark.parametrize(
    "piece", ["a-", "a_", "a.", "://", "sk-", "eyJ", "password", "x@", "/home/", "token", "a.b@c.", '="\\']
)
def test_no_text_makes_the_search_quadratic(piece):
    assert Redactor.of().text(piece * (1_000_000 // len(piece)))
