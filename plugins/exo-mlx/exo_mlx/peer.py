"""mlx-lm's own server as `exo bench --serve --peer` compares with: the flags of mlx_lm.server after
`python -m exo_mlx.peer`, and the same weights and the same BLAS as our engine's.

With neither it reads a prompt at ten tokens a second on a CPU, which would be no comparison.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from exocli import cache_dir

from exo_mlx import blas


def main() -> None:
    found = blas.prepare(cache_dir("mlx"))  # before mlx is imported
    from mlx_lm import server

    from exo_mlx import loader

    def load(path: str, return_config: bool = True, **_: Any) -> tuple[Any, Any, Any]:
        loaded = loader.load(Path(path))
        library = f"{found.library} with {found.threads} threads" if found.library else "MLX's own BLAS"
        print(f"given: mlx-lm {version('mlx-lm')}, {loaded.dtype} weights, {library}", flush=True)
        return loaded.model, loaded.tokenizer, dict(loaded.config)

    server.load = load
    server.main()


if __name__ == "__main__":
    main()
