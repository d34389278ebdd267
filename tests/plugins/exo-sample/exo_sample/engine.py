"""The engine. Replace `generate`; look at the cancel token as often as you can."""

from collections.abc import Iterator
from dataclasses import dataclass

from exocli import (
    CancelToken,
    Event,
    Finished,
    OpenContext,
    Progress,
    Receipt,
    Request,
    StreamEngine,
    Text,
    Usage,
    from_generator,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `-o KEY=VALUE` and [backends.sample] in the config accept."""

    shout: bool = False


def open_engine(ctx: OpenContext) -> StreamEngine:
    def generate(request: Request, cancel: CancelToken) -> Iterator[Event]:
        words = _prompt(request).split()
        yield Progress(id=request.id, processed=len(words), total=len(words))
        written = 0
        for word in words:
            if cancel.cancelled:
                receipt = Receipt(phase="decode", processed=len(words), total=len(words))
                yield _end(request, "cancelled", len(words), written, receipt)
                return
            if written == request.max_tokens:
                yield _end(request, "length", len(words), written)
                return
            text = word.upper() if ctx.options.shout else word
            yield Text(id=request.id, text=text if not written else " " + text)
            written += 1
        yield _end(request, "stop", len(words), written)

    return from_generator(generate)


def _prompt(request: Request) -> str:
    if request.prompt is not None:
        return request.prompt
    content = request.messages[-1].content or ""
    return content if isinstance(content, str) else " ".join(part.text for part in content)


def _end(
    request: Request, reason: str, prompt: int, written: int, receipt: Receipt | None = None
) -> Finished:
    usage = Usage(prompt_tokens=prompt, completion_tokens=written)
    return Finished(id=request.id, reason=reason, usage=usage, cancel=receipt)
