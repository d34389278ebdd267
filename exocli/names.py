"""Model names: what the user typed → ModelRef. No file is opened here.

Order (contract): path, alias of `[models.NAME]`, a backend's built-in alias, ORG/NAME[@REVISION].
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from exocli.backend import ModelRef
from exocli.errors import ModelNotFound, UsageError

_HUB = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")


def is_path(name: str) -> bool:
    return name[:1] in (".", "/", "~") or name.endswith(".gguf")


def resolve(name: str, models: Mapping[str, Any], builtin: Collection[str]) -> ModelRef:
    """Raises ModelNotFound naming what would have been accepted; UsageError for a bad entry.

    `models` is the config's `[models]` table, `builtin` the aliases that backends bring.
    """
    entry: Mapping[str, Any] = {}
    target = name
    if not is_path(name) and name in models:
        entry = models[name]
        if not isinstance(entry, Mapping):
            raise UsageError(f"[models.{name}] in the config must be a table.")
        target = str(entry.get("model", name))
    if not target:
        raise UsageError("The model's name is empty.")
    if is_path(target):
        return ModelRef(kind="path", name=target, entry=entry)
    if target in builtin:
        return ModelRef(kind="builtin", name=target, entry=entry)
    base, _, revision = target.partition("@")
    if _HUB.match(base):
        return ModelRef(kind="hub", name=base, revision=revision or None, entry=entry)
    known = [one for one in (*models, *builtin) if one != target and "*" not in one]
    close = get_close_matches(target, known, n=1)
    hint = (
        f'did you mean "{close[0]}"?'
        if close
        else "give ORG/NAME, a path that begins with ./ or /, or an alias."
    )
    raise ModelNotFound(f'There is no model "{target}": {hint}')
