"""Chat templates that are not where a tokenizer keeps its own: named by an option, or in a file beside.

Files: `chat_template.jinja` (the template), `chat_template.json` and `tokenizer_config.json` (under the key
`chat_template`), as Hugging Face models carry them. Knows files; no tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exocli import ModelBroken, ModelNotFound

from exo_mlx import folder

_BESIDE = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
ADVICE = "To chat with it, put its template beside it as chat_template.jinja, or give -o chat_template=FILE."


def read(path: Path) -> str:
    """The template in a file of any of the three kinds. Raises ModelNotFound or ModelBroken."""
    path = path.expanduser()
    if not path.is_file():
        raise ModelNotFound(f"There is no chat template {path}.")
    found = _read(path)
    if found is None:
        raise ModelBroken(f"{path} has no chat_template in it.")
    return found


def beside(path: Path) -> str | None:
    """A template for the GGUF file or the model folder `path` from a file next to it, or in it."""
    place, names = (path, _BESIDE) if path.is_dir() else (path.parent, (f"{path.stem}.jinja", *_BESIDE))
    for name in names:
        if (place / name).is_file() and (found := _read(place / name)) is not None:
            return found
    return None


def _read(path: Path) -> str | None:
    if path.suffix == ".json":
        return _pick((folder.read_json(path) or {}).get("chat_template"))
    try:
        return path.read_text(encoding="utf-8") or None
    except (OSError, ValueError) as error:
        raise ModelBroken(f"The chat template {path} cannot be read: {error}.") from error


def _pick(value: Any) -> str | None:
    """Several templates are a list of name and text; the one called "default" is for a plain chat."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) and value else None
