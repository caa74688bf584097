"""CRC-32 (IEEE, the one of ``java.util.zip.CRC32``) inside numba kernels.

Carry-less multiplication where the CPU has it, tables of eight bytes at a time elsewhere. The folding
follows Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel,
2009); its end is left to the table, because a folded accumulator is a message with the same CRC.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from reput.caches import CACHED
from reput.scan.load import u64_little

_POLYNOMIAL = 0xEDB88320
_FOLD_64_BYTES = (0x0154442BD4, 0x01C6E41596)  # x^(512±32) mod P, reflected
_FOLD_16_BYTES = (0x01751997D0, 0x00CCAA009E)  # x^(128±32) mod P, reflected
_FOLD_FROM = 64  # bytes; shorter messages go through the table


def _tables() -> NDArray[np.uint32]:
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 8):
        previous = tables[row - 1]
        tables[row] = previous >> np.uint32(8) ^ tables[0][previous & np.uint32(0xFF)]
    return tables


_TABLES = _tables()

HAS_CARRYLESS_MULTIPLY = bool(
    llvm.get_host_cpu_features().get("pclmul") and llvm.get_host_cpu_features().get("sse2")
)


@intrinsic
def _fold(typingctx, data, position, length, initial):  # type: ignore[no-untyped-def]
    """Fold ``length`` bytes (a multiple of 64, at least 64) into 16; returns them as (low, high)."""
    signature = types.UniTuple(types.uint64, 2)(data, types.int64, types.int64, types.uint32)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
        vector = ir.VectorType(i64, 2)
        array = context.make_array(sig.args[0])(context, builder, args[0])
        start = builder.gep(array.data, [args[1]])
        clmul = builder.module.declare_intrinsic(
            "llvm.x86.pclmulqdq", fnty=ir.FunctionType(vector, [vector, vector, i8])
        )

        def load(at):  # type: ignore[no-untyped-def]
            pointer = builder.bitcast(builder.gep(start, [at]), vector.as_pointer())
            return builder.load(pointer, align=1)

        def fold(accumulator, constants, more):  # type: ignore[no-untyped-def]
            low = builder.call(clmul, [accumulator, constants, ir.Constant(i8, 0x00)])
            high = builder.call(clmul, [accumulator, constants, ir.Constant(i8, 0x11)])
            return builder.xor(builder.xor(low, high), more)

        by_64 = ir.Constant(vector, [ir.Constant(i64, value) for value in _FOLD_64_BYTES])
        by_16 = ir.Constant(vector, [ir.Constant(i64, value) for value in _FOLD_16_BYTES])
        first = [load(ir.Constant(i64, 16 * lane)) for lane in range(4)]
        seed = builder.insert_element(
            ir.Constant(vector, [ir.Constant(i64, 0)] * 2), builder.zext(args[3], i64), ir.Constant(i32, 0)
        )
        first[0] = builder.xor(first[0], seed)
        before = builder.block
        loop = builder.append_basic_block("crc.fold")
        after = builder.append_basic_block("crc.done")
        more = builder.icmp_signed(">", args[2], ir.Constant(i64, 64))
        builder.cbranch(more, loop, after)

        builder.position_at_end(loop)
        at = builder.phi(i64)
        lanes = [builder.phi(vector) for _ in range(4)]
        folded = [
            fold(lanes[lane], by_64, load(builder.add(at, ir.Constant(i64, 16 * lane)))) for lane in range(4)
        ]
        following = builder.add(at, ir.Constant(i64, 64))
        at.add_incoming(ir.Constant(i64, 64), before)
        at.add_incoming(following, loop)
        for lane in range(4):
            lanes[lane].add_incoming(first[lane], before)
            lanes[lane].add_incoming(folded[lane], loop)
        builder.cbranch(builder.icmp_signed("<", following, args[2]), loop, after)

        builder.position_at_end(after)
        ends = [builder.phi(vector) for _ in range(4)]
        for lane in range(4):
            ends[lane].add_incoming(first[lane], before)
            ends[lane].add_incoming(folded[lane], loop)
        result = ends[0]
        for lane in range(1, 4):
            result = fold(result, by_16, ends[lane])
        low = builder.extract_element(result, ir.Constant(i32, 0))
        high = builder.extract_element(result, ir.Constant(i32, 1))
        return context.make_tuple(builder, sig.return_type, [low, high])

    return signature, codegen


@njit(cache=CACHED)
def _word_crc32(word: np.uint64, crc: np.uint32) -> np.uint32:
    """CRC register after the eight bytes of ``word``, the least significant first."""
    low = np.uint32(word & np.uint64(0xFFFFFFFF)) ^ crc
    high = np.uint32(word >> np.uint64(32))
    return np.uint32(
        _TABLES[7, low & np.uint32(0xFF)]
        ^ _TABLES[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
        ^ _TABLES[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
        ^ _TABLES[4, low >> np.uint32(24)]
        ^ _TABLES[3, high & np.uint32(0xFF)]
        ^ _TABLES[2, (high >> np.uint32(8)) & np.uint32(0xFF)]
        ^ _TABLES[1, (high >> np.uint32(16)) & np.uint32(0xFF)]
        ^ _TABLES[0, high >> np.uint32(24)]
    )


@njit(cache=CACHED)
def table_crc32(data: NDArray[np.uint8], start: int, end: int, initial: np.uint32) -> np.uint32:
    """CRC register after ``data[start:end)``, from the register ``initial``; not inverted at either end."""
    crc = np.uint32(initial)
    at = np.int64(start)
    while at + 8 <= end:
        crc = _word_crc32(u64_little(data, at), crc)
        at += 8
    while at < end:
        crc = np.uint32(crc >> np.uint32(8) ^ _TABLES[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)])
        at += 1
    return crc


if HAS_CARRYLESS_MULTIPLY:

    @njit(cache=CACHED)
    def crc32(data: NDArray[np.uint8], start: int, end: int) -> np.uint32:
        """CRC-32 of ``data[start:end)`` (uint8 array)."""
        crc = np.uint32(0xFFFFFFFF)
        at = np.int64(start)
        whole = (np.int64(end) - at) & ~np.int64(63)
        if whole >= _FOLD_FROM:
            low, high = _fold(data, at, whole, crc)
            crc = _word_crc32(high, _word_crc32(low, np.uint32(0)))
            at += whole
        return np.uint32(table_crc32(data, at, np.int64(end), crc) ^ np.uint32(0xFFFFFFFF))

else:

    @njit(cache=CACHED)
    def crc32(data: NDArray[np.uint8], start: int, end: int) -> np.uint32:
        """CRC-32 of ``data[start:end)`` (uint8 array)."""
        return np.uint32(
            table_crc32(data, np.int64(start), np.int64(end), np.uint32(0xFFFFFFFF)) ^ np.uint32(0xFFFFFFFF)
        )
