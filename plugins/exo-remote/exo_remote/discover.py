"""Asks a server, once, what it is and what it has: the dialect, where its routes are, its models.

A server that answers none of this may still be an OpenAI-compatible one: then it is taken for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exocli import Capabilities, Task, UpstreamError

from exo_remote import problems
from exo_remote.client import Answer, Client
from exo_remote.dialects import DIALECTS, EXO, OLLAMA, OPENAI, Dialect, by_listing
from exo_remote.options import Options

ANSWER_S = 5.0
"""A listing that takes longer is done without."""
LOADING_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`root`: where OpenAI's routes hang. `names`: the models, the default one first; empty where the
    server does not tell. `tasks`: what each is for, where the server says it (exo's does)."""

    dialect: Dialect
    root: str
    names: Sequence[str] = ()
    tasks: Mapping[str, Sequence[Task]] = field(default_factory=dict)

    def capabilities(self, model: str) -> Capabilities:
        """What the server can do with this model."""
        own = self.dialect.capabilities
        known = self.tasks.get(model)
        return own if known is None else replace(own, tasks=tuple(t for t in own.tasks if t in known))


async def discover(client: Client, options: Options) -> Found:
    """Raises Unavailable where nothing answers, UpstreamError where a key is missing or the address is
    another one."""
    root, answer = await _listing(client, options)
    rows = _rows(answer)
    dialect = DIALECTS.get(options.dialect) or await _dialect(client, answer, rows)
    names = [str(row["id"]) for row in rows]
    if dialect.first_model is not None:
        names = [dialect.first_model, *names]
    tasks = {str(row["id"]): row["tasks"] for row in rows if isinstance(row.get("tasks"), list)}
    return Found(dialect=dialect, root=root, names=tuple(names), tasks=tasks)


async def _listing(client: Client, options: Options) -> tuple[str, Answer | None]:
    """The first place that lists models; else the likeliest root, with no answer."""
    for root in client.base.roots:
        answer = await _ask(client, f"{root}/models", options.idle_timeout)
        if answer is None:
            continue
        if answer.status in (401, 403) or 300 <= answer.status < 400:
            raise problems.of_answer(
                answer.status,
                f"{root}/models",
                answer.headers,
                answer.body,
                key_sent=client.key.value is not None,
            )
        if answer.status == 200 and isinstance(answer.data, dict):
            return root, answer
    return client.base.roots[0], None


async def _ask(client: Client, url: str, patience: float) -> Answer | None:
    """GET; waits while the server loads its model; asks the keyring once if a key is wanted. None = no
    answer in time, or one that broke off."""
    loop = asyncio.get_running_loop()
    until = loop.time() + (patience or float("inf"))
    asked = False
    while True:
        try:
            answer = await client.get(url, ANSWER_S)
        except (TimeoutError, UpstreamError):
            return None
        if problems.is_loading(answer.status, answer.body) and loop.time() < until:
            await asyncio.sleep(LOADING_EVERY_S)
        elif answer.status == 401 and not asked:
            asked = True
            if not await asyncio.to_thread(client.key.look_further):
                return answer
        else:
            return answer


def _rows(answer: Answer | None) -> list[Mapping[str, Any]]:
    data = answer.data.get("data") if answer is not None else None
    return [row for row in data if isinstance(row, dict) and "id" in row] if isinstance(data, list) else []


async def _dialect(client: Client, answer: Answer | None, rows: list[Mapping[str, Any]]) -> Dialect:
    if answer is None:
        return OPENAI
    if "x-request-id" in answer.headers:  # exo's own mark, which some others carry too
        requests = await _ask(client, f"{client.base.home}/v1/requests", 0)
        if _tells(requests, "data"):
            return EXO
    known = by_listing(answer.headers.get("server", ""), rows)
    if known is not None:
        return known
    version = await _ask(client, f"{client.base.home}/api/version", 0)
    return OLLAMA if _tells(version, "version") else OPENAI


def _tells(answer: Answer | None, field: str) -> bool:
    """Is it an object with this field?"""
    return (
        answer is not None and answer.status == 200 and isinstance(answer.data, dict) and field in answer.data
    )
