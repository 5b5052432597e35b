"""Random numbers and dropout, computed from the bits of Philox4x32-10 in integer arithmetic.

For one seed the values differ from PyTorch's, but their distributions are the same. The bits of an element depend only
on the generator and the element's position. So they do not depend on how a program is divided into kernels, and an
element that is computed twice has the same value both times.

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import pi

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float64Type, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from ....dialects.payload import is_float, shape_of
from ....dialects.shapes.extents import static
from ....dialects.tensor.builder import Builder, work_type
from ....dialects.tensor.views import numbered
from ....errors import ShapeError
from .registry import Decomposition, decomposes

_CONDITIONS: dict[str, Callable[[Mapping[str, object]], bool]] = {
    "dropout": lambda a: bool(a.get("train")) and a.get("p") != 0,
    "native_dropout": lambda a: a.get("train") is not False and a.get("p") != 0,
    "scaled_dot_product_attention": lambda a: a.get("dropout_p", 0) != 0,
    # Recurrent operators apply dropout between layers.
    **dict.fromkeys(
        ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"),
        lambda a: bool(a.get("train")) and a.get("dropout") != 0 and a.get("num_layers") != 1,
    ),
}


def draws(arguments: Mapping[str, object], name: str) -> bool:
    """Returns true if an operator that takes a generator needs one for these arguments."""
    condition = _CONDITIONS.get(name)
    return condition is None or condition(arguments)


_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def _words(b: Builder, generator: SSAValue | None, shape: Sequence[int], first: int = 0) -> list[SSAValue]:
    """Returns four independent words of 32 random bits for each element of a tensor of `shape`, as i64.

    Args:
        b: Builder of the operator.
        generator: Tensor of two i64: a key, and the number of the draw with this key.
        shape: Shape of each result.
        first: Number of elements that the same draw has produced before.
    """
    if generator is None:
        raise b.unsupported("generator", "expected a generator for random numbers, but got None")
    key, number = (b.map(generator, [AffineExpr.constant(i)], shape) for i in range(2))
    place = numbered(b, range(len(shape)), shape, first)
    return philox(b, [*_halves(b, place), *_halves(b, number)], _halves(b, key))


def philox(b: Builder, counter: Sequence[SSAValue], key: Sequence[SSAValue]) -> list[SSAValue]:
    """Returns the four random words of Philox4x32-10. All words are i64 tensors of numbers below 2^32.

    Args:
        b: Builder of the operator.
        counter: Four words.
        key: Two words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(_ROUNDS):
        if number:
            k0, k1 = (_low(b, b.plus(k, n)) for k, n in zip((k0, k1), _KEY_INCREMENTS, strict=True))
        (low0, high0), (low1, high1) = (_halves(b, b.scaled(c, m)) for c, m in zip((c0, c2), _MULTIPLIERS, strict=True))
        c0, c1, c2, c3 = _xor(b, _xor(b, high1, c1), k0), low1, _xor(b, _xor(b, high0, c3), k1), low0
    return [c0, c1, c2, c3]


