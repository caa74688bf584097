"""How kernels read records: unaligned big-endian loads, without bounds checks or index wrap-around.

Every caller has checked that the bytes are inside the array.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from reput.format import commitlog

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


# Kernels call these of the format's own functions.
for _function in (commitlog.host_length, commitlog.store_timestamp_at, commitlog.body_at):
    register_jitable(_function)


@intrinsic
def given(typingctx, value):
    """Whether ``value``, a bool or None, is true; None is known at compile time, and costs no check."""

    def codegen(context, builder, sig, args):
        return context.get_constant(types.boolean, False) if value is types.none else args[0]

    return types.boolean(value), codegen


def _load(bits: int, result, *, big_endian: bool = True):
    """A function of an array and a position, which loads an integer from there."""

    def load(typingctx, data, position):
        def codegen(context, builder, sig, args):
            array = context.make_array(sig.args[0])(context, builder, args[0])
            address = builder.gep(array.data, [args[1]])
            pointer = builder.bitcast(address, ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return builder.bswap(value) if big_endian and bits > 8 else value

        return result(data, types.int64), codegen

    return intrinsic(load)


u8 = _load(8, types.uint8)
i32 = _load(32, types.int32)
u32 = _load(32, types.uint32)
i64 = _load(64, types.int64)
u64 = _load(64, types.uint64)
#: The first byte is the least significant.
u64_little = _load(64, types.uint64, big_endian=False)


@intrinsic
def copy_u64(typingctx, out, target, data, source):
    """Copy eight bytes of an array into another one."""

    def codegen(context, builder, sig, args):
        word = ir.IntType(64)
        here, there = (
            builder.bitcast(
                builder.gep(context.make_array(sig.args[number])(context, builder, args[number]).data, [at]),
                word.as_pointer(),
            )
            for number, at in ((2, args[3]), (0, args[1]))
        )
        builder.store(builder.load(here, align=1), there, align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64), codegen


@intrinsic
def trailing_zeros(typingctx, value):
    """Trailing zero bits of a uint64 that isn't zero."""

    def codegen(context, builder, sig, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@intrinsic
def swapped_u32(typingctx, value):
    """A uint32 with its bytes reversed: what has to be stored so that memory holds it big-endian."""

    def codegen(context, builder, sig, args):
        return builder.bswap(args[0])

    return types.uint32(types.uint32), codegen


@intrinsic
def prefetch(typingctx, data, position):
    """Have the cache line of a position come; it may lie behind the array's end."""

    def codegen(context, builder, sig, args):
        array = context.make_array(sig.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        # To read, soon, again and again, as data.
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), codegen


_AHEAD, _LINE = 1536, 64


@register_jitable(inline="always")
def come(data, end, ahead):
    """Have what follows a record's end come, since each record's place is known by the one before.

    ``ahead``: up to where all was asked for; returns up to where it is now.
    """
    ahead = max(ahead, end)
    while ahead < end + _AHEAD:
        prefetch(data, ahead)
        ahead += _LINE
    return ahead
