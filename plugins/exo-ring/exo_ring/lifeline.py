"""Notices that the way to a neighbour is dead: an idle connection beside MLX's, kept alive by the kernel.

MLX's own sockets wait for ever when packets are dropped, and the pipe to the parent may go another way.
A rank that is stopped is not noticed here (its kernel answers); its missing heartbeat is, by the parent.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

IDLE_S, EVERY_S, TRIES = 4, 2, 3
"""The kernel asks after IDLE_S of silence, then every EVERY_S, and gives up after TRIES unanswered."""


def watch(connection: socket.socket, text: str) -> None:
    """Ends this process with `text` as its last word once the other end cannot be reached any more. That
    the peer closes the connection is no matter: whoever ends is noticed by MLX and by the parent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", 0x10)  # macOS has it as TCP_KEEPALIVE, which is 16
    for option, value in ((idle, IDLE_S), (socket.TCP_KEEPINTVL, EVERY_S), (socket.TCP_KEEPCNT, TRIES)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.settimeout(None)

    def wait() -> None:
        try:
            connection.recv(1)
        except ConnectionResetError:
            return
        except OSError as error:
            print(f"{text} ({error.strerror or error}).", file=sys.stderr, flush=True)
            os._exit(1)  # the engine's thread sits in a collective that will never end

    threading.Thread(target=wait, name="exo-lifeline", daemon=True).start()
