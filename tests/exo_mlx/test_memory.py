"""How much memory there is, and what is refused for it."""

from __future__ import annotations

import pytest
from exocli import OutOfMemory

from exo_mlx import memory


def test_there_is_some() -> None:
    free = memory.available()
    assert free is not None and 10**8 < free < 10**15


def test_sizes_read_well() -> None:
    sizes = {12: "12 B", 5400: "5.4 kB", 540 * 10**6: "540 MB", 1_234_567_890: "1.2 GB", 3 * 10**12: "3.0 TB"}
    assert {size: memory.human(size) for size in sizes} == sizes


def test_the_refusal_has_the_numbers() -> None:
    memory.check(10**9, 2 * 10**9, "m")
    memory.check(10**9, None, "m")
    with pytest.raises(OutOfMemory, match=r"m needs 1\.3 GB .* 1\.0 GB are free") as caught:
        memory.check(10**9, 10**9, "m")
    assert caught.value.details == {"needed": 10**9 + memory.OVERHEAD, "available": 10**9}
