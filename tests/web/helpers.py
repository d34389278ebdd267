"""What the tests of the page do again and again: type, send, wait. Nothing here looks inside the page."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Locator, Page, expect


def send(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    button(page).click()


def button(page: Page) -> Locator:
    """The one button that is Send, or Cancel."""
    return page.locator("#send")


def wait_idle(page: Page) -> None:
    expect(button(page)).to_have_text("Send", timeout=60_000)


def wait_busy(page: Page) -> None:
    expect(button(page)).to_have_text("Cancel")


def replies(page: Page) -> Locator:
    return page.locator(".message.assistant")


def said(page: Page) -> str:
    """The last reply's text."""
    return replies(page).last.locator(".body").inner_text()


def wait_said(page: Page, characters: int) -> None:
    """Until the last reply has so many."""
    expect(replies(page).last.locator(".body")).to_have_text(
        re.compile(f"[^\\0]{{{characters},}}"), timeout=30_000
    )


def ask(page: Page, text: str) -> str:
    """Send, and wait for the whole reply."""
    before = replies(page).count()
    send(page, text)
    expect(replies(page)).to_have_count(before + 1)
    wait_idle(page)
    return said(page)


def script(*steps: list[Any]) -> str:
    """A message that the scripted engine takes as its orders."""
    return json.dumps(steps, separators=(",", ":"))


LONG = script(*[["text", f"w{number}-"] for number in range(2000)])
"""A reply of twenty seconds."""
FOREVER = "on and on forever "
"""Cheaper, but all that is said after it in the same chat is also said for ever."""


def errors(page: Page) -> list[str]:
    """What the page shows as an error."""
    return page.locator("[data-state=broken] .note, [data-state=failed] .note").all_inner_texts()
