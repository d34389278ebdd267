"""A closed connection and a cancel by id: every phase, every API, with key, CORS and log switched on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.apis import ALL, CHAT, OLLAMA_CHAT, RESPONSES, SSE, Api
from tests.server.serving import Serving

KEY = "a-key-for-the-tests"
HEADERS = {"Authorization": f"Bearer {KEY}", "Origin": "http://localhost:3000"}
LONG = "slow " * 200  # 20 s of prefill in steps of 0.1 s
FOREVER = "never ending forever "


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    """Everything on: key, CORS, JSON log; one request at a time, so that a second one queues."""
    flags = ["--max-concurrency", "1", "--log-format", "json", "--cors-origin", "http://page.example"]
    with Serving(home, *flags, env={"EXO_API_KEY": KEY}) as serving:
        serving.post(CHAT.path, CHAT.body("wake up"), headers=HEADERS)
        yield serving


def outcome(server: Serving, request_id: str) -> dict[str, Any]:
    """The log's line about a request."""
    line: dict[str, Any] = json.loads(server.wait_log(f'"id": "{request_id}"'))
    return line


def in_phase(phase: str, tokens: int = 0) -> Any:
    return lambda rows: any(r["phase"] == phase and r["tokens"] >= tokens for r in rows)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", ALL, ids=repr)
def test_a_client_that_leaves_in_prefill_stops_the_work_within_a_chunk(
    server: Serving, api: Api, stream: bool
):
    name = f"gone-{api.name}-{stream}"
    connection = server.open(api.path, api.ask(LONG, stream), {**HEADERS, "X-Request-Id": name})
    server.wait_requests(lambda rows: any(r["processed"] > 1 for r in rows), headers=HEADERS)
    connection.close()
    server.wait_idle(2, headers=HEADERS)
    line = outcome(server, name)
    assert (line["outcome"], line["phase"], line["why"]) == ("cancelled", "prefill", "the client left")
    assert line["processed"] < 100
    assert line["latency_ms"] < 1000


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_a_queued_clients_request_is_never_prefilled(server: Serving, api: Api):
    first = server.open(CHAT.path, CHAT.ask(FOREVER, stream=True), HEADERS)
    server.wait_requests(in_phase("decode"), headers=HEADERS)
    for stream in (True, False):
        name = f"queued-{api.name}-{stream}"
        second = server.open(api.path, api.ask("hello", stream), {**HEADERS, "X-Request-Id": name})
        server.wait_requests(lambda rows: len(rows) == 2, headers=HEADERS)
        second.close()
        server.wait_requests(lambda rows: len(rows) == 1, headers=HEADERS)
        line = outcome(server, name)
        assert (line["outcome"], line["phase"], line["processed"]) == ("cancelled", "queued", 0)
    first.close()
    server.wait_idle(headers=HEADERS)


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_a_client_that_leaves_while_decoding(server: Serving, api: Api):
    for stream in (True, False):
        connection = server.open(api.path, api.ask(FOREVER, stream), HEADERS)
        server.wait_requests(in_phase("decode", 10), headers=HEADERS)
        connection.close()
        server.wait_idle(2, headers=HEADERS)
        assert (
            api.text_of(server.post(api.path, api.ask("next", stream=False), headers=HEADERS).json())
            == "next"
        )


# ----------------------------------------------------------------------------------------- by id


class Asking(threading.Thread):
    """A request in a thread of its own; `answer` after `join`."""

    def __init__(self, server: Serving, api: Api, text: str, stream: bool, name: str, **more: Any) -> None:
        super().__init__()
        self._ask = (server, api, api.ask(text, stream, **more), name)
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        server, api, body, name = self._ask
        self.answer = server.post(api.path, body, headers={**HEADERS, "X-Request-Id": name})


def cancel(server: Serving, request_id: str) -> Any:
    return server.post(f"/v1/requests/{request_id}/cancel", headers=HEADERS)


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_a_stream_that_is_cancelled_by_id_ends_properly_with_its_receipt(server: Serving, api: Api):
    usage = {"stream_options": {"include_usage": True}} if api is CHAT else {}
    asking = Asking(server, api, FOREVER, True, f"by-id-{api.name}", **usage)
    server.wait_requests(in_phase("decode", 3), headers=HEADERS)
    receipt = cancel(server, f"by-id-{api.name}")
    asking.join(5)
    assert receipt.status_code == 200
    assert receipt.json().items() >= {"state": "cancelled", "phase": "decode", "ranks": 1, "total": 3}.items()
    assert {"kept_tokens", "latency_ms", "confirmed", "killed", "processed"} <= receipt.json().keys()
    said, reason, ended, told = api.read_stream(asking.answer.content)
    assert said.startswith("never ending forever never")
    assert reason == api.truncated
    assert ended
    assert told["cancel"]["phase"] == "decode"
    if api is CHAT:
        assert '"completion_tokens":' in asking.answer.text.splitlines()[-4]


@pytest.mark.parametrize("api", ALL, ids=repr)
def test_whole_replies_cancelled_by_id(server: Serving, api: Api):
    """With a token: 200 and what there is. Without: 499 in the API's shape."""
    asking = Asking(server, api, FOREVER, False, f"whole-{api.name}")
    server.wait_requests(in_phase("decode", 3), headers=HEADERS)
    cancel(server, f"whole-{api.name}")
    asking.join(5)
    assert asking.answer.status_code == 200
    assert api.text_of(asking.answer.json()).startswith("never ending")
    assert asking.answer.json()["exo"]["cancel"]["phase"] == "decode"
    asking = Asking(server, api, LONG, False, f"early-{api.name}")
    server.wait_requests(in_phase("prefill"), headers=HEADERS)
    assert cancel(server, f"early-{api.name}").json()["phase"] == "prefill"
    asking.join(5)
    assert asking.answer.status_code == 499
    assert "cancelled" in api.message_of(asking.answer.json())
    assert asking.answer.headers["x-should-retry"] == "false"


