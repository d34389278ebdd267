"""exo: the public plugin API. Everything a plugin may import is named in `__all__`.

Names are imported on first use (PEP 562): `exo --help` and Tab import a part of this package only.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exocli.backend import (
        API,
        Availability,
        BackendSpec,
        Capabilities,
        Catalog,
        Check,
        CommandSpec,
        ModelInfo,
        ModelRef,
        ModelSource,
        ProgressFn,
        RouteSpec,
        Variant,
        WorkerSpec,
    )
    from exocli.cancel import CancelToken
    from exocli.cli.context import Choice, choose
    from exocli.config import cache_dir, models_dir, offline
    from exocli.engine import WARM_UP_CHUNK, EngineBase, OpenContext, StepEngine, StreamEngine
    from exocli.errors import (
        BadRequest,
        Cancelled,
        ContextOverflow,
        EngineFailed,
        ExoError,
        ModelBroken,
        ModelNotFound,
        OutOfMemory,
        Overloaded,
        Unavailable,
        Unsupported,
        UpstreamError,
        UsageError,
    )
    from exocli.generator import from_generator
    from exocli.hookspecs import hookimpl
    from exocli.types import (
        Embedding,
        Event,
        Finished,
        Message,
        Part,
        Prepared,
        Progress,
        Reasoning,
        Receipt,
        Request,
        Sampling,
        Started,
        Status,
        Task,
        Text,
        Timing,
        ToolCall,
        ToolUse,
        Usage,
        new_id,
    )

__all__ = [
    "API",
    "WARM_UP_CHUNK",
    "Availability",
    "BackendSpec",
    "BadRequest",
    "CancelToken",
    "Cancelled",
    "Capabilities",
    "Catalog",
    "Check",
    "Choice",
    "CommandSpec",
    "ContextOverflow",
    "Embedding",
    "EngineBase",
    "EngineFailed",
    "Event",
    "ExoError",
    "Finished",
    "Message",
    "ModelBroken",
    "ModelInfo",
    "ModelNotFound",
    "ModelRef",
    "ModelSource",
    "OpenContext",
    "OutOfMemory",
    "Overloaded",
    "Part",
    "Prepared",
    "Progress",
    "ProgressFn",
    "Reasoning",
    "Receipt",
    "Request",
    "RouteSpec",
    "Sampling",
    "Started",
    "Status",
    "StepEngine",
    "StreamEngine",
    "Task",
    "Text",
    "Timing",
    "ToolCall",
    "ToolUse",
    "Unavailable",
    "Unsupported",
    "UpstreamError",
    "Usage",
    "UsageError",
    "Variant",
    "WorkerSpec",
    "cache_dir",
    "choose",
    "from_generator",
    "hookimpl",
    "models_dir",
    "new_id",
    "offline",
]

_HOME = {
    "exocli.backend": (
        "API",
        "Availability",
        "BackendSpec",
        "Capabilities",
        "Catalog",
        "Check",
        "CommandSpec",
        "ModelInfo",
        "ModelRef",
        "ModelSource",
        "ProgressFn",
        "RouteSpec",
        "Variant",
        "WorkerSpec",
    ),
    "exocli.cancel": ("CancelToken",),
    "exocli.cli.context": ("Choice", "choose"),
    "exocli.config": ("cache_dir", "models_dir", "offline"),
    "exocli.engine": ("WARM_UP_CHUNK", "EngineBase", "OpenContext", "StepEngine", "StreamEngine"),
    "exocli.errors": (
        "BadRequest",
        "Cancelled",
        "ContextOverflow",
        "EngineFailed",
        "ExoError",
        "ModelBroken",
        "ModelNotFound",
        "OutOfMemory",
        "Overloaded",
        "Unavailable",
        "Unsupported",
        "UpstreamError",
        "UsageError",
    ),
    "exocli.generator": ("from_generator",),
    "exocli.hookspecs": ("hookimpl",),
    "exocli.types": (
        "Embedding",
        "Event",
        "Finished",
        "Message",
        "Part",
        "Prepared",
        "Progress",
        "Reasoning",
        "Receipt",
        "Request",
        "Sampling",
        "Started",
        "Status",
        "Task",
        "Text",
        "Timing",
        "ToolCall",
        "ToolUse",
        "Usage",
        "new_id",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
