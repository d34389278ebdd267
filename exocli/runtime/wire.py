"""The lines between a parent and its workers: JSON, one object a line, over pipes (or ssh's pipes).

Parent → worker
    first            {"wire": 2, "open": {...}}                      what OpenContext needs, env, rank, size
    the log          {"n": 1, "do": "submit", "prepared": {...}}     numbered from 1, the same for every rank
                     {"n": 2, "do": "cancel", "id": "…"}
                     {"n": 3, "do": "tune", "chunk": 64}
                     {"n": 4, "do": "apply", "command": {...}}       what an engine asked for
                     {"n": 5, "do": "close"}
    beside the log   {"do": "prepare", "ticket": 1, "request": {...}}
                     {"do": "credit", "step": 7}
Worker → parent
    {"t": "hello", "wire": 2, "pid": 1}                              first, before anything heavy
    {"t": "loading", "done": 1, "total": 30}
    {"t": "ready", "capabilities": {...}, "describe": {...}, "warm_up_s": 0.2, "max_lead": null}
    {"t": "failed", "error": {...}}                                  could not open; the worker ends
    {"t": "prepared", "ticket": 1, "prepared": {...} | "error": {...}}
    {"t": "step", "n": 7, "s": 0.18, "info": {...}, "events": [...], "left": ["…"]}
    {"t": "ask", "command": {...}}
    {"t": "beat", "step": 7}                                         every BEAT seconds while there is work
    {"t": "broken", "error": {...}}                                  a step raised; the worker ends
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

VERSION = 2
BEAT = 0.5
"""Seconds between heartbeats while there is work."""
LINE_LIMIT = 1 << 30
"""Bytes of the longest line: a prompt's token ids are one line (asyncio's default is 64 KiB)."""

Line = Mapping[str, Any]


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(line: Line) -> bytes:
    return _ENCODER.encode(line).encode("utf-8", "surrogatepass") + b"\n"


def decode(raw: bytes) -> dict[str, Any]:
    """Raises ValueError for a line that is not a JSON object."""
    value = json.loads(raw.decode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise ValueError("a line must be a JSON object")
    return value
