"""The exact domain: laws of its arithmetic, exp as a homomorphism, infinities and NaN, and bugs that it detects."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import f32, i32, i64

from deplodock.backend.interpreter.domains import TypedDomain
from deplodock.backend.interpreter.exact import (
    INF,
    NAN,
    NEG_INF,
    ONE,
    ZERO,
    ExactDomain,
    encode_floats,
    encode_integers,
    order,
)
from deplodock.dialects.tensor import ReductionKind

D = ExactDomain()
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


def binary(name: str, a, b):
    return D.binary(f"arith.{name}", np.asarray(a), np.asarray(b), f32)


def exp(x):
    return D.unary("math.exp", np.asarray(x), f32)


def codes(*shape: int):
    return encode_floats(RNG.standard_normal(shape).astype(np.float32))


def test_encoding_respects_sums_and_products_of_floats():
    values = np.array([0.5, -0.25, 3.0, -7.0, 1024.0, 2.0**-20, 12345.678])
    for x in values:
        for y in values:
            assert binary("addf", encode_floats(x), encode_floats(y)) == encode_floats(x + y) or (x + y) - x != y
            assert binary("mulf", encode_floats(np.float32(x)), encode_floats(np.float32(y))) == encode_floats(
                float(np.float32(x)) * float(np.float32(y))
            )
    assert encode_floats(-0.0) == encode_floats(0.0) == ZERO
    assert encode_floats(1.0) == ONE
    np.testing.assert_array_equal(encode_floats(np.arange(-5.0, 6)), encode_integers(np.arange(-5, 6)))


def test_field_laws():
    a, b, c = codes(200), codes(200), codes(200)
    np.testing.assert_array_equal(
        binary("mulf", a, binary("addf", b, c)), binary("addf", binary("mulf", a, b), binary("mulf", a, c))
    )
    np.testing.assert_array_equal(binary("addf", binary("addf", a, b), c), binary("addf", a, binary("addf", b, c)))
    np.testing.assert_array_equal(binary("mulf", binary("divf", a, b), b), a)
    np.testing.assert_array_equal(binary("subf", a, b), binary("addf", a, D.unary("arith.negf", b, f32)))
    assert not np.any(binary("addf", a, b) == a)


def test_exp_turns_sums_into_products_and_exp2_agrees():
    a, b = codes(200), codes(200)
    np.testing.assert_array_equal(exp(binary("addf", a, b)), binary("mulf", exp(a), exp(b)))
    assert exp(ZERO) == ONE
    log2_e = encode_floats(np.float32(np.log2(np.e)))
    np.testing.assert_array_equal(D.unary("math.exp2", binary("mulf", a, log2_e), f32), exp(a))


def test_specials_follow_ieee():
    inf, neg, nan, one = INF, NEG_INF, NAN, ONE
    assert binary("addf", inf, one) == inf
    assert binary("subf", neg, neg) == nan
    assert binary("mulf", neg, ZERO) == nan
    assert binary("mulf", neg, encode_floats(-1.0)) == inf
    assert binary("divf", one, ZERO) == inf
    assert binary("divf", one, neg) == ZERO
    assert exp(neg) == ZERO
    assert exp(inf) == inf
    assert binary("maximumf", neg, one) == one
    assert binary("maximumf", nan, one) == nan
    assert binary("minimumf", nan, one) == nan
    assert binary("maxnumf", nan, one) == one
    assert not D.compare("eq", np.asarray(nan), np.asarray(nan))
    assert D.compare("ne", np.asarray(nan), np.asarray(nan))
    assert not D.compare("lt", np.asarray(one), np.asarray(nan))
    row = np.array([one, neg, one])
    assert D.reduce(ReductionKind.ADD, row, (0,), f32) == neg
    assert D.reduce(ReductionKind.MAX, np.array([neg, neg]), (0,), f32) == neg
    assert D.reduce(ReductionKind.MAX, row, (0,), f32) == one
    assert D.reduce(ReductionKind.MIN, np.array([one, nan]), (0,), f32) == nan


def test_reductions_and_matmul_equal_their_definition():
    a, b = codes(3, 5, 40), codes(3, 40, 4)
    product = binary("mulf", a[:, :, :, None], b[:, None])
    total = product[:, :, 0]
    for k in range(1, 40):
        total = binary("addf", total, product[:, :, k])
    np.testing.assert_array_equal(D.reduce(ReductionKind.ADD, product, (2,), f32), total)
    np.testing.assert_array_equal(D.matmul(a, b), total)
    row = a[0, 0]
    largest = row[np.argmax(order(row))]
    assert D.reduce(ReductionKind.MAX, row, (0,), f32) == largest
    times = row[0]
    for x in row[1:]:
        times = binary("mulf", times, x)
    assert D.reduce(ReductionKind.MUL, row, (0,), f32) == times


def test_matmul_with_infinities():
    a, b = codes(1, 2, 3), codes(1, 3, 2)
    a[0, 0, 1] = NEG_INF
    b[0, 1, 0] = ONE
    b[0, 1, 1] = ZERO
    found = D.matmul(a, b)[0]
    assert found[0, 0] == NEG_INF
    assert found[0, 1] == NAN
    assert found[1, 0] == D.reduce(ReductionKind.ADD, binary("mulf", a[0, 1], b[0, :, 0]), (0,), f32)


def test_casts_keep_small_integers():
    x = np.arange(-50, 50)
    np.testing.assert_array_equal(D.cast(D.cast(x, i64, f32), f32, i32), x)


def naive(q, k, v):
    s = D.matmul(q[None], np.swapaxes(k[None], 1, 2))[0]
    p = exp(binary("subf", s, D.reduce(ReductionKind.MAX, s, (1,), f32)[:, None]))
    return binary("divf", D.matmul(p[None], v[None])[0], D.reduce(ReductionKind.ADD, p, (1,), f32)[:, None])


def blockwise(q, k, v, size: int, *, rescale: bool = True, dropped: int = 0):
    """Returns attention with a running maximum, in chunks of keys. Options plant bugs: no rescaling, dropped keys."""
    m = np.full(len(q), NEG_INF)
    total, acc = np.full(len(q), ZERO), np.full((len(q), v.shape[1]), ZERO)
    for start in range(0, len(k) - dropped, size):
        part = slice(start, min(start + size, len(k) - dropped))
        s = D.matmul(q[None], np.swapaxes(k[part][None], 1, 2))[0]
        new = binary("maximumf", m, D.reduce(ReductionKind.MAX, s, (1,), f32))
        p = exp(binary("subf", s, new[:, None]))
        factor = exp(binary("subf", m, new)) if rescale else np.full(len(q), ONE)
        total = binary("addf", binary("mulf", total, factor), D.reduce(ReductionKind.ADD, p, (1,), f32))
        acc = binary("addf", binary("mulf", acc, factor[:, None]), D.matmul(p[None], v[part][None])[0])
        m = new
    return binary("divf", acc, total[:, None])


@pytest.mark.parametrize("size", [1, 4, 16, 37, 64])
def test_blockwise_attention_is_bit_identical(size: int):
    q, k, v = codes(8, 6), codes(37, 6), codes(37, 5)
    np.testing.assert_array_equal(blockwise(q, k, v, size), naive(q, k, v))


@pytest.mark.parametrize("mistake", [{"rescale": False}, {"dropped": 1}])
def test_planted_mistakes_are_seen(mistake: dict):
    q, k, v = codes(8, 6), codes(37, 6), codes(37, 5)
    assert np.any(blockwise(q, k, v, 4, **mistake) != naive(q, k, v))


def test_typed_sums_round_once():
    x = np.full(4096, np.float32(0.1))
    total = TypedDomain().reduce(ReductionKind.ADD, x, (0,), f32)
    assert total == np.float32(np.sum(x.astype(np.float64)))
