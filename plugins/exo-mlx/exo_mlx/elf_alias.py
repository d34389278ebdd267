"""Writes a tiny ELF library whose functions jump to functions of other names.

The OpenBLAS of the wheel `scipy-openblas32` calls its `cblas_sgemm` `scipy_cblas_sgemm`; MLX looks for
the plain name. Formats: the ELF-64 and processor supplement specifications, x86-64 and AArch64.
Nothing here knows BLAS.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_PAGE = 0x10000  # the largest page size either processor is run with
_EHDR, _PHDR, _SYM, _RELA, _DYN, _SLOT, _STUB = 64, 56, 24, 24, 16, 8, 16
_LOAD, _DYNAMIC, _GNU_STACK = 1, 2, 0x6474E551
_R, _RW, _RX = 4, 6, 5
_NEEDED, _HASH, _STRTAB, _SYMTAB, _RELATAB, _RELASZ, _RELAENT, _STRSZ, _SYMENT = 1, 4, 5, 6, 7, 8, 9, 10, 11
_GLOBAL_FUNC = 0x12

MACHINES = {"x86_64": (62, 6), "aarch64": (183, 1025)}
"""platform.machine() → the ELF machine number and the number of its GLOB_DAT relocation."""


def build(aliases: Mapping[str, str], needed: str, machine: str) -> bytes:
    """The library's bytes: `aliases` maps each name it defines to the one it jumps to, which the library
    `needed` (by soname) defines. Raises KeyError for a machine that is not in MACHINES."""
    number, glob_dat = MACHINES[machine]
    names, targets = list(aliases), list(aliases.values())
    strings, at = _strings([needed, *names, *targets])
    count = len(names)

    symtab = _EHDR + 4 * _PHDR
    rela = symtab + _SYM * (1 + 2 * count)
    hashes = rela + _RELA * count
    table = _hash_table(["", *targets, *names])
    strtab = hashes + len(table)
    code = -(-(strtab + len(strings)) // _STUB) * _STUB
    end = code + _STUB * count
    # The second segment: in the file it follows the first, in memory it is on a page of its own.
    data = -(-end // 16) * 16
    dynamic = data + _PAGE
    slots = dynamic + _DYN * 10

    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    symbols += [struct.pack("<IBBHQQ", at[name], _GLOBAL_FUNC, 0, 0, 0, 0) for name in targets]
    symbols += [
        struct.pack("<IBBHQQ", at[name], _GLOBAL_FUNC, 0, 1, code + _STUB * i, _STUB)
        for i, name in enumerate(names)
    ]
    relocations = [struct.pack("<QQq", slots + _SLOT * i, (i + 1) << 32 | glob_dat, 0) for i in range(count)]
    stubs = [_stub(machine, code + _STUB * i, slots + _SLOT * i).ljust(_STUB, b"\0") for i in range(count)]
    tags = [
        (_NEEDED, at[needed]),
        (_HASH, hashes),
        (_STRTAB, strtab),
        (_SYMTAB, symtab),
        (_RELATAB, rela),
        (_RELASZ, _RELA * count),
        (_RELAENT, _RELA),
        (_STRSZ, len(strings)),
        (_SYMENT, _SYM),
        (0, 0),
    ]
    size = _DYN * len(tags) + _SLOT * count
    headers = [
        _program_header(_LOAD, _RX, 0, 0, end, _PAGE),
        _program_header(_LOAD, _RW, data, dynamic, size, _PAGE),
        _program_header(_DYNAMIC, _RW, data, dynamic, _DYN * len(tags), 8),
        _program_header(_GNU_STACK, _RW, 0, 0, 0, 16),
    ]
    first = b"".join([_elf_header(number, len(headers)), *headers, *symbols, *relocations, table, strings])
    second = b"".join(struct.pack("<QQ", *tag) for tag in tags) + bytes(_SLOT * count)
    return (first.ljust(code, b"\0") + b"".join(stubs)).ljust(data, b"\0") + second


def _elf_header(machine: int, segments: int) -> bytes:
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1, System V
    return ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, _EHDR, 0, 0, _EHDR, _PHDR, segments, 0, 0, 0
    )


def _program_header(kind: int, flags: int, offset: int, address: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)


def _strings(names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    table, at = b"\0", {}
    for name in names:
        at[name] = len(table)
        table += name.encode() + b"\0"
    return table, at


def _hash_table(names: Sequence[str]) -> bytes:
    """The System V hash section with one bucket: a chain through all symbols, which are few."""
    count = len(names)
    chain = [0, *(i + 1 for i in range(1, count - 1)), 0][:count]
    table = struct.pack(f"<{3 + count}I", 1, count, 1 if count > 1 else 0, *chain)
    return table + bytes(-len(table) % 8)


def _stub(machine: str, here: int, slot: int) -> bytes:
    """A jump to the address that the linker puts into `slot`."""
    if machine == "x86_64":
        # endbr64; jmp *slot(%rip), where rip is the end of this instruction
        return b"\xf3\x0f\x1e\xfa\xff\x25" + struct.pack("<i", slot - (here + 10))
    # bti c; ldr x16, slot; br x16
    load = 0x58000000 | ((slot - (here + 4)) // 4 & 0x7FFFF) << 5 | 16
    return struct.pack("<III", 0xD503245F, load, 0xD61F0200)
