"""Pictures of the page in each state, at three widths, light and dark: `make screenshots` → docs/screenshots.

The real default model answers; what it cannot show (thoughts, a queue, a death) the scripted engine does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.conftest import CACHE
from tests.server.serving import ROOT, Serving, chat
from tests.web.conftest import FLAGS
from tests.web.helpers import ask, button, script, send, wait_idle, wait_said

FOLDER = ROOT / "docs" / "screenshots"
WIDTHS = (360, 820, 1280)
PASTED = "The quick brown fox jumps over the lazy dog near the old stone bridge. " * 300
ANSWER = """Three things help:

1. **Measure** first: `exo bench` prints both speeds.
2. Keep the prompt's beginning the same, so that it is found in the cache.
3. Cancel early. Nothing is lost.

```python
def speed(tokens: int, seconds: float) -> float:
    return tokens / seconds
```

| phase | tokens/s |
|---|---|
| prefill | 170 |
| decode | 15 |
"""


def empty(page: Page) -> None:
    expect(page.locator("#empty")).to_be_visible()


def reading(page: Page) -> None:
    ask(page, "What is the capital of France? One word.")
    send(page, PASTED)
    expect(page.locator(".numbers")).to_contain_text("left", timeout=60_000)
    expect(page.locator(".numbers")).to_contain_text("1,", timeout=60_000)


def writing(page: Page) -> None:
    send(page, "Tell me about lighthouses.")
    wait_said(page, 120)


def stopped(page: Page) -> None:
    writing(page)
    page.keyboard.press("Escape")
    wait_idle(page)


def answered(page: Page) -> None:
    orders = script(["reasoning", "They want it fast. Short list, one example."], ["text", ANSWER])

    def order(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        body["messages"][-1]["content"] = orders
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", order)
    ask(page, "How do I make my prompts run faster?")
    page.locator(".reasoning summary").click()
    page.locator("#scroller").evaluate("it => { it.scrollTop = it.scrollHeight }")


def failed(page: Page) -> None:
    ask(page, "Are you well?")
    send(page, "Now die please")
    wait_idle(page)


def settings(page: Page) -> None:
    ask(page, "Good morning.")
    page.get_by_role("button", name="Settings of this chat").click()
    page.get_by_label("System prompt").fill("You are a patient teacher. Answer in short sentences.")


def requests(page: Page) -> None:
    send(page, "Please read this slow text: " + "a slow walk along the river, " * 80)
    expect(page.locator(".numbers")).to_contain_text("left")
    page.get_by_role("button", name="Requests on the server").click()
    expect(page.get_by_role("list", name="Requests").get_by_role("listitem")).to_have_count(2)


def chats(page: Page) -> None:
    for text in ("A poem about rain", "Why is the sky blue?", "Plan a week in Lisbon"):
        page.locator("#new").evaluate("it => it.click()")  # on a phone it is in the drawer
        ask(page, text)
    opener = page.get_by_role("button", name="Conversations")
    if opener.is_visible():
        opener.click()
        page.wait_for_timeout(300)  # the drawer slides


REAL: tuple[Callable[[Page], None], ...] = (empty, reading, writing, stopped)
SCRIPTED: tuple[Callable[[Page], None], ...] = (answered, settings, requests, chats, failed)


def take(browser: Browser, server: Serving, state: Callable[[Page], None], width: int, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 740 if width < 500 else 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(server.url)
    expect(page.locator("#model option")).not_to_have_count(0)
    page.wait_for_timeout(200)
    state(page)
    page.wait_for_timeout(200)
    page.screenshot(path=FOLDER / f"{state.__name__}-{width}-{scheme}.png")
    if button(page).inner_text() == "Cancel":
        page.keyboard.press("Escape")  # closes the dialog, if there is one
        page.keyboard.press("Escape")
    context.close()
    server.wait_requests(lambda rows: all(row["id"] == "other" for row in rows), 30)


def main(only: str = "") -> None:
    home = Path(tempfile.mkdtemp(prefix="exo-screenshots-"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "exocli", "models", "pull", "smollm2"],
        env={**os.environ, "EXO_HOME": str(CACHE)},
        check=True,
    )
    path = shutil.which("chromium")
    assert path, "Pictures need a browser: apt-get install chromium."
    real = Serving(home, "-m", "smollm2", env={"EXO_HOME": str(CACHE)}, backend="mlx")
    with real, Serving(home, "-o", "pace_s=0.01") as scripted, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for states, server in ((REAL, real), (SCRIPTED, scripted)):
            if server is scripted:
                named = {"X-Request-Id": "other"}
                other = server.open("/v1/chat/completions", chat("on forever", stream=True), named)
            for state in states:
                for width in WIDTHS:
                    for scheme in ("light", "dark"):
                        if only in state.__name__ and (scheme == "light" or width != 820):
                            take(browser, server, state, width, scheme)
        browser.close()
        other.close()
    shutil.rmtree(home)


if __name__ == "__main__":
    main(*sys.argv[1:])
