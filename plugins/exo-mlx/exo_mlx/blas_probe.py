"""Run as a script in a child process: does this BLAS multiply two matrices on this CPU, and rightly?

A library built for another CPU ends the process with SIGILL, which nothing can catch: so a child tries
first. Standard library only. Arguments: the libraries to open, in order. Exit code 0 = it works.
"""

from __future__ import annotations

import ctypes
import sys

_ROW_MAJOR, _NO_TRANSPOSE = 101, 111
_SIZE = 96  # more than one block of any kernel, so that the edge code runs too


def main(paths: list[str]) -> int:
    for path in paths:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    sgemm = ctypes.CDLL(None).cblas_sgemm
    sgemm.restype = None
    n = _SIZE + 1
    array = ctypes.c_float * (n * n)
    a = array(*(float(i % 7) for i in range(n * n)))
    b = array(*(float(i % 5) for i in range(n * n)))
    c = array()
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    sgemm(_ROW_MAJOR, _NO_TRANSPOSE, _NO_TRANSPOSE, n, n, n, one, a, n, b, n, zero, c, n)
    for row, column in ((0, 0), (n // 2, 3), (n - 1, n - 1)):
        expected = sum(a[row * n + k] * b[k * n + column] for k in range(n))
        if c[row * n + column] != expected:  # small whole numbers: exact in any order
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
