"""A conversation as a person has it: typing, pasting, going back, leaving and coming again (B65)."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from tests.chat.conftest import Shared, Start, command
from tests.chat.terminal import ALT_ENTER, CTRL_D, CTRL_Z, ENTER, Terminal
from tests.support.runtime import wait_gone

PASTE, PASTED, UP = "\x1b[200~", "\x1b[201~", "\x1b[A"


def saved(conversations: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(conversations.glob("*.json"))]


def texts(conversation: dict[str, Any]) -> list[str]:
    return [turn["text"].strip() for turn in conversation["turns"]]


def test_talk_and_leave(start: Start, conversations: Path) -> None:
    terminal = start("-s", "be kind")
    terminal.prompt()
    assert terminal.lines[0].startswith("talker on talker · Ctrl-C stops a reply, Ctrl-D leaves")
    terminal.ask("hello", "^heard 2: hello$")
    terminal.send("/exit" + ENTER)
    assert terminal.ended() == 0
    (conversation,) = saved(conversations)
    assert conversation["system"] == "be kind"
    assert (conversation["model"], conversation["backend"]) == ("talker", "talker")
    assert texts(conversation) == ["hello", "heard 2: hello"]
    for path in conversations.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_paste_with_blank_lines_and_crlf_is_one_message(terminal: Terminal, shared: Shared) -> None:
    terminal.send(PASTE + "one\r\ntwo\r\n\r\nfour\nfive\r" + PASTED)
    terminal.until(r"^\. five$")
    terminal.send("six" + ENTER)
    terminal.until("heard 1: one two four five six")
    terminal.prompt()
    terminal.send("a" + ALT_ENTER + "b" + ENTER)
    terminal.until("heard 3: a b")
    terminal.prompt()
    assert texts(saved(shared.conversations)[0])[0::2] == ["one\ntwo\n\nfour\nfive\nsix", "a\nb"]


def test_a_pasted_line_taller_than_the_screen_shows_its_beginning(start: Start) -> None:
    terminal = start()
    terminal.prompt()
    terminal.send(PASTE + "briefly begin " + "word " * 1000 + "\nthe question" + PASTED)
    terminal.until(r"^> briefly begin word .*\n(.*\n)+.* … \(5,014 characters\)\n\. the question$")
    terminal.send(UP)
    terminal.until(r"^( ?w?o?r?d? )?(word )+", count=30)
    terminal.send(ENTER)
    terminal.until("reading .*/1,004 tokens")


def test_what_is_typed_and_pasted_during_a_reply_waits_for_the_prompt(terminal: Terminal) -> None:
    terminal.send("slowly briefly " + "w " * 30 + ENTER)
    terminal.until("reading")
    terminal.send("typed " + PASTE + "x\ny" + PASTED + ENTER)
    terminal.until("heard 1: briefly")
    assert not any("typed" in line for line in terminal.lines), "no echo into the reply"
    terminal.until("heard 3: typed x y")
    terminal.prompt()


def test_model_output_does_not_drive_the_terminal(terminal: Terminal) -> None:
    terminal.ask("escape", r"^\[2J\]0;titlered31m$")
    assert b"\x1b]0;" not in terminal.raw
    assert b"\x07" not in terminal.raw


def test_going_on_and_trying_again(start: Start, conversations: Path) -> None:
    terminal = start("--max-tokens", "2", "-v")
    terminal.prompt()
    terminal.ask("hello", r"^\[cut off after 2 tokens; /continue goes on\]$")
    terminal.until(r"^\[1 tokens read \(0 from the cache\)")
    terminal.send("/set max_tokens none" + ENTER)
    terminal.prompt()
    terminal.ask("/continue", "^and so on$")
    terminal.ask("/retry", "^heard 1: hello$")
    terminal.ask("/undo", 'Took back "hello"')
    terminal.ask("/retry", "^heard 1: hello$")
    terminal.ask("/undo", 'Took back "hello"')
    terminal.ask("/nonsense", r"exo: There is no command /nonsense; /help lists them\.")
    terminal.ask("/model", "talker on talker .*, loaded")
    terminal.ask("nothing", r"^\[the model answered nothing\]$")
    terminal.send("/retry" + ENTER)
    terminal.until("answered nothing", count=2)
    terminal.prompt()
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert saved(conversations) == [], "nothing is left of it"


def test_clear_begins_a_new_conversation(terminal: Terminal, shared: Shared) -> None:
    terminal.ask("first", "heard 1: first")
    terminal.ask("/clear", "A new conversation")
    terminal.ask("second", "heard 1: second")
    assert sorted(texts(c)[0] for c in saved(shared.conversations)) == ["first", "second"]


def test_coming_back(start: Start, conversations: Path) -> None:
    terminal = start()
    terminal.prompt()
    terminal.ask("hello there", "heard 1: hello")
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    (conversation,) = saved(conversations)
    terminal = start("-c")
    terminal.until(f'Going on with {conversation["id"]}, after "hello there"')
    terminal.prompt()
    terminal.ask("more", "heard 3: more")
    terminal.send(UP + UP)
    terminal.prompt("hello there")
    terminal.send(ENTER)
    terminal.until("heard 5: hello there")
    terminal.prompt()
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    terminal = start("--resume", conversation["id"][:-1], "--no-save")
    terminal.prompt()
    terminal.ask("secret", "heard 7: secret")
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert len(saved(conversations)) == 1
    assert not any(b"secret" in path.read_bytes() for path in conversations.iterdir())


def test_ctrl_z_and_back(env: dict[str, str]) -> None:
    """In a shell with job control: stopped in the middle of a reply, and at the prompt."""
    shell = Terminal(
        ["bash", "--norc", "--noprofile", "-i"],
        {**env, "PS1": "sh$ ", "BASH_SILENCE_DEPRECATION_WARNING": "1"},
    )
    try:
        shell.until(r"^sh\$")
        shell.send(" ".join(command()) + "\n")
        shell.prompt()
        shell.send("slowly forever" + ENTER)
        shell.until("slowly forever heard")
        shell.send(CTRL_Z)
        shell.until("Stopped")
        shell.until(r"^sh\$ *$")
        shell.send("stty -a | tr ' ' '\\n' | grep -x -e echo -e icanon | wc -l\n")
        shell.until("^2$")
        shell.send("fg\n")
        shell.until("^.*exocli chat.*$", count=3)
        shell.until("heard .*heard .*heard")
        shell.send("\x03")
        shell.until(r"^\[stopped\]$")
        shell.prompt()
        shell.send(CTRL_Z)
        shell.until("Stopped", count=2)
        shell.until(r"^sh\$ *$")
        shell.send("fg\n")
        shell.prompt()
        shell.ask("still here", "heard 3: still here")
        shell.send(CTRL_D)
        shell.until(r"^sh\$ *$")
        shell.send("exit 5\n")
        assert shell.ended() == 5
    finally:
        shell.close()


def test_stdout_elsewhere_gets_the_replies_alone(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fd = os.open(out, os.O_WRONLY | os.O_CREAT)
    terminal = start(stdout=fd)
    os.close(fd)
    terminal.until("^>$")
    terminal.send("hello\n")
    terminal.until("^> hello$")
    terminal.until("^>$")
    worker = terminal.workers()
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert out.read_bytes() == b"heard 1: hello \n"
    assert all(wait_gone(pid) for pid in worker)


def test_a_thought_is_dim_and_the_answer_is_not(terminal: Terminal) -> None:
    terminal.ask("ponder it", "^heard 1: ponder it$")
    assert b"\x1b[2mhmm well \x1b[22m" in terminal.raw
    terminal.send("/set think off" + ENTER)
    terminal.until("^think = off$")
    terminal.ask("ponder this", "^heard 3: ponder this$")
    assert terminal.raw.count(b"hmm") == 1
    terminal.ask("/set think none", "^think = the model's own$")
