from __future__ import annotations

import json

import pytest
from exocli import Finished, Receipt
from exocli.chat.transcript import Transcript, Turn
from exocli.errors import ExoError
from exocli.types import Reason
from hypothesis import given
from hypothesis import strategies as st


def end(reason: Reason = "stop") -> Finished:
    return Finished(id="x", reason=reason)


def talk(*pairs: tuple[str, str]) -> Transcript:
    transcript = Transcript("be brief")
    for question, answer in pairs:
        transcript.ask(question)
        transcript.settle(answer, end())
    return transcript


def shape(transcript: Transcript) -> list[tuple[str, str, str]]:
    return [(turn.role, turn.text, turn.mark) for turn in transcript.turns]


def test_messages_begin_with_the_system_prompt() -> None:
    transcript = talk(("a", "b"))
    transcript.ask("c")
    sent = [(m.role, m.content) for m in transcript.messages()]
    assert sent == [("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert Transcript().messages() == ()


@pytest.mark.parametrize("reason", ["cancelled", "error", "stop"])
def test_a_reply_without_text_takes_the_question_back(reason: Reason) -> None:
    transcript = talk(("a", "b"))
    transcript.ask("long question")
    transcript.settle(" \n", end(reason))
    assert shape(transcript) == [("user", "a", ""), ("assistant", "b", "")]
    assert transcript.taken_back == "long question"


@pytest.mark.parametrize(
    ("reason", "mark"), [("cancelled", "stopped"), ("length", "cut"), ("error", "broken")]
)
def test_a_partial_answer_stays_marked(reason: Reason, mark: str) -> None:
    transcript = talk()
    transcript.ask("a")
    transcript.settle("half an ans", end(reason))
    assert shape(transcript) == [("user", "a", ""), ("assistant", "half an ans", mark)]
    assert transcript.taken_back is None
    assert [m.content for m in transcript.messages()][-1] == "half an ans", "the mark is for people alone"


def test_going_on_extends_the_answer_and_a_second_cancel_keeps_it() -> None:
    transcript = talk()
    transcript.ask("a")
    transcript.settle("half", end("cancelled"))
    transcript.go_on()
    assert transcript.continuing
    transcript.settle("", end("cancelled"))
    assert shape(transcript) == [("user", "a", ""), ("assistant", "half", "stopped")]
    assert transcript.taken_back is None
    transcript.go_on()
    transcript.settle(" and half", end())
    assert shape(transcript) == [("user", "a", ""), ("assistant", "half and half", "")]


def test_a_thought_is_kept_with_the_answer_and_goes_back_to_the_model() -> None:
    transcript = Transcript()
    transcript.ask("a")
    transcript.settle("b", end(), "hmm")
    assert transcript.turns[-1].thought == "hmm"
    assert transcript.messages()[-1].reasoning == "hmm"


def test_a_thought_cut_by_a_limit_stays_and_is_gone_on_with() -> None:
    transcript = Transcript()
    transcript.ask("a")
    transcript.settle("", end("length"), "hmm, ")
    assert shape(transcript) == [("user", "a", ""), ("assistant", "", "cut")]
    transcript.go_on()
    assert (transcript.messages()[-1].content, transcript.messages()[-1].reasoning) == ("", "hmm, ")
    transcript.settle("b", end(), "well.")
    assert transcript.turns[-1].thought == "hmm, well."
    assert shape(transcript) == [("user", "a", ""), ("assistant", "b", "")]


def test_a_thought_stopped_by_the_user_takes_the_question_back() -> None:
    transcript = Transcript()
    transcript.ask("a")
    transcript.settle("", end("cancelled"), "hmm")
    assert (transcript.turns, transcript.taken_back) == ((), "a")


def test_retry_sends_what_was_taken_back() -> None:
    transcript = talk()
    transcript.ask("a")
    transcript.settle("", end("cancelled"))
    transcript.again()
    assert shape(transcript) == [("user", "a", "")]


def test_a_retry_that_is_cancelled_brings_the_old_answer_back() -> None:
    transcript = talk(("a", "old"))
    transcript.again()
    assert shape(transcript) == [("user", "a", "")]
    transcript.settle("", end("cancelled"))
    assert shape(transcript) == [("user", "a", ""), ("assistant", "old", "")]
    assert transcript.taken_back is None


def test_undo_drops_an_exchange() -> None:
    transcript = talk(("a", "b"), ("c", "d"))
    assert transcript.undo() == "c"
    assert shape(transcript) == [("user", "a", ""), ("assistant", "b", "")]


@pytest.mark.parametrize("name", ["again", "go_on", "undo"])
def test_nothing_to_work_on(name: str) -> None:
    with pytest.raises(ExoError, match="There is no"):
        getattr(Transcript(), name)()


def test_the_report_says_what_the_engine_said() -> None:
    transcript = Transcript()
    transcript.ask("a")
    receipt = Receipt(phase="decode", processed=4, total=4, kept_tokens=4)
    transcript.settle("b", Finished(id="x", reason="cancelled", cancel=receipt))
    report = transcript.turns[-1].report
    assert report["reason"] == "cancelled"
    assert report["cancel"]["kept_tokens"] == 4
    assert "id" not in report


@given(
    st.none() | st.text(),
    st.lists(st.tuples(st.text(), st.text(), st.sampled_from(["", "stopped", "cut", "broken"]))),
)
def test_data_round_trip(system: str | None, exchanges: list[tuple[str, str, str]]) -> None:
    turns: list[Turn] = []
    for question, answer, mark in exchanges:
        turns.append(Turn(role="user", text=question))
        report = {"reason": "x"}
        turns.append(Turn(role="assistant", text=answer, thought=answer, mark=mark, report=report))  # type: ignore[arg-type]
    transcript = Transcript(system, tuple(turns))
    again = Transcript.from_data(json.loads(json.dumps(transcript.to_data())))
    assert (again.system, again.turns) == (transcript.system, transcript.turns)


def test_turns_that_do_not_alternate_are_refused() -> None:
    with pytest.raises(ValueError, match="alternate"):
        Transcript.from_data({"turns": [{"role": "assistant", "text": "a"}]})


def test_markdown_shows_the_mark() -> None:
    transcript = talk(("What?", "This."))
    transcript.ask("More?")
    transcript.settle("Mo", end("cancelled"))
    text = transcript.to_markdown()
    assert text.startswith("> be brief\n")
    assert "## You\n\nWhat?" in text
    assert text.endswith("Mo\n\n[stopped]\n")
