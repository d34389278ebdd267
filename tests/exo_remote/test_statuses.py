"""Every refusal a server may answer with: one sentence, with the server's own status and words."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from exocli import Status, UpstreamError

from exo_remote import exchange, problems
from tests.exo_remote.asking import Answer, ask, chat, opened
from tests.exo_remote.upstream import CHAT, Asked, Connection, Handler, Upstream, delta, refuses, says


async def refused(script: Handler, folder: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """The error's wire form, and the server's url."""
    async with Upstream({CHAT: script}) as up, opened(up.url, folder, **options) as engine:
        return (await ask(engine)).error, up.url


def message(text: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": text, **more}}).encode()


async def test_401_without_a_key_and_with_a_wrong_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    error, _ = await refused(refuses(401, message("No key.")), tmp_path)
    assert "wants a key (401: No key)" in error["message"] and "EXO_REMOTE_API_KEY" in error["message"]
    assert error["details"]["status"] == 401
    monkeypatch.setenv("EXO_REMOTE_API_KEY", "sk-very-secret")
    error, _ = await refused(refuses(401, message("Wrong key.")), tmp_path)
    assert "refuses this key" in error["message"] and "very-secret" not in json.dumps(error)


async def test_404_names_the_whole_url(tmp_path: Path):
    error, url = await refused(refuses(404, b"<html><title>404 Not Found</title></html>"), tmp_path)
    assert error["message"] == f"There is nothing at {url}{CHAT} (404: 404 Not Found); check -o url=."
    assert error["details"] == {"status": 404, "url": f"{url}{CHAT}", "upstream": "404 Not Found"}


async def test_404_for_a_model_lists_the_models(tmp_path: Path):
    error, _ = await refused(refuses(404, message('The model "z" does not exist.')), tmp_path)
    assert error["code"] == "model_not_found" and "it has: m." in error["message"]


@pytest.mark.parametrize("date", [False, True])
async def test_429_keeps_retry_after(date: bool, tmp_path: Path):
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=7.5), usegmt=True) if date else "7"
    error, _ = await refused(refuses(429, message("Slow down."), retry_after=when), tmp_path)
    assert error["code"] == "overloaded" and 5 < error["details"]["retry_after"] <= 7.5
    assert "Slow down" in error["message"] and "try again in" in error["message"]


def test_retry_after_that_makes_no_sense():
    for text in ("", "soon", "-5", "1e99", "nan"):
        assert problems.retry_after({"retry-after": text}) is None


async def test_500_with_html(tmp_path: Path):
    page = b"<html><head><style>p {}</style></head><body><h1>Oh &amp; no</h1>\n<p>nginx</p></body></html>"
    error, url = await refused(refuses(500, page, content_type="text/html"), tmp_path)
    assert error["message"] == f"{url}{CHAT} failed (500: Oh & no nginx)."
    assert error["details"]["status"] == 500


async def test_a_web_page_with_200(tmp_path: Path):
    error, _ = await refused(refuses(200, b"<html>Log in</html>", content_type="text/html"), tmp_path)
    assert "web page" in error["message"] and "-o url=" in error["message"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EXO_REMOTE_API_KEY", "sk-very-secret")
    async with Upstream() as elsewhere:
        script = refuses(status, b"", location=f"{elsewhere.url}{CHAT}")
        error, _ = await refused(script, tmp_path)
        assert f"redirects to {elsewhere.url}{CHAT}" in error["message"]
        assert not elsewhere.asked


async def test_a_redirect_of_the_listing_is_told_at_once(tmp_path: Path):
    async with Upstream({"/v1/models": refuses(308, b"", location="https://there/v1/models")}) as up:
        with pytest.raises(UpstreamError, match="redirects to https://there/v1/models"):
            async with opened(up.url, tmp_path):
                pass


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (message("temperature: must be below 2.", param="temperature"), "bad_request"),
        (message("Too long.", code="context_length_exceeded"), "context_length_exceeded"),
        (message("Too long.", type="exceed_context_size_error"), "context_length_exceeded"),
    ],
)
async def test_400_is_the_requests_own_fault(body: bytes, code: str, tmp_path: Path):
    error, _ = await refused(refuses(400, body), tmp_path)
    assert error["code"] == code and error["details"]["status"] == 400


async def test_llama_cpps_counts_of_a_context_overflow(tmp_path: Path):
    body = message("Too long.", type="exceed_context_size_error", n_prompt_tokens=99, n_ctx=64)
    error, _ = await refused(refuses(400, body), tmp_path)
    assert (error["details"]["prompt_tokens"], error["details"]["context"]) == (99, 64)


async def test_a_gateway_passes_the_status_on():
    for status in (401, 403, 500, 503):
        assert UpstreamError("x", status=status).http_status == status
    assert UpstreamError("x").http_status == 502 and UpstreamError("x", status=302).http_status == 502


async def test_503_while_the_model_loads_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "LOADING_EVERY_S", 0.01)
    left = 3

    async def script(asked: Asked, connection: Connection) -> None:
        nonlocal left
        left -= 1
        if left:
            await connection.whole(503, message("Loading model", type="unavailable_error"))
        else:
            await says(delta("up", finish="stop"))(asked, connection)

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        got = await ask(engine)
        assert got.text == "up" and [s.phase for s in got.of(Status)] == ["loading"]


async def test_other_503s_are_not_tried_again(tmp_path: Path):
    async with Upstream({CHAT: refuses(503, message("Down."))}) as up, opened(up.url, tmp_path) as engine:
        assert (await ask(engine)).error["details"]["status"] == 503
        assert sum(a.path == CHAT for a in up.asked) == 1


async def test_fields_that_a_server_does_not_know(tmp_path: Path):
    """A strict server refuses stream_options, a newer one max_tokens: asked once, then remembered."""

    async def script(asked: Asked, connection: Connection) -> None:
        for field in ("stream_options", "max_tokens"):
            if field in asked.json:
                await connection.whole(400, message(f"Unknown parameter: '{field}'.", param=field))
                return
        await says(delta("ok", finish="stop"))(asked, connection)

    async with Upstream({CHAT: script}) as up, opened(up.url, tmp_path) as engine:
        for _ in range(2):
            got: Answer = await ask(engine, chat("Hi", max_tokens=9))
            assert got.text == "ok"
        sent = [a.json for a in up.asked if a.path == CHAT]
        assert len(sent) == 4 and sent[-1]["max_completion_tokens"] == 9
