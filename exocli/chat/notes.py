"""The chat's own sentences about a reply: how it ended, what was kept, how fast it was. Pure."""

from __future__ import annotations

from exocli.types import Finished, ToolCall


def ending(finished: Finished, spoke: bool) -> str:
    """How a reply that did not simply end did; "" for one that did. `spoke`: part of it was written."""
    receipt = finished.cancel
    if finished.reason == "cancelled":
        if receipt is not None and receipt.killed:
            return "[stopped; the worker was ended and starts again]"
        if receipt is not None and not receipt.confirmed:
            return "[stopped; the server has not confirmed that it stopped too]"
        if spoke or receipt is None or receipt.phase in ("decode", "queued"):
            return "[stopped]"
        if receipt.phase == "loading":
            return "[stopped while loading]"
        kept = f"; {receipt.kept_tokens:,} are kept for the next try" if receipt.kept_tokens else ""
        return f"[stopped after reading {receipt.processed:,} of {receipt.total:,} tokens{kept}]"
    if finished.reason == "length":
        return f"[cut off after {finished.usage.completion_tokens:,} tokens; /continue goes on]"
    if finished.reason == "content_filter":
        return "[ended by the backend's content filter]"
    return "" if spoke or finished.reason == "tool_calls" else "[the model answered nothing]"


def call(event: ToolCall) -> str:
    return f"[the model calls {event.name}({event.arguments}), which the chat does not run]"


def resumed(cached: int, total: int) -> str:
    return f"[goes on at {cached:,} of {total:,} tokens]"


def offer(who: str | None) -> str:
    """`who` has not left a cancelled request yet."""
    text = "still cancelling; press again to kill the worker (its cache is lost)"
    return text if who is None else f"{who}: {text}"


def measured(finished: Finished) -> str:
    usage, timing = finished.usage, finished.timing
    return (
        f"[{usage.prompt_tokens:,} tokens read ({usage.cached_tokens:,} from the cache)"
        f" at {timing.prefill_tps:,.0f} tok/s, first word after {timing.ttft_s:.1f} s;"
        f" {usage.completion_tokens:,} written at {timing.decode_tps:,.1f} tok/s]"
    )