def _halves(b: Builder, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Returns the lower and the upper 32 bits of an i64."""
    return _low(b, x), b.insert(arith.ShRUIOp(x, b.like(x, 32)))


def _low(b: Builder, x: SSAValue) -> SSAValue:
    return b.both(x, b.like(x, _LOW))


def _xor(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.insert(arith.XOrIOp(x, y))


def _bits(b: Builder, word: SSAValue, count: int) -> SSAValue:
    return b.insert(arith.ShRUIOp(word, b.like(word, 32 - count)))


def _fraction(b: Builder, words: Sequence[SSAValue], element: Attribute, first: int = 0) -> SSAValue:
    """Returns uniform random numbers: in [0, 1), or with `first = 1` in (0, 1], so that their logarithms are finite.

    They are multiples of 2^-n, where n is the precision of `element` (8 bits for bf16), so rounding to `element` does
    not change them. The result has the type in which `element` is computed, such as f32 for bf16."""
    if isinstance(element, Float64Type):
        bits, number = 53, b.add(b.scaled(_bits(b, words[0], 27), 1 << 26), _bits(b, words[1], 26))
    else:
        bits = 8 if isinstance(element, BFloat16Type) else 11 if isinstance(element, Float16Type) else 24
        number = _bits(b, words[0], bits)
    number = b.plus(number, first) if first else number
    return b.scaled(b.cast(number, work_type(element)), 2.0**-bits)


def _normal(b: Builder, words: Sequence[SSAValue], element: Attribute) -> SSAValue:
    """Returns normally distributed numbers with mean 0 and standard deviation 1, by the Box-Muller transform."""
    computed = work_type(element)
    radius = b.sqrt(b.scaled(b.log(_fraction(b, words[:2], computed, 1)), -2.0))
    angle = b.scaled(_fraction(b, words[2:], computed), 2 * pi)
    return b.mul(radius, b.math(math.CosOp, angle))


def _standard(draw: Callable[[Builder, Sequence[SSAValue], Attribute], SSAValue]) -> Decomposition:
    def decomposition(
        b: Builder,
        dtype: Attribute | None,
        generator: SSAValue | None,
        self: SSAValue | None = None,
        size: Sequence[int] = (),
    ) -> SSAValue:
        if not is_float(b.result_element):
            raise b.unsupported("dtype", f"random numbers of {b.result_element} are not supported")
        return draw(b, _words(b, generator, static(b.result_shape)), b.result_element)

    return decomposition


decomposes("rand", "rand_like")(_standard(_fraction))
decomposes("randn", "randn_like")(_standard(_normal))


def integers(b: Builder, generator: SSAValue | None, low: int, high: int) -> SSAValue:
    """Returns random integers in [low, high), each from 63 random bits.

    Args:
        b: Builder of the operator, whose declared result has the shape.
        generator: Generator, as for `_words`.
        low: Smallest integer.
        high: Integer above the largest one.
    """
    if not low < high:
        raise ShapeError(f"expected low < high, but got {low} and {high}", argument="high")
    first, second, *_ = _words(b, generator, static(b.result_shape))
    wide = b.add(b.scaled(first, 1 << 31), _bits(b, second, 31))
    return b.plus(b.rem(wide, b.like(wide, high - low)), low)


@decomposes("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(
    b: Builder,
    high: int,
    dtype: Attribute | None,
    generator: SSAValue | None,
    low: int = 0,
    self: SSAValue | None = None,
    size: Sequence[int] = (),
) -> SSAValue:
    return integers(b, generator, low, high)


def dropped(b: Builder, x: SSAValue, p: float, generator: SSAValue | None, first: int = 0) -> tuple[SSAValue, SSAValue]:
    """Returns the dropout of `x`, and the mask of the elements that are not dropped.

    Args:
        b: Builder of the operator.
        x: Tensor. The result has the type in which it is computed.
        p: Probability that an element becomes 0, rounded to a multiple of 2^-32. Other elements are divided by 1 - p.
        generator: Generator, as for `_words`.
        first: Number of elements that the operator has drawn before.
    """
    if not 0 <= p <= 1:
        raise ShapeError(f"expected a probability from 0 to 1, but got {p}", argument="p")
    survives = b.cmp("lt", _words(b, generator, shape_of(x.type), first)[0], round((1 - p) * 2**32))
    x = b.working(x)
    return b.select(survives, b.scaled(x, 1 / (1 - p) if p < 1 else 0.0), b.like(x, 0)), survives


@decomposes("dropout", "native_dropout")
def dropout(b: Builder, input: SSAValue, p: float, train: bool | None, generator: SSAValue | None) -> list[SSAValue]:
    if train is False or p == 0:
        return [input, b.constant(True, shape_of(input.type), i1)]
    return list(dropped(b, input, p, generator))
