"""The conversation on the page: what is shown, kept, changed and asked again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Request, expect

from tests.server.serving import Serving
from tests.web.conftest import Open
from tests.web.helpers import (
    ask,
    button,
    errors,
    replies,
    said,
    script,
    send,
    wait_busy,
    wait_idle,
    wait_said,
)

HOSTILE = (
    "<script>window.hurt = 1</script> <img src=x onerror='window.hurt = 2'>\n\n"
    "[link](javascript:window.hurt=3) ![pic](http://other.example/x.png) <b style='position:fixed'>bold</b> "
    "<a href='javascript:window.hurt=4'>there</a> left\u202eright"
)


def bodies(page: Page) -> list[dict[str, Any]]:
    """The bodies that the page sends to the chat route from now on."""
    sent: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            sent.append(json.loads(request.post_data or "{}"))

    page.on("request", note)
    return sent


def test_what_hurts_elsewhere_is_only_text_here(page: Page):
    ask(page, HOSTILE)
    shown = said(page)
    assert "<script>window.hurt = 1</script>" in shown and "onerror" in shown
    assert "\u202e" not in page.content() and "⟨U+202E⟩" in shown
    assert page.evaluate("window.hurt") is None
    assert page.locator("#messages :is(img, script, b, [style])").count() == 0
    links = page.locator("#messages a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert links in ([None, "http://other.example/x.png"], ["http://other.example/x.png"])
    assert (
        "U+202E" in page.locator("#conversations .open").first.inner_text() or "\u202e" not in page.content()
    )


def test_a_long_line_does_not_widen_the_page(page: Page):
    page.set_viewport_size({"width": 360, "height": 700})
    for text in ("x" * 10_000, "```\n" + "y" * 10_000 + "\n```", "| a |\n|---|\n| " + "z" * 3000 + " |"):
        ask(page, text)
        page.locator("details.long > summary").last.click()
        widths = page.evaluate(
            "[document.documentElement.scrollWidth, document.querySelector('#scroller').scrollWidth]"
        )
        assert max(widths) <= 360


def test_markdown_code_and_their_copies(page: Page):
    ask(page, "# Title\n\nSome **bold** words.\n\n```python\nprint(1)\n```\n")
    reply = replies(page).last
    expect(reply.locator("h3")).to_have_text("Title")
    expect(reply.locator(".code-bar span")).to_have_text("python")
    reply.get_by_role("button", name="Copy this code").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"
    reply.get_by_role("button", name="Copy", exact=True).click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("# Title")


def test_thoughts_are_folded(page: Page):
    ask(page, script(["reasoning", "Hmm, let me see."], ["text", "Yes."]))
    assert said(page) == "Yes."
    thoughts = page.locator(".thoughts")
    expect(thoughts).to_be_hidden()
    page.get_by_text("Thoughts").click()
    expect(thoughts).to_have_text("Hmm, let me see.")


def test_edit_and_regenerate(page: Page):
    ask(page, "first words")
    ask(page, "second words")
    sent = bodies(page)
    replies(page).last.get_by_role("button", name="Regenerate").click()
    wait_idle(page)
    assert [m["role"] for m in sent[0]["messages"]] == ["user", "assistant", "user"]
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit this message").fill("other words")
    page.get_by_role("button", name="Send again").click()
    wait_idle(page)
    assert said(page) == "other words"
    assert [m["content"] for m in sent[1]["messages"]] == ["other words"]
    expect(page.locator(".message")).to_have_count(2)


def test_an_edit_that_was_stopped_before_the_first_word_takes_nothing_away(page: Page, serving: Serving):
    ask(page, "first words")
    ask(page, "second words")
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit this message").fill("slow " * 400)
    page.get_by_role("button", name="Send again").click()
    expect(page.locator(".numbers")).to_contain_text("of 400 tokens")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    wait_idle(page)
    serving.wait_idle(5.0)
    shown = page.locator(".message .body")
    expect(shown).to_have_text(["first words", "first words", "second words", "second words"])
    expect(page.locator("#title")).to_have_text("first words")
    expect(page.get_by_label("Message", exact=True)).to_have_value(("slow " * 400).strip())


def test_one_reply_at_a_time(page: Page):
    ask(page, "first words")
    send(page, "on forever ")
    wait_said(page, 10)
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Send again").click()
    expect(page.locator("#toast")).to_have_text("A reply is on its way. Cancel it first.")
    wait_busy(page)
    page.keyboard.press("Escape")
    wait_idle(page)
    page.get_by_role("button", name="Send again").click()
    wait_idle(page)
    expect(page.locator(".message .body")).to_have_text(["first words", "first words"])


def test_a_stopped_reply_is_kept_and_gone_on_with(page: Page, serving: Serving):
    send(page, "around and forever ")
    wait_said(page, 20)
    button(page).click()
    expect(button(page)).to_have_text("Send")
    serving.wait_idle(3.0)
    expect(replies(page).last.locator(".note")).to_have_text("Stopped.")
    kept = said(page)
    page.reload()
    assert said(page) == kept
    sent = bodies(page)
    page.get_by_role("button", name="Go on").click()
    wait_busy(page)
    wait_said(page, len(kept) + 20)
    assert (
        sent[0]["continue_final_message"] is True
        and sent[0]["messages"][-1]["content"].strip() == kept.strip()
    )
    page.keyboard.press("Escape")
    wait_idle(page)
    assert said(page).startswith(kept) and errors(page) == []


def test_before_the_first_word_the_message_comes_back(page: Page, serving: Serving):
    send(page, "slow " * 50)
    expect(page.locator(".numbers")).to_contain_text("of 50 tokens")
    page.keyboard.press("Escape")
    wait_idle(page)
    serving.wait_idle(2.0)
    expect(page.get_by_label("Message", exact=True)).to_have_value(("slow " * 50).strip())
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#toast")).to_contain_text("of 50 tokens")


def test_settings_reach_the_server_and_stay(page: Page):
    page.get_by_role("button", name="Settings of this chat").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Token limit").fill("3")
    page.get_by_label("Thinking").select_option("off")
    page.keyboard.press("Escape")
    sent = bodies(page)
    ask(page, "one two three four five")
    (body,) = sent
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"], body["reasoning_effort"]) == (0.7, 3, "none")
    assert body["model"] == page.locator("#model").input_value()
    names = page.locator("#model option").all_inner_texts()
    assert names and all(re.fullmatch(r"\S+ · \w+", name) for name in names), "with their backends"
    assert said(page) == "one two three"
    expect(replies(page).last.locator(".note")).to_have_text("The reply reached its limit of tokens.")
    page.reload()
    page.get_by_role("button", name="Settings of this chat").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")


def test_text_files_come_first(page: Page, tmp_path: Path):
    note, picture = tmp_path / "note.txt", tmp_path / "picture.png"
    note.write_text("kept in a file ```")
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    page.locator("#picker").set_input_files([note, picture])
    expect(page.locator("#toast")).to_have_text("picture.png is not a text file.")
    expect(page.locator("#files li")).to_have_count(1)
    sent = bodies(page)
    ask(page, "what is in it?")
    content = sent[0]["messages"][0]["content"]
    assert content == "note.txt:\n````\nkept in a file ```\n````\n\nwhat is in it?"
    expect(page.locator("#files li")).to_have_count(0)


def test_conversations_are_kept_renamed_and_deleted(page: Page):
    ask(page, "the first chat")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    ask(page, "the second chat")
    rows = page.locator("#conversations li")
    expect(rows).to_have_count(2)
    rows.filter(has_text="the first chat").locator(".open").click()
    expect(page.locator(".message.user .body")).to_have_text("the first chat")
    page.get_by_role("button", name="Rename the first chat").click()
    page.get_by_label("Name", exact=True).fill("Foxes")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(page.locator("#title")).to_have_text("Foxes")
    page.reload()
    expect(page.locator("#title")).to_have_text("Foxes")
    page.get_by_role("button", name="Delete Foxes").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(rows).to_have_count(1)
    expect(page.locator(".message")).to_have_count(0)


def test_a_draft_outlives_a_reload(page: Page, tmp_path: Path):
    (tmp_path / "a.txt").write_text("data")
    page.locator("#picker").set_input_files(tmp_path / "a.txt")
    expect(page.locator("#files li")).to_have_text("a.txt")
    page.get_by_label("Message", exact=True).fill("half a thou")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thou")
    expect(page.locator("#files li")).to_have_text("a.txt")


def test_a_draft_outlives_a_reload_that_is_faster_than_the_database(page: Page):
    page.evaluate(  # writes that never end
        "() => { const store = { put: () => ({}) };"
        " IDBDatabase.prototype.transaction = () => ({ objectStore: () => store, commit() {} }) }"
    )
    page.get_by_label("Message", exact=True).fill("half a thou")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thou")
    page.reload()  # and it is a draft like any other from then on
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thou")


def test_the_key_is_asked_for_once_and_kept_for_the_session(web_home: Path, open_page: Open, context: Any):
    with Serving(web_home, env={"EXO_API_KEY": "correct-horse"}) as server:
        assert server.get("/v1/models").status_code == 401
        assert "horse" not in server.get("/").text  # the page itself needs no key, and shows none
        page = context.new_page()
        page.goto(server.url)
        page.get_by_label("Key", exact=True).fill("wrong-horse")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("That key was not accepted.")).to_be_visible()
        page.get_by_label("Key", exact=True).fill("correct-horse")
        page.get_by_role("button", name="Use it").click()
        assert ask(page, "hello there") == "hello there"
        page.reload()
        assert ask(page, "and again") == "and again"
        assert page.locator("dialog").count() == 0
        assert "horse" not in page.url
        assert page.evaluate("JSON.stringify({...localStorage})").find("horse") == -1
        assert not any("horse" in line for line in server.log)


def test_it_is_refused_in_the_servers_words(page: Page):
    send(page, "please refuse this")
    wait_idle(page)
    assert errors(page) == ["This word is refused."]
    sent = bodies(page)
    assert ask(page, "something else") == "something else"
    assert [m["content"] for m in sent[0]["messages"]] == ["something else"], (
        "the refused one is not said again"
    )
