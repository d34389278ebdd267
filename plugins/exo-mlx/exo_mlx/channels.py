"""The format of gpt-oss's replies (OpenAI's "harmony"), which mlx-lm's state machine does not know.

A reply is several messages, each with a header that names its channel and, for a call, the function:

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import json
import re
from typing import Any

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
INITIAL = "header"
_CALL = ("to=functions.", "tool")
# The states are markers.py's; text in the others is a header's and is dropped.
TRANSITIONS = {
    "header": [("analysis", "analysis"), ("commentary", "commentary"), ("final", "final"), _CALL],
    "analysis": [("<|message|>", "reasoning"), _CALL],
    "commentary": [("<|message|>", "normal"), _CALL],
    "final": [("<|message|>", "normal")],
    "reasoning": [("<|end|>", "header")],
    "normal": [("<|end|>", "header"), ("<|return|>", "header")],
    "tool": [("<|call|>", "header")],
}
_BODY = re.compile(r"([\w.-]+).*?<\|message\|>(.*)", re.DOTALL)


def known(tokenizer: Any) -> bool:
    """Does a model with this tokenizer reply so?"""
    absent = (None, tokenizer.unk_token_id)
    return all(tokenizer.convert_tokens_to_ids(mark) not in absent for mark in MARKS)


def parse_call(text: str, tools: Any = None) -> dict[str, Any]:
    """What stands between "to=functions." and the call's end. Raises ValueError."""
    match = _BODY.match(text)
    if match is None:
        raise ValueError("no call")
    return {"name": match[1], "arguments": json.loads(match[2])}
