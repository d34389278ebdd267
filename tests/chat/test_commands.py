from __future__ import annotations

import json
from pathlib import Path

import pytest
from exocli import Finished
from exocli.chat import commands
from exocli.chat.commands import COMMANDS, Desk, Effect
from exocli.chat.store import Conversation
from exocli.chat.transcript import Transcript
from exocli.errors import ExoError
from exocli.types import Sampling


@pytest.fixture
def desk() -> Desk:
    transcript = Transcript()
    transcript.ask("What is the capital?")
    transcript.settle("Paris.", Finished(id="x", reason="cancelled"))
    conversation = Conversation(transcript=transcript)
    return Desk(conversation=conversation, sampling=Sampling(), max_tokens=None, about=lambda: "small on mlx")


def run(desk: Desk, text: str) -> Effect:
    parsed = commands.parse(text)
    assert parsed is not None
    return commands.run(desk, *parsed)


@pytest.mark.parametrize(
    "text", ["hello", " /help", "/etc/hosts is what?", "//", "/Help", "/2", "a /help", "exit?"]
)
def test_messages_are_not_commands(text: str) -> None:
    assert commands.parse(text) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [("exit", "exit"), ("Quit", "exit"), ("/quit", "exit"), ("/bye", "exit"), ("/", "help")],
)
def test_what_other_programs_call_it(text: str, meant: str) -> None:
    assert commands.parse(text) == (meant, "")


def test_an_argument_may_have_lines() -> None:
    assert commands.parse("/system be\nbrief ") == ("system", "be\nbrief")


@pytest.mark.parametrize(
    ("text", "guess"), [("/hepl", "/help"), ("/retyr", "/retry"), ("/frobnicate", "/help")]
)
def test_an_unknown_command_is_one_line(desk: Desk, text: str, guess: str) -> None:
    with pytest.raises(ExoError, match=f"no command {text}") as caught:
        run(desk, text)
    assert guess in caught.value.message
    assert "\n" not in caught.value.message


def test_help_names_every_command(desk: Desk) -> None:
    said = run(desk, "/help").say
    assert all(f"/{name}" in said for name in COMMANDS)
    assert "Ctrl-D" in said


def test_what_happens_next(desk: Desk) -> None:
    assert run(desk, "/exit").do == "leave"
    assert run(desk, "/clear").do == "new"
    assert run(desk, "/continue").do == "reply"
    assert run(desk, "/retry").do == "reply"
    assert desk.conversation.transcript.turns[-1].role == "user"


def test_system_sets_shows_and_removes(desk: Desk) -> None:
    assert run(desk, "/system").say == "System prompt: none"
    run(desk, "/system Be brief.")
    assert desk.conversation.transcript.system == "Be brief."
    assert run(desk, "/system").say == "System prompt: Be brief."
    run(desk, "/system none")
    assert desk.conversation.transcript.system is None


def test_undo_says_what_it_took(desk: Desk) -> None:
    assert "What is the capital?" in run(desk, "/undo").say
    assert desk.conversation.transcript.turns == ()


def test_set(desk: Desk) -> None:
    assert run(desk, "/set temperature 0.5").say == "temperature = 0.5"
    assert desk.sampling.temperature == 0.5
    run(desk, "/set max-tokens 20")
    assert desk.max_tokens == 20
    run(desk, "/set seed 7")
    run(desk, "/set temperature none")
    assert desk.sampling == Sampling(seed=7)
    assert "seed = 7" in run(desk, "/set").say
    assert run(desk, "/set seed").say == "seed = 7"


@pytest.mark.parametrize(
    "text",
    [
        "/set warmth 3",
        "/set seed high",
        "/set seed -1",
        "/set top_p 0",
        "/set max_tokens 0",
        "/set temperature nan",
        "/save",
        "/model other/one",
    ],
)
def test_what_cannot_be_done_says_so(desk: Desk, text: str) -> None:
    with pytest.raises(ExoError) as caught:
        run(desk, text)
    assert "\n" not in caught.value.message


def test_save(desk: Desk, tmp_path: Path) -> None:
    run(desk, f"/save {tmp_path}/talk.md")
    assert "Paris.\n\n[stopped]" in (tmp_path / "talk.md").read_text()
    run(desk, f"/save {tmp_path}/talk.json")
    assert json.loads((tmp_path / "talk.json").read_text())["turns"][1]["mark"] == "stopped"
    with pytest.raises(ExoError, match="exists already"):
        run(desk, f"/save {tmp_path}/talk.md")
    with pytest.raises(ExoError, match="cannot be written: No such file"):
        run(desk, f"/save {tmp_path}/none/talk.md")


def test_model_tells_what_answers(desk: Desk) -> None:
    assert run(desk, "/model").say == "small on mlx"
