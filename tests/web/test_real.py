"""The page, a real server and the real default model: send, cancel in prefill and in decode, go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.server.serving import Serving
from tests.web.conftest import Open
from tests.web.helpers import ask, button, errors, replies, said, send, wait_busy, wait_idle, wait_said

pytestmark = pytest.mark.real
CHUNK_S = 3.0
"""One prefill chunk takes 0.3 s here; ten times that is for a machine that has other work."""
WATCH = """() => {
  window.shown = []; // each line of numbers, with the bar's value beside it
  window.moved = new Promise((resolve, reject) => {
    setTimeout(reject, 60000, "no numbers");
    new MutationObserver(() => {
      const line = document.querySelector(".numbers")?.textContent;
      const value = document.querySelector("progress")?.value;
      if (line && line !== shown.at(-1)?.[0]) shown.push([line, value]);
      if (shown.filter(([line]) => line.includes("left")).length > 1) resolve();
    }).observe(document.querySelector("#messages"), { subtree: true, childList: true, attributes: true });
  });
  const button = document.querySelector("#send");
  let asked = 0; // when the button was last pressed; `freed`: how long it took to say Send again, in ms
  button.addEventListener("click", () => (asked = performance.now()), true);
  new MutationObserver(() => {
    if (button.textContent === "Send") window.freed = performance.now() - asked;
  }).observe(button, { childList: true });
}"""


@pytest.fixture(scope="module")
def real(web_home: Path, smollm2_home: Path) -> Iterator[Serving]:
    with Serving(web_home, "-m", "smollm2", env={"EXO_HOME": str(smollm2_home)}, backend="mlx") as server:
        yield server


@pytest.fixture
def page(open_page: Open, real: Serving, first: Page) -> Page:
    return open_page(real, page=first)


def test_a_message_is_answered_and_the_button_comes_back(page: Page):
    place = button(page).bounding_box()
    send(page, "What is the capital of France? One word.")
    wait_busy(page)
    assert button(page).bounding_box() == place
    wait_idle(page)
    assert button(page).bounding_box() == place
    assert "Paris" in said(page)
    expect(replies(page).last.locator(".actions")).to_contain_text("tokens/s")
    assert errors(page) == []


def test_cancel_in_prefill(page: Page, real: Serving):
    text = "The quick brown fox jumps over the lazy dog near the old stone bridge. " * 350
    bar = page.locator("progress")
    page.evaluate(WATCH)
    send(page, text)
    page.evaluate("moved")
    button(page).click()
    wait_idle(page)
    assert page.evaluate("freed") < 1000, "the page is free at once"
    real.wait_idle(CHUNK_S)
    expect(bar).to_have_count(0)
    assert errors(page) == []
    lines, values = zip(*page.evaluate("shown"), strict=True)
    assert list(values) == sorted(set(values)), "the bar moves, forward only"
    assert all(re.match(r"[\d,]+\sof\s5,\d{3}\stokens", line) for line in lines), lines
    assert re.search(r"\d\stokens/s\s· .*\d\s(s|min)\sleft", lines[-1])
    expect(page.get_by_label("Message", exact=True)).to_have_value(text.strip())
    assert "2" in ask(page, "What is 1 + 1?")


def test_cancel_in_decode_keeps_what_was_said(page: Page, real: Serving):
    send(page, "Write a long story about a lighthouse.")
    wait_said(page, 40)
    page.keyboard.press("Escape")
    expect(button(page)).to_have_text("Send")
    real.wait_idle(CHUNK_S)
    kept = said(page)
    assert len(kept) > 20 and errors(page) == []
    expect(replies(page).last.locator(".note")).to_have_text("Stopped.")
    send(page, "Now say hello.")
    expect(replies(page)).to_have_count(2)
    wait_said(page, 1)
    page.keyboard.press("Escape")
    wait_idle(page)
    assert replies(page).first.locator(".body").inner_text() == kept
