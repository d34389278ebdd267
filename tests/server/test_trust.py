"""Keys, hosts, origins, sizes, binds: who may ask, and what is never told to whom."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exocli.errors import UsageError
from exocli.server.auth import host_allowed, origin_allowed, read_keys
from hypothesis import given
from hypothesis import strategies as st

from tests.server.apis import CHAT
from tests.server.serving import Serving, environment

KEYS = ("first-key-0123456789", "second-key-9876543210")
BEARER = {"Authorization": f"Bearer {KEYS[0]}"}


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    file = home / "keys"
    file.write_text(f"# who\n{KEYS[0]}\n\n{KEYS[1]}\n")
    flags = [
        "--host",
        "0.0.0.0",
        "--api-key-file",
        str(file),
        "--allow-host",
        "llm.example.com",
        "--cors-origin",
        "https://App.example:443/",
    ]
    with Serving(home, *flags) as serving:
        yield serving


@pytest.mark.parametrize(
    "headers",
    [BEARER, {"Authorization": f"bearer {KEYS[1]}"}, {"x-api-key": KEYS[0]}],
)
def test_any_of_the_keys_in_either_header(server: Serving, headers: dict[str, str]):
    assert server.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer wrong-key-111"},
        {"x-api-key": KEYS[0][:-1]},
    ],
)
@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/requests", "/metrics", "/x/scripted/names"],
)
def test_without_a_key_nothing_is_told(server: Serving, headers: dict[str, str], path: str):
    answer = server.post(path, CHAT.body("hi"), headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    if path == "/v1/messages":
        assert error["type"] == "authentication_error"
    assert "key is needed" in (error if isinstance(error, str) else error["message"])


def test_states_and_page_ask_for_no_key_and_show_none(server: Serving):
    for path in ("/", "/health", "/ready"):
        assert server.get(path).status_code == 200
    for path in ("/", "/health", "/openapi.json", "/metrics"):
        assert not any(key in server.get(path, headers=BEARER).text for key in KEYS)


def test_no_key_is_ever_logged(server: Serving):
    server.get(f"/v1/models?api_key={KEYS[0]}", headers=BEARER)
    server.post(CHAT.path, CHAT.body("a secret prompt"), headers={**BEARER, "X-Request-Id": "quiet"})
    server.get("/v1/models", headers={"Authorization": "Bearer wrong-key-guess"})
    server.wait_log("id=quiet")
    log = "\n".join(server.log)
    assert not any(key in log for key in (*KEYS, "wrong-key-guess"))
    assert "secret prompt" not in log


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:1", True),
        ("127.0.0.1", True),
        ("[::1]:52415", True),
        ("192.168.1.7:52415", True),
        ("10.0.0.1", True),
        ("box.local", True),
        ("a.b.localhost:80", True),
        ("host.docker.internal:52415", True),
        ("LLM.example.com:443", True),
        (socket.gethostname(), True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("llm.example.com.evil.example", False),
        ("8.8.8.8", False),
        ("127.0.0.1.evil.example", False),
        ("notlocal", False),
    ],
)
def test_host_check(server: Serving, host: str, allowed: bool):
    answer = server.get("/v1/models", headers={**BEARER, "Host": host})
    assert answer.status_code == (200 if allowed else 403)
    if not allowed:
        assert "--allow-host" in answer.json()["error"]["message"]


@given(st.text(max_size=60))
def test_host_check_takes_any_text(host: str):
    host_allowed(host, ("a.example",), "127.0.0.1")
    origin_allowed(host, "localhost", ("https://a.example",))


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:8080", True),
        ("https://app.example", True),
        ("https://app.example.evil.example", False),
        ("https://evil.example", False),
        ("http://app.example", False),
        ("null", False),
        ("file://", False),
        ("http://localhost.evil.example", False),
    ],
)
def test_cors(server: Serving, origin: str, allowed: bool):
    preflight = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-y",
    }
    with server.client() as client:
        asked = client.options(CHAT.path, headers=preflight)
        answer = client.post(CHAT.path, json=CHAT.body("hi"), headers={**BEARER, "Origin": origin})
        wrong = client.post(CHAT.path, json=CHAT.body("hi"), headers={"Origin": origin})
    if not allowed:
        assert asked.status_code == answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        assert "--cors-origin" in answer.json()["error"]["message"]
        return
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-headers"] == "x-y"
    assert answer.status_code == 200
    assert wrong.status_code == 401
    for reply in (asked, answer, wrong):
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["vary"] == "Origin"
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


def test_the_pages_own_origin(server: Serving):
    own = {"Host": "llm.example.com", "Origin": "https://llm.example.com"}
    assert server.get("/v1/models", headers={**BEARER, **own}).status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Serving):
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        head = f"POST {CHAT.path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS[0]}\r\n"
        connection.sendall(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer


def test_a_chunked_body_is_counted_while_it_comes(server: Serving):
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * (1 << 20)

    with server.client() as client:
        try:
            answer: Any = client.post(CHAT.path, content=endless(), headers=BEARER)
        except OSError:
            return
    assert answer.status_code == 413


def test_a_compressed_body_is_told_so(server: Serving):
    headers = {**BEARER, "Content-Encoding": "gzip"}
    with server.client() as client:
        answer = client.post(CHAT.path, content=gzip.compress(b"{}"), headers=headers)
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.json()["error"]["message"]


# ------------------------------------------------------------------------------------------ start-up


def start(home: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exocli", "serve", "-b", "scripted", "--port", "0", *flags]
    return subprocess.run(
        command, env=environment(home, **env), capture_output=True, text=True, timeout=20, check=False
    )


@pytest.fixture(scope="module")
def unlocked(home: Path) -> Iterator[Serving]:
    with Serving(home, "--host", "0.0.0.0", "--insecure", "--log-prompts") as serving:
        yield serving


def test_other_machines_need_a_key_or_a_word(home: Path, server: Serving, unlocked: Serving):
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused = start(home, "--host", host)
        assert refused.returncode == 2
        assert "--api-key-file" in refused.stderr
        assert "--insecure" in refused.stderr
    nowhere = start(home, "--host", "")
    assert nowhere.returncode == 2 and "The host is empty" in nowhere.stderr
    assert server.get("/v1/models").status_code == 401
    assert unlocked.get("/v1/models").status_code == 200


@pytest.mark.parametrize("text", ["tiny\n", "with space in it\n", "good-key-12345\nümlaut-key-1234\n"])
def test_keys_that_cannot_be_meant(text: str):
    with pytest.raises(UsageError) as refused:
        read_keys(text, "the file")
    assert not any(line in refused.value.message for line in text.splitlines())


def test_a_file_without_a_key_is_a_mistake(home: Path, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# nothing\n")
    refused = start(home, "--api-key-file", str(file))
    assert (refused.returncode, refused.stderr) == (2, f"exo: {file} holds no key.\n")


def test_prompts_are_logged_only_on_request(unlocked: Serving):
    unlocked.post(CHAT.path, CHAT.body("remember me"), headers={"X-Request-Id": "loud"})
    assert "remember me" in unlocked.wait_log("id=loud")
