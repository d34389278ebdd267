"""For everybody: without a mouse, with a screen reader, on a phone, in the dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.server.serving import Serving
from tests.web.conftest import Open
from tests.web.helpers import FOREVER, ask, button, replies, script, send, wait_busy, wait_idle, wait_said

RICH = """# Title

Words and [a link](https://example.org).

- [x] done

```python
print(1)
```

| a | b |
|---|---|
| 1 | 2 |
"""


def violations(page: Page, packages: Path) -> list[str]:
    """What axe-core calls serious or critical. It is evaluated by the test, so the page's policy stays."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate((packages / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)"
    )
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_axe_finds_nothing_serious(page: Page, packages: Path, width: int, scheme: Any):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 740})
    assert violations(page, packages) == [], "empty"
    ask(page, RICH)
    ask(page, script(["reasoning", "Hmm."], ["text", "Yes."]))
    page.locator(".reasoning summary").last.click()
    ask(page, "refuse")
    send(page, "slow " * 600)
    expect(page.locator(".numbers")).to_contain_text("left")
    assert violations(page, packages) == [], "reading"
    for name in ("Settings of this chat", "Requests on the server"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page, packages) == [], name
        page.keyboard.press("Escape")
    if width == 360:
        page.get_by_role("button", name="Conversations").click()
        assert violations(page, packages) == [], "drawer"
        page.keyboard.press("Escape")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
    wait_busy(page)
    page.keyboard.press("Escape")
    wait_idle(page)


def test_all_of_it_by_keyboard(page: Page, serving: Serving):
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(replies(page).last.locator(".body")).to_have_text("one\ntwo", use_inner_text=True)
    wait_idle(page)
    page.get_by_label("Message", exact=True).fill(FOREVER)
    page.keyboard.press("Enter")
    wait_said(page, 20)
    page.keyboard.press("Enter")
    wait_busy(page)  # Enter in an empty box stops nothing
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(button(page)).to_be_focused()
    page.keyboard.press("Enter")
    wait_idle(page)
    serving.wait_idle(2.0)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.innerText.trim()"))
    assert {
        "new",
        "model",
        "settings-button",
        "requests-button",
        "theme",
        "Copy",
        "Edit",
        "Go on",
        "Retry",
    } <= reached


def test_a_screen_reader_hears_each_phase_and_the_reply(page: Page):
    live = page.get_by_role("status")
    page.evaluate(
        "() => { window.heard = []; new MutationObserver(() => heard.push(document.querySelector('#live')"
        ".textContent)).observe(document.querySelector('#live'), {childList: true}) }"
    )
    ask(page, "slow and steady")
    expect(live).to_have_text("Reply: slow and steady")
    heard = page.evaluate("heard")
    assert heard[0] == "The model is reading." and heard[-1].startswith("Reply:")
    assert len(heard) <= 4, "not each word"


def test_the_drawer_on_a_phone(page: Page):
    page.set_viewport_size({"width": 360, "height": 700})
    ask(page, "small talk")
    page.get_by_role("button", name="Conversations").click()
    row = page.locator("#conversations .open")
    expect(row).to_be_visible()
    row.click()
    expect(row).to_be_hidden()
    box = button(page).bounding_box()
    assert box is not None and box["x"] + box["width"] <= 360 and box["height"] >= 40


def test_light_and_dark_are_chosen_and_kept(page: Page):
    def shade() -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page.emulate_media(color_scheme="light")
    light = shade()
    page.get_by_role("button", name="Light or dark").click()
    dark = shade()
    assert dark != light
    page.reload()
    assert shade() == dark


def test_a_double_click_on_send_does_not_cancel(page: Page):
    page.get_by_label("Message", exact=True).fill(FOREVER)
    button(page).dblclick()
    wait_said(page, 20)
    page.keyboard.press("Escape")


def test_following_the_end_stops_where_one_reads(page: Page, open_page: Open):
    page.set_viewport_size({"width": 400, "height": 400})
    send(page, FOREVER)
    wait_said(page, 700)
    scroller = page.locator("#scroller")
    scroller.evaluate("it => { it.scrollTop = 0 }")
    expect(page.get_by_role("button", name="Latest")).to_be_visible()
    wait_said(page, 900)
    assert scroller.evaluate("it => it.scrollTop") == 0
    page.get_by_role("button", name="Latest").click()
    expect(page.get_by_role("button", name="Latest")).to_be_hidden()
    page.keyboard.press("Escape")
