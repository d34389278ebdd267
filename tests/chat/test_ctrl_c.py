"""The contract's Ctrl-C table, row by row, at a real terminal with real workers (B02, B14, B32, B62, B63)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.chat.conftest import Shared, Start
from tests.chat.terminal import CTRL_C, CTRL_D, ENTER, TAB, Terminal
from tests.support.runtime import wait_gone

LONG = "slowly briefly " + " ".join(f"w{n}" for n in range(60))


def leave(terminal: Terminal) -> None:
    """Ctrl-D: exit 0, and no worker outlives it."""
    workers = terminal.workers()
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert all(wait_gone(pid) for pid in workers)
    assert terminal.raw.endswith(b"\n") or terminal.cursor_line == ""


def test_in_prefill_the_message_is_offered_and_the_same_again_goes_on(start: Start) -> None:
    terminal = start()
    terminal.prompt()
    terminal.send(LONG + ENTER)
    terminal.until(r"reading █.*/62 tokens · \d+ tok/s · \d s left · Ctrl-C stops")
    worker = terminal.workers()
    terminal.send(CTRL_C)
    shown = terminal.until(r"\[stopped after reading \d+ of 62 tokens; \d+ are kept")
    kept = int(shown.split(";")[1].split()[0])
    assert 0 < kept < 62
    terminal.until("> Enter sends again, Tab edits: slowly briefly w0")
    assert not any("reading" in line and "█" in line for line in terminal.lines), "the bar is gone"
    terminal.send(ENTER)
    terminal.until("^> slowly briefly w0", count=2)
    terminal.until(rf"\[goes on at {kept} of 62 tokens\]")
    terminal.until("^heard 1: briefly$")
    terminal.prompt()
    assert terminal.workers() == worker, "the same worker all along"
    terminal.ask("next question", "heard 3: next question")
    leave(terminal)


def test_in_decode_the_partial_answer_stays_marked(terminal: Terminal, shared: Shared) -> None:
    terminal.send("tell me forever" + ENTER)
    terminal.until("heard 1: tell me forever heard")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped\]$")
    terminal.prompt()
    terminal.ask("and now", "heard 3: and now")
    turns = json.loads(next(shared.conversations.glob("*.json")).read_text())["turns"]
    assert [turn.get("mark", "") for turn in turns] == ["", "stopped", "", ""]
    assert turns[1]["text"].startswith("heard 1: tell me forever heard")
    assert turns[1]["report"]["cancel"]["phase"] == "decode"


def test_while_loading_the_worker_ends_and_the_next_message_loads_anew(start: Start) -> None:
    terminal = start("-o", "load=hang")
    terminal.prompt()
    terminal.send("hello" + ENTER)
    terminal.until(r"loading talker · █+░+ · \d s · Ctrl-C stops")
    workers = terminal.workers()
    assert len(workers) == 1
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped while loading\]$")
    terminal.offered("hello")
    assert wait_gone(workers[0])
    terminal.send(ENTER)
    terminal.until("loading talker")
    terminal.send(CTRL_C)
    terminal.until("stopped while loading", count=2)
    terminal.offered("hello")
    time.sleep(1.01)  # the press must not count as one with the last
    terminal.send(CTRL_C)
    terminal.prompt()
    leave(terminal)


def test_two_presses_at_once_are_one_and_spare_the_offered_message(start: Start) -> None:
    terminal = start()
    terminal.prompt()
    terminal.send("slowly forever" + ENTER)
    terminal.until("heard 1: slowly")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped\]$")
    terminal.prompt()
    terminal.send(LONG + ENTER)
    terminal.until("reading")
    worker = terminal.workers()
    asked = time.monotonic()
    terminal.send(CTRL_C + CTRL_C)
    terminal.until("stopped after reading")
    terminal.until("> Enter sends again, Tab edits: slowly briefly w0")
    if time.monotonic() - asked < 0.8:  # on a busy machine the second may be over
        terminal.send(CTRL_C)
    terminal.send(TAB + "!")
    terminal.until("w59!")
    assert terminal.workers() == worker


def test_what_is_typed_after_a_cancel_declines_the_offer(start: Start) -> None:
    terminal = start("-o", "load=hang")
    terminal.prompt()
    terminal.send("hello" + ENTER)
    terminal.until("loading talker")
    terminal.send(CTRL_C)
    terminal.offered("hello")
    terminal.ask("/undo", "exo: There is nothing to take back")
    terminal.send("/retry" + ENTER)
    terminal.until("loading talker")
    terminal.send(CTRL_C)
    terminal.offered("hello")
    time.sleep(1.01)  # the press must not count as one with the last
    terminal.send(CTRL_C)
    terminal.prompt()
    leave(terminal)


def test_a_deaf_worker_is_offered_then_killed_and_comes_back(terminal: Terminal) -> None:
    terminal.ask("hello", "heard 1: hello")
    terminal.send("deaf forever slowly" + ENTER)
    terminal.until("heard 3: deaf")
    worker = terminal.workers()
    asked = time.monotonic()
    terminal.send(CTRL_C)
    offer = r"The worker: still cancelling; press again to kill the worker \(its cache is lost\)$"
    terminal.until(offer)
    assert time.monotonic() - asked > 1.0
    assert terminal.workers() == worker, "nothing but a press after the offer kills"
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped; the worker was ended and starts again\]$")
    terminal.prompt()
    assert wait_gone(worker[0])
    terminal.ask("again", "heard 5: again")
    assert terminal.workers() != worker


def test_a_press_after_a_second_brings_the_offer_at_once(terminal: Terminal) -> None:
    terminal.send("deaf forever slowly" + ENTER)
    terminal.until("heard 1: deaf")
    terminal.send(CTRL_C)
    time.sleep(1.05)  # the time itself is what is tested
    assert not any("still cancelling" in line for line in terminal.lines)
    terminal.send(CTRL_C)
    asked = time.monotonic()
    terminal.until("still cancelling")
    assert time.monotonic() - asked < 0.85
    terminal.send(CTRL_C)
    terminal.until("the worker was ended")
    terminal.prompt()


def test_in_one_breath_with_enter_it_means_the_reply(start: Start) -> None:
    terminal = start()
    terminal.prompt()
    terminal.ask("hello", "heard 1: hello")
    terminal.send("forever" + ENTER + CTRL_C)
    terminal.until(r"^\[stopped")
    terminal.send(CTRL_D)


def test_at_the_prompt_it_clears_the_line_then_says_how_to_leave(terminal: Terminal) -> None:
    terminal.send("half a mess")
    terminal.prompt("half a mess")
    terminal.send(CTRL_C)
    terminal.prompt()
    assert not any("mess" in line for line in terminal.lines)
    terminal.send(CTRL_C)
    terminal.until(r"^Ctrl-D or /exit leaves\.$")
    terminal.prompt()
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.until(r"^Ctrl-D or /exit leaves\.$", count=2)
    terminal.prompt()


def test_before_a_silent_remote_has_answered(start: Start, env: dict[str, str]) -> None:
    terminal = start(backend="silent")
    terminal.prompt()
    terminal.send("anyone?" + ENTER)
    terminal.until(r"^waiting for silent · \d s · Ctrl-C stops")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped")
    terminal.offered("anyone?")
    terminal.send(ENTER)
    terminal.until(r"^waiting for silent · 1 s · Ctrl-C stops")
    Path(env["TALKER_GO"]).touch()
    terminal.until("^at last$")
    terminal.prompt()
    leave(terminal)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("idle", signal.SIGHUP),
        ("prefill", signal.SIGTERM),
        ("decode", signal.SIGTERM),
        ("loading", signal.SIGTERM),
    ],
)
def test_ended_from_outside_at_any_moment(
    start: Start, conversations: Path, moment: str, number: signal.Signals
) -> None:
    terminal = start(*(["-o", "load=hang"] if moment == "loading" else []))
    terminal.prompt()
    message, seen = {
        "idle": ("hello", "heard 1: hello"),
        "prefill": (LONG, "reading █"),
        "decode": ("some words forever", "some words forever heard"),
        "loading": ("hello", "loading talker"),
    }[moment]
    terminal.send(message + ENTER)
    terminal.until(seen)
    if moment == "idle":
        terminal.prompt()
    workers = terminal.workers()
    assert len(workers) == 1
    terminal.process.send_signal(number)
    assert terminal.ended() == -number
    assert all(wait_gone(pid) for pid in workers)
    assert b"Traceback" not in terminal.raw
    saved = [json.loads(path.read_text()) for path in conversations.glob("*.json")]
    if moment in ("idle", "decode"):
        assert saved[0]["turns"][1].get("mark", "") == ("stopped" if moment == "decode" else "")
    else:
        assert saved == [], "the question was taken back"


def test_a_chat_that_is_killed_takes_its_worker_along(start: Start) -> None:
    terminal = start()
    terminal.prompt()
    terminal.send(LONG + ENTER)
    terminal.until("reading █")
    workers = terminal.workers()
    terminal.process.kill()
    assert terminal.ended() == -signal.SIGKILL
    assert all(wait_gone(pid) for pid in workers)
