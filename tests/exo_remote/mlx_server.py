"""mlx-lm's own server as `python mlx_server.py CACHE FLAGS…`, with a fast BLAS and dense weights given to
it: on the CPU it would otherwise read a prompt at ten tokens a second."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from exo_mlx import blas


def main(cache: str) -> None:
    blas.prepare(Path(cache), threads=1)  # before mlx is imported
    from mlx.utils import tree_unflatten
    from mlx_lm import server

    from exo_mlx.dense import to_dense

    load = server.load

    def load_dense(*args: Any, **more: Any) -> Any:
        model, *rest = load(*args, **more)
        quantized = [(name, module) for name, module in model.named_modules() if hasattr(module, "bits")]
        model.update_modules(tree_unflatten([(name, to_dense(module)) for name, module in quantized]))
        return model, *rest

    server.load = load_dense
    server.main()


if __name__ == "__main__":
    main(sys.argv.pop(1))
