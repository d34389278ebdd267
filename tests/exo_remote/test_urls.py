"""Server addresses as people write them."""

from __future__ import annotations

import pytest
from exocli import UsageError

from exo_remote import urls


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8080",
        "http://host:8080/",
        "host:8080",
        " host:8080/v1 ",
        "http://host:8080/v1/",
        "http://host:8080//",
        "http://host:8080/v1/chat/completions",
        "http://host:8080/v1/models/",
    ],
)
def test_all_mean_the_same(text: str):
    base = urls.parse(text)
    assert (base.home, base.roots, base.host) == ("http://host:8080", ("http://host:8080/v1",), "host:8080")


def test_sub_paths():
    assert urls.parse("https://x/openai/").roots == ("https://x/openai/v1", "https://x/openai")
    assert urls.parse("https://x/openai/v1").roots == ("https://x/openai/v1",)
    assert urls.parse("https://x/openai/v1").home == "https://x/openai"
    assert urls.parse("https://x/api/chat").home == "https://x"


def test_where_no_url_is_given(monkeypatch: pytest.MonkeyPatch):
    assert urls.parse("").home == "http://127.0.0.1:52415"
    monkeypatch.setenv("EXO_URL", "http://over.there/v1")
    assert urls.parse("").home == "http://over.there"


@pytest.mark.parametrize(
    "text", ["ftp://x", "http://", "http://x:99999", "http://[::1", "http://x/?a=b", "http://x/#y", "://"]
)
def test_what_is_no_url(text: str):
    with pytest.raises(UsageError, match="is not a server's url"):
        urls.parse(text)


def test_a_password_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        urls.parse("http://me:hunter2@host")
    assert "hunter2" not in str(caught.value) and "EXO_REMOTE_API_KEY" in str(caught.value)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("x.localhost", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_what_is_this_machine(host: str, here: bool):
    assert urls.is_loopback(host) is here
    assert urls.parse(f"http://[{host}]:1" if ":" in host else f"http://{host}:1").loopback is here
