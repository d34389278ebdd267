"""What goes wrong around the page: reloads, two tabs, a server or a worker that is gone, waiting."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from tests.server.serving import Serving, chat
from tests.web.conftest import Open
from tests.web.helpers import (
    FOREVER,
    LONG,
    ask,
    button,
    errors,
    replies,
    said,
    send,
    wait_busy,
    wait_idle,
    wait_said,
)


def test_a_reload_in_mid_stream_says_so_and_offers_to_go_on(page: Page, serving: Serving):
    send(page, FOREVER)
    wait_said(page, 30)
    page.reload()
    serving.wait_idle(2.0)
    wait_idle(page)
    expect(page.locator("[data-state=broken] .note")).to_contain_text("closed or reloaded")
    kept = said(page)
    assert len(kept) > 5
    page.get_by_role("button", name="Go on").click()
    wait_said(page, len(kept) + 20)
    page.keyboard.press("Escape")
    wait_idle(page)
    assert errors(page) == []


def test_two_tabs_of_one_conversation(page: Page, open_page: Open, serving: Serving):
    send(page, LONG)
    wait_said(page, 10)
    other = open_page(serving, "#" + page.url.partition("#")[2])
    wait_busy(other)
    expect(replies(other).last.locator(".label")).to_have_text("On its way in another tab")
    button(other).click()
    wait_idle(page)
    wait_idle(other)
    serving.wait_idle(2.0)
    expect(replies(page).last.locator(".note")).to_have_text("Stopped on the server.")
    expect(replies(other).last.locator(".body")).to_have_text(said(page))
    assert ask(other, "from here") == "from here"
    expect(replies(page).last.locator(".body")).to_have_text("from here")


def test_two_tabs_of_two_conversations(page: Page, open_page: Open, serving: Serving):
    other = open_page(serving)
    send(page, "one forever ")
    send(other, "two forever ")
    wait_said(page, 20)
    wait_said(other, 20)
    assert "two" not in said(page) and "one" not in said(other)
    page.keyboard.press("Escape")
    wait_idle(page)
    wait_busy(other)
    other.keyboard.press("Escape")
    serving.wait_idle(2.0)


FAST_CLOCK = "() => { const real = setInterval; window.setInterval = (run, ms) => real(run, ms / 25) }"
"""Two seconds of silence are fifty."""


def test_a_server_that_goes_silent_that_was_killed_and_comes_back(web_home: Path, open_page: Open):
    with Serving(web_home, "-o", "pace_s=0.01") as server:
        page = open_page(server)
        page.evaluate(FAST_CLOCK)
        ask(page, "hello")
        send(page, LONG)
        wait_said(page, 30)
        os.killpg(server.process.pid, signal.SIGSTOP)  # its connections stay open, and nothing comes
        wait_idle(page)
        os.killpg(server.process.pid, signal.SIGCONT)
        expect(page.locator("[data-state=broken] .note")).to_contain_text("silent")
        expect(page.get_by_role("button", name="Go on")).to_be_visible()
        server.wait_idle(5.0)
        send(page, LONG)
        expect(replies(page)).to_have_count(3)
        wait_said(page, 30)
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
    wait_idle(page)
    broken = page.locator("[data-state=broken] .note")
    expect(broken.last).to_have_text("The connection to the server broke off.")
    assert len(said(page)) > 20
    send(page, "is anybody there?")
    wait_idle(page)
    assert errors(page)[-1].startswith("No server answers.")
    with Serving(web_home, "-o", "pace_s=0.01", "--port", str(server.port)):
        page.get_by_role("button", name="Retry").click()
        expect(replies(page).last.locator(".body")).to_have_text("is anybody there?")
        wait_idle(page)
        assert len(errors(page)) == 2, "only the two that broke"


def test_a_worker_that_was_killed(page: Page):
    send(page, "hello then die ")
    wait_idle(page)
    (told,) = errors(page)
    assert "signal 9" in told or "killed" in told or "SIGKILL" in told, told
    assert ask(page, "still there?") == "still there?"


def test_waiting_for_the_model_and_in_the_queue(web_home: Path, open_page: Open):
    with Serving(web_home, "-o", "load_s=2", "-o", "pace_s=0.01", "--max-concurrency", "1") as server:
        first, second = open_page(server), open_page(server)
        send(first, "round and round forever ")
        expect(replies(first).last.locator(".label")).to_have_text("Loading the model")
        expect(replies(first).last.locator(".numbers")).to_have_text(re.compile(r"^\d+ %"))
        wait_said(first, 10)
        send(second, "my turn")
        expect(replies(second).last.locator(".label")).to_have_text("Waiting for its turn")
        expect(replies(second).last.locator(".numbers")).to_have_text("Next in the queue")
        button(first).click()
        expect(replies(second).last.locator(".body")).to_have_text("my turn")


def test_the_requests_panel(page: Page, serving: Serving):
    gone = serving.open(
        "/v1/chat/completions", chat("elsewhere forever ", stream=True), {"X-Request-Id": "other"}
    )
    send(page, "here forever ")
    wait_said(page, 10)
    page.get_by_role("button", name="Requests on the server").click()
    rows = page.get_by_role("list", name="Requests").get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("writing")
    expect(page.get_by_role("list", name="Models")).to_contain_text("scripted · scripted")
    page.get_by_role("button", name="Cancel request other").click()
    expect(rows).to_have_count(1)
    assert [row["id"] for row in serving.requests()] != ["other"]
    rows.get_by_role("button").click()
    expect(page.get_by_text("Nothing runs.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(replies(page).last.locator(".note")).to_have_text("Stopped on the server.")
    gone.close()


def test_a_cancel_that_the_server_has_not_heard_of(page: Page, context: BrowserContext, serving: Serving):
    """The cancel overtakes its own request: closing the connection does it."""
    held: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    send(page, "never sent")
    wait_busy(page)
    page.keyboard.press("Escape")
    wait_idle(page)
    expect(page.get_by_label("Message", exact=True)).to_have_value("never sent")
    page.unroute("**/v1/chat/completions")
    assert ask(page, "sent") == "sent"
    assert serving.requests() == []


SLOW_DATABASE = """
  window.held = [];
  Object.defineProperty(IDBOpenDBRequest.prototype, "onsuccess", {
    set(done) { this.addEventListener("success", () => held.push(done)) },
  });
