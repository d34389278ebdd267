"""Cancels, ends and disconnects at one moment: one terminal state, which client, log and metrics share."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.apis import ALL, CHAT, Api
from tests.server.serving import Serving

RACES = 200
WITNESS = " ".join(f"w{n}" for n in range(300))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    with Serving(home, "--log-format", "json", "-o", "pace_s=0.001") as serving:
        serving.post(CHAT.path, CHAT.body("wake up"))
        yield serving


def outcomes(server: Serving) -> Counter[str]:
    """By the metrics."""
    found: Counter[str] = Counter()
    for outcome, count in re.findall(
        r'exo_requests_total{.*outcome="(\w+)"} ([0-9.]+)', server.get("/metrics").text
    ):
        found[outcome] += int(float(count))
    return found


def one_race(server: Serving, number: int) -> tuple[str, str, str]:
    """→ (id, how the stream ended, how the cancel was answered)."""
    rng = random.Random(number)
    api: Api = rng.choice(ALL)
    name = f"race-{number}"
    prompt = " ".join(["p"] * rng.randint(1, 10))
    answer: list[Any] = []

    def ask() -> None:
        answer.append(server.post(api.path, api.ask(prompt, stream=True), headers={"X-Request-Id": name}))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(rng.uniform(0.0, 0.06))
    state = server.post(f"/v1/requests/{name}/cancel")
    thread.join(20)
    said, reason, ended, receipt = api.read_stream(answer[0].content)
    assert ended, (api, answer[0].content)
    assert (receipt is not None) == (reason == api.truncated)
    if receipt is None:
        assert said == prompt  # nothing is lost where the end came first
    return name, "cancelled" if receipt else "stop", state.json().get("state", str(state.status_code))


def test_200_cancels_at_random_moments_leave_one_state_each(server: Serving):
    before = outcomes(server)
    witness: list[Any] = []

    def stand_by() -> None:
        witness.append(server.post(CHAT.path, CHAT.ask(WITNESS, stream=False)))

    bystander = threading.Thread(target=stand_by)
    bystander.start()
    with ThreadPoolExecutor(3) as pool:
        races = list(pool.map(lambda n: one_race(server, n), range(RACES)))
    bystander.join(30)
    assert CHAT.text_of(witness[0].json()) == WITNESS, "another stream's text was changed"
    for name, ended, answered in races:
        logged = json.loads(server.wait_log(f'"id": "{name}"'))["outcome"]
        assert logged == ended
        # The cancel came too early (404), in time, or too late.
        assert answered in ({"404", "finished"} if ended == "stop" else {"cancelled", "finished"}), (
            ended,
            answered,
        )
    assert len({name for name, _, _ in races}) == RACES
    after = outcomes(server)
    mine = Counter(ended for _, ended, _ in races) + Counter(stop=1)
    assert after - before == mine
    assert mine["cancelled"] > RACES / 10
    assert mine["stop"] > RACES / 10
    server.wait_idle()


def test_a_cancel_by_id_and_a_close_within_milliseconds_are_one_cancel(server: Serving):
    before = outcomes(server)
    for number in range(30):
        name = f"both-{number}"
        connection = server.open(CHAT.path, CHAT.ask("forever", stream=True), {"X-Request-Id": name})
        server.wait_requests(lambda rows: bool(rows))
        if number % 2:
            connection.close()
        answer = server.post(f"/v1/requests/{name}/cancel")
        connection.close()
        assert answer.status_code == 200
        server.wait_idle()
    assert outcomes(server) - before == Counter(cancelled=30)
    assert server.get("/health").json()["models"][0]["restarts"] == 0