def test_queued_finished_and_unknown(server: Serving):
    running = Asking(server, CHAT, FOREVER, True, "running")
    server.wait_requests(in_phase("decode"), headers=HEADERS)
    queued = Asking(server, CHAT, "hello", False, "waiting")
    server.wait_requests(lambda rows: len(rows) == 2, headers=HEADERS)
    receipt = cancel(server, "waiting").json()
    assert (receipt["state"], receipt["phase"], receipt["processed"], receipt["ranks"]) == (
        "cancelled",
        "queued",
        0,
        0,
    )
    queued.join(5)
    assert queued.answer.status_code == 499
    assert cancel(server, "chatcmpl-running").json()["state"] == "cancelled"  # the form of the body
    running.join(5)
    again = cancel(server, "running")
    assert again.status_code == 200
    assert again.json().items() >= {"state": "finished", "reason": "cancelled"}.items()
    server.post(CHAT.path, CHAT.body("done"), headers={**HEADERS, "X-Request-Id": "over"})
    assert cancel(server, "over").json() == {"id": "over", "state": "finished", "reason": "stop"}
    assert server.post("/v1/cancel/over", headers=HEADERS).json()["state"] == "finished"
    unknown = cancel(server, "nobody")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "not_found"


def test_all_at_once(server: Serving):
    askings = [Asking(server, api, FOREVER, True, f"all-{api.name}") for api in SSE]
    server.wait_requests(lambda rows: len(rows) == len(askings), headers=HEADERS)
    receipts = server.post("/v1/requests/cancel", headers=HEADERS).json()["data"]
    assert {r["id"] for r in receipts} == {f"all-{api.name}" for api in SSE}
    assert {r["state"] for r in receipts} == {"cancelled"}
    for asking in askings:
        asking.join(5)
        assert asking.answer.status_code == 200
    assert server.post("/v1/requests/cancel", headers=HEADERS).json() == {"data": []}


def test_responses_has_routes_of_its_own(server: Serving):
    asking = Asking(server, RESPONSES, FOREVER, True, "mine")
    server.wait_requests(in_phase("decode"), headers=HEADERS)
    shown = server.get("/v1/responses/resp_mine", headers=HEADERS).json()
    assert (shown["id"], shown["status"]) == ("resp_mine", "in_progress")
    ended = server.post("/v1/responses/resp_mine/cancel", headers=HEADERS).json()
    assert (ended["status"], ended["exo"]["cancel"]["state"]) == ("cancelled", "cancelled")
    asking.join(5)
    assert server.get("/v1/responses/resp_mine", headers=HEADERS).status_code == 404
    late = server.post("/v1/responses/resp_mine/cancel", headers=HEADERS).json()
    assert (late["id"], late["state"], late["status"]) == ("resp_mine", "finished", "cancelled")
    cut = {**HEADERS, "X-Request-Id": "cut"}
    server.post(RESPONSES.path, RESPONSES.ask("a b c", False, max_output_tokens=1), headers=cut)
    late = server.post("/v1/responses/cut/cancel", headers=HEADERS).json()
    assert (late["state"], late["status"], late["reason"]) == ("finished", "incomplete", "length")


def test_a_deadline_is_a_cancel_that_says_so(server: Serving):
    headers = {**HEADERS, "X-Request-Timeout": "0.3"}
    late = server.post(CHAT.path, CHAT.ask(LONG, stream=False), headers=headers)
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "deadline_exceeded"
    part = server.post(CHAT.path, CHAT.ask(FOREVER, stream=False, timeout=0.3), headers=HEADERS).json()
    assert part["choices"][0]["finish_reason"] == "length"
    assert part["exo"]["cancel"]["reason"] == "deadline"
    for bad in ("soon", "0", "-1", "nan", "inf"):
        refused = server.post(CHAT.path, CHAT.body("hi"), headers={**HEADERS, "X-Request-Timeout": bad})
        assert refused.status_code == 400


def test_a_cancelled_prompt_sent_again_goes_on_where_it_stopped(server: Serving):
    text = "slow " * 20
    asking = Asking(server, CHAT, text, True, "first-half")
    server.wait_requests(lambda rows: any(r["processed"] >= 5 for r in rows), headers=HEADERS)
    kept = cancel(server, "first-half").json()["kept_tokens"]
    asking.join(5)
    assert kept >= 5
    usage = server.post(CHAT.path, CHAT.ask(text, stream=False), headers=HEADERS).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == kept


def test_an_id_in_flight_gets_a_fresh_one_back(server: Serving):
    asking = Asking(server, CHAT, FOREVER, True, "twice")
    server.wait_requests(in_phase("decode"), headers=HEADERS)
    other = Asking(server, OLLAMA_CHAT, "hi", False, "twice")
    server.wait_requests(lambda rows: len(rows) == 2, headers=HEADERS)
    cancel(server, "twice")
    asking.join(5)
    other.join(5)
    assert asking.answer.headers["x-request-id"] == "twice"
    assert other.answer.headers["x-request-id"] != "twice"
    assert other.answer.status_code == 200
