"""What a person at the terminal is told of a reply that a server was asked to stop."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.chat.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.exo_remote.upstream import CHAT, Upstream, delta, hangs
from tests.server.serving import environment


async def test_a_stop_that_nobody_confirms_is_told_and_the_chat_goes_on(tmp_path: Path, home: Path):
    async with Upstream({CHAT: hangs(delta("half a reply"))}) as up:
        command = [sys.executable, "-m", "exocli", "chat", "-b", "remote", "-o", f"url={up.url}"]
        env = {**environment(tmp_path / "env"), "TERM": "xterm-256color", "EXO_HOME": str(home)}

        def talk() -> None:
            terminal = Terminal(command, env)
            try:
                terminal.prompt()
                terminal.send("hi" + ENTER)
                terminal.until("half a reply")
                terminal.send(CTRL_C)
                terminal.until(r"\[stopped; the server has not confirmed that it stopped too\]")
                terminal.prompt()
                terminal.send(CTRL_D)
                assert terminal.ended() == 0
            finally:
                terminal.close()

        await asyncio.to_thread(talk)
        asked = await up.wait_for(CHAT)
        async with asyncio.timeout(1):
            await asked.closed.wait()
