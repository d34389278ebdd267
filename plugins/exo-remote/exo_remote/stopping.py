"""How to cancel: our own waiting, and the work at each kind of server; and what may honestly be said then.

A receipt is `confirmed` only where the server itself told that it has stopped; otherwise all that is
known is that the connection was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from exocli import CancelToken, ExoError, Receipt

from exo_remote.chunks import Reply, receipt_of
from exo_remote.client import Client

RECEIPT_S = 2.0
"""How long a server may take to answer a cancel: what waits for us waits little longer."""
IDLE_S = 1.5
"""llama.cpp's server looks once a second whether its client is still there."""
POLL_S = 0.02
UNKNOWN_AGAIN = 5
"""A cancel can overtake its own request by a few milliseconds."""

Close = Callable[[], Awaitable[None]]
T = TypeVar("T")


async def until_cancelled(work: Coroutine[Any, Any, T], cancel: CancelToken) -> T:
    """The result of `work`. Raises Cancelled as soon as the token is; the work has ended then."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the work with it
            loop.call_soon_threadsafe(task.cancel)

    forget = cancel.on_cancel(stop)
    try:
        return await task
    except asyncio.CancelledError:
        cancel.raise_if_cancelled()
        raise
    finally:
        forget()


def unconfirmed(reply: Reply, sent: bool) -> Receipt:
    """All that is known on this side."""
    if not sent:
        return Receipt(phase="queued", ranks=0)
    phase: Any = "decode" if reply.said else "prefill"
    processed = reply.total if reply.said else reply.processed
    return Receipt(
        phase=phase,
        processed=processed,
        total=reply.total,
        kept_tokens=None,
        ranks=None,
        confirmed=False,
    )


async def by_receipt(client: Client, reply: Reply, upstream_id: str, arrived: bool) -> Receipt | None:
    """Exo's route: it answers once every rank has left. None = the reply had ended before.

    `arrived`: the server has begun to answer, so it knows the id.
    """
    url = f"{client.base.home}/v1/requests/{upstream_id}/cancel"
    for attempt in range(UNKNOWN_AGAIN):
        try:
            answer = await client.post(url, None, RECEIPT_S)
        except (TimeoutError, ExoError):
            break
        data = answer.data if isinstance(answer.data, dict) else {}
        if answer.status == 200 and data.get("state") == "cancelled":
            return receipt_of(data)
        if answer.status == 200 and data.get("state") == "finished":
            return None
        if answer.status != 404 or arrived:
            break
        await asyncio.sleep(POLL_S * 2**attempt)
    return unconfirmed(reply, sent=True)


async def by_slots(client: Client, reply: Reply, close: Close) -> Receipt:
    """llama.cpp's server drops a request whose connection is closed, between two batches. Its slots show
    when; with other requests in them, or where they are hidden, nothing is confirmed."""
    await close()
    receipt = unconfirmed(reply, sent=True)
    try:
        async with asyncio.timeout(IDLE_S):
            while True:
                answer = await client.get(f"{client.base.home}/slots", IDLE_S)
                if answer.status != 200 or not isinstance(answer.data, list):
                    return receipt
                if not any(slot.get("is_processing") for slot in answer.data if isinstance(slot, dict)):
                    return replace(receipt, confirmed=True)
                await asyncio.sleep(POLL_S)
    except (TimeoutError, ExoError):
        return receipt


async def by_abort(client: Client, reply: Reply, upstream_id: str, close: Close) -> Receipt:
    """SGLang's route, which says that it has heard."""
    receipt = unconfirmed(reply, sent=True)
    try:
        answer = await client.post(f"{client.base.home}/abort_request", {"rid": upstream_id}, RECEIPT_S)
    except (TimeoutError, ExoError):
        answer = None
    await close()
    return replace(receipt, confirmed=True) if answer is not None and answer.status == 200 else receipt
