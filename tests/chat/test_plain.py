"""Pipes, NO_COLOR and TERM=dumb: plain text, no control bytes, the same conversation (B67)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.chat.conftest import Start, command
from tests.chat.terminal import CTRL_C, CTRL_D, workers_of
from tests.support.runtime import wait_gone


def run(env: dict[str, str], text: bytes, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*args), input=text, env=env, capture_output=True, timeout=30)


def test_lines_are_messages_and_the_end_of_input_leaves(env: dict[str, str], conversations: Path) -> None:
    done = run(env, b"hi there\n\n/set seed 3\r\nbye\xff", "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "heard 1: hi there \nheard 3: bye\ufffd \n"
    (path,) = conversations.glob("*.json")
    assert len(json.loads(path.read_text())["turns"]) == 4


def test_no_control_bytes_in_either_stream(env: dict[str, str]) -> None:
    long = "slowly nothing " + "w " * 80
    done = run(env, f"{long}\nescape\nnothing\ntoolong\n/help\n".encode(), "-v")
    assert done.returncode == 1, "one of the replies failed"
    for stream in (done.stdout, done.stderr):
        assert not [byte for byte in stream if byte < 32 and byte not in b"\n\t"]
    assert b" \xc2\xb7 Ctrl-C stops\n" in done.stderr, "a long wait is told in lines"
    assert done.stderr.count(b"exo: ") == 1
    assert b"exo: The prompt has 1,500 tokens" in done.stderr


def test_input_that_is_closed(env: dict[str, str]) -> None:
    line = " ".join(command())
    done = subprocess.run(["sh", "-c", f"{line} <&-"], env=env, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_it(env: dict[str, str]) -> None:
    line = " ".join(command())
    script = f"(echo forever; sleep 30) | {line} | head -c 20 >/dev/null; echo ${{PIPESTATUS[1]}}"
    process = subprocess.Popen(
        ["bash", "-c", script], env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    # The writer of the pipe sleeps on; only the chat's own end is waited for.
    for pid in iter(lambda: _child(process.pid, "exocli"), None):
        wait_gone(pid, 15)
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()


def _child(parent: int, word: str) -> int | None:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_bytes().decode()
        except (OSError, ValueError):
            continue
        if above == parent and word in line and "bash" not in line:
            return int(folder.name)
    return None


def test_sigint_while_piped_ends_it_with_what_was_said(env: dict[str, str], conversations: Path) -> None:
    process = subprocess.Popen(
        command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one forever\ntwo\n")
    process.stdin.flush()
    said = os.read(process.stdout.fileno(), 16)
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert (said + out).startswith(b"heard 1: one ")
    assert out.endswith(b"\n")
    assert b"two" not in out
    assert [line for line in err.splitlines() if not line.startswith(b"loading talker")] == [b"[stopped]"]
    assert all(wait_gone(pid) for pid in workers)
    (path,) = conversations.glob("*.json")
    assert json.loads(path.read_text())["turns"][1]["mark"] == "stopped"


def test_a_dumb_terminal(start: Start) -> None:
    terminal = start(TERM="dumb")
    terminal.until("^>$")
    terminal.send("forever\n")
    terminal.until("forever heard")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped\]\n>$")
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert b"\x1b" not in terminal.raw


def test_a_terminal_without_colour(start: Start) -> None:
    terminal = start(NO_COLOR="1")
    terminal.until("^>$")
    terminal.send("hello\n")
    terminal.until(r"^heard 1: hello\n>$")
    terminal.send("slowly forever\n")
    terminal.until("slowly forever heard")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped\]\n>$")
    terminal.send("slowly briefly " + "w " * 40 + "\n")
    terminal.until("^> slowly briefly w")
    terminal.send("ahead\n")
    terminal.until("^ahead")
    terminal.send(CTRL_C)
    terminal.until(r"^\[stopped after reading")
    terminal.until(r"^Your message was taken back; /retry sends it again\.$")
    terminal.send("/retry\n")
    terminal.until("^heard 5: briefly$")
    terminal.send(CTRL_D)
    assert terminal.ended() == 0
    assert b"\x1b" not in terminal.raw


def test_ctrl_c_at_a_plain_prompt(start: Start) -> None:
    terminal = start(NO_COLOR="1")
    terminal.until("^>$")
    terminal.send("half" + CTRL_C)
    terminal.until(r"^Ctrl-D or /exit leaves\.\n>$")
    terminal.send("whole\n")
    terminal.until("^heard 1: whole")
    terminal.send(CTRL_D)
    assert terminal.ended() == 0


def test_thoughts_are_left_out_and_calls_are_told(env: dict[str, str], conversations: Path) -> None:
    done = run(env, b"ponder it\n/set think off\nponder it\ncall", "--max-tokens", "9")
    assert done.stdout.decode() == "heard 1: ponder it \nheard 3: ponder it \nheard 5: \n"
    assert b'[the model calls weather({"city": "Rome"}), which the chat does not run]' in done.stderr
    (path,) = conversations.glob("*.json")
    thoughts = [turn.get("thought") for turn in json.loads(path.read_text())["turns"]]
    assert thoughts == [None, "hmm well ", None, None, None, None]


def test_a_thought_cut_by_the_limit_goes_on(env: dict[str, str]) -> None:
    done = run(env, b"ponder it\n/set max_tokens none\n/continue\n", "--max-tokens", "1")
    assert b"[cut off after 1 tokens; /continue goes on]" in done.stderr
    assert done.stdout.decode() == "and so on \n"
