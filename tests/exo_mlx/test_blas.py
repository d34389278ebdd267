"""A fast BLAS is found, tried where it cannot hurt, remembered, and really used; without one life goes on."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from exo_mlx import blas, elf_alias
from tests.exo_mlx.conftest import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only: elsewhere MLX has a fast BLAS")

SPEED = """
import sys, time
from pathlib import Path
if sys.argv[1]:
    from exo_mlx import blas
    report = blas.prepare(Path(sys.argv[1]))
    assert report.library and report.threads >= 1 and not report.reason, report
import mlx.core as mx
a, b = mx.random.normal((128, 576)), mx.random.normal((576, 1536))
mx.eval(a, b)
best = 9.0
for _ in range(12):
    start = time.process_time(); mx.eval(a @ b); best = min(best, time.process_time() - start)
print(2 * 128 * 576 * 1536 / best / 1e9)
"""


def run(code: str, *arguments: str, **env: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**env), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_mlx_gets_several_times_as_fast(tmp_path: Path) -> None:
    without, with_it = float(run(SPEED, "")), float(run(SPEED, str(tmp_path)))
    assert with_it > 4 * without, f"{without:.1f} → {with_it:.1f} GFLOP/s"


def test_the_verdict_is_kept(tmp_path: Path) -> None:
    first = blas.choose(tmp_path)
    assert first.library is not None and all(Path(path).is_absolute() for path in first.paths)
    kept = json.loads((tmp_path / "blas.json").read_text())
    assert list(kept.values()) == [None]
    (tmp_path / "blas.json").write_text(json.dumps(dict.fromkeys(kept, "was judged before")))
    again = blas.choose(tmp_path)
    assert again.library != first.library
    (tmp_path / "blas.json").write_text("junk")
    assert blas.choose(tmp_path) == first


def test_a_read_only_cache_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choice = blas.choose(tmp_path / "file" / "cache")  # no folder can be made there
    assert choice.library is not None or "scipy-openblas32" in choice.reason


def test_too_late_is_said() -> None:
    code = (
        "import mlx.core; from exo_mlx import blas; from pathlib import Path; print(blas.prepare(Path('x')))"
    )
    assert "imported before" in run(code)


def test_threads_leave_a_core_free() -> None:
    code = "import os; os.sched_setaffinity(0, {0}); from exo_mlx import blas; print(blas.default_threads())"
    assert run(code) == "1"
    assert 1 <= blas.default_threads() <= 4096


# ----------------------------------------------------------------------------------- libraries that fail


def wheel() -> Path:
    path = blas._wheel()
    assert path is not None, "scipy-openblas32 is a dependency on this platform"
    return path


def alias(folder: Path, name: str, target: str) -> Path:
    path = folder / f"{name}.so"
    path.write_bytes(elf_alias.build({"cblas_sgemm": target}, wheel().name, platform.machine()))
    return path


def test_a_library_for_another_cpu_dies_in_the_child_alone(tmp_path: Path) -> None:
    path = alias(tmp_path, "illegal", "scipy_cblas_sgemm")
    jump = elf_alias._stub(platform.machine(), 0, 0)[:4]
    undefined = {"x86_64": b"\x0f\x0b\x0f\x0b", "aarch64": b"\0\0\0\0"}[platform.machine()]
    path.write_bytes(path.read_bytes().replace(jump, undefined))
    assert "signal 4: it is made for another CPU" in str(blas._try((str(wheel()), str(path))))


def test_one_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    path = alias(tmp_path, "other", "scipy_openblas_get_num_threads")
    assert blas._try((str(wheel()), str(path))) == "multiplies wrongly"


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    assert "text.so" in str(blas._try((str(tmp_path / "text.so"),)))
    assert "cblas_sgemm" in str(blas._try(("libm.so.6",)))


@pytest.mark.parametrize("machine", sorted(elf_alias.MACHINES))
def test_the_alias_library_is_the_same_every_time(machine: str) -> None:
    names = {"cblas_sgemm": "scipy_cblas_sgemm", "cblas_dgemm": "scipy_cblas_dgemm"}
    content = elf_alias.build(names, "libscipy_openblas.so", machine)
    assert content == elf_alias.build(names, "libscipy_openblas.so", machine)
    assert content.startswith(b"\x7fELF") and len(content) < 2000