"""


def test_who_is_faster_than_the_database_loses_nothing(page: Page, context: BrowserContext):
    """Enter and a click while the page still waits for its conversation."""
    ask(page, "the first chat")
    quick = context.new_page()
    quick.add_init_script(SLOW_DATABASE)
    quick.goto(page.url)
    box, settings = quick.get_by_label("Message", exact=True), quick.locator("#settings-button")
    box.fill("typed early")
    quick.keyboard.press("Enter")
    place = settings.bounding_box()
    assert place is not None
    quick.mouse.click(place["x"] + 20, place["y"] + 20)
    expect(box).to_have_value("typed early")
    quick.evaluate("() => { held.forEach(done => done()); held.push = done => done() }")
    settings.click()
    expect(quick.get_by_role("dialog")).to_be_visible()
    quick.keyboard.press("Escape")
    expect(quick.locator(".message .body").first).to_have_text("the first chat")
    expect(box).to_have_value("typed early")
    button(quick).click()
    expect(replies(quick).last.locator(".body")).to_have_text("typed early")


def test_a_browser_that_keeps_nothing_still_chats(context: BrowserContext, serving: Serving):
    """As with all site data blocked: each kind of storage throws."""
    page = context.new_page()
    page.add_init_script(
        "for (const name of ['localStorage', 'sessionStorage', 'indexedDB'])"
        " Object.defineProperty(window, name, { get() { throw new DOMException('off', 'SecurityError') } })"
    )
    page.goto(serving.url)
    assert ask(page, "hello there") == "hello there"
    expect(page.locator("#toast")).to_contain_text("does not keep the conversation")
    page.get_by_role("button", name="Light or dark").click()
    page.get_by_role("button", name="Settings of this chat").click()
    page.get_by_label("Token limit").fill("1")
    page.keyboard.press("Escape")
    assert ask(page, "and again") == "and"


FULL = """() => {
  const put = IDBObjectStore.prototype.put;
  IDBTransaction.prototype.commit = () => {};
  IDBObjectStore.prototype.put = function (value) {
    const asked = put.call(this, value);
    asked.addEventListener("success", () => asked.transaction.abort());
    return asked;
  };
}"""
"""A quota shows at the end of a transaction, not when the data is handed over."""


def test_a_full_disk_is_told(page: Page):
    page.evaluate(FULL)
    assert ask(page, "hello there") == "hello there"
    expect(page.locator("#toast")).to_contain_text("storage is off or full")
