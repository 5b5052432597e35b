"""Integer operators over the whole range of each type, against PyTorch.

They run on all values of 8 and 16 bits, all pairs of 8 bits, and for wider types on powers of two with their
neighbours. `--kernels all` runs each operator with each type on each instruction set; otherwise each of these occurs
once.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import pytest
import torch

import deplodock
from deplodock.target.host import cores

Function = Callable[..., torch.Tensor]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TYPES = (*INTEGERS, torch.bool)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

UNARY: Mapping[str, Function] = {
    **{f: getattr(torch, f) for f in "abs neg sign sgn signbit bitwise_not square relu positive logical_not".split()},
    **{f: getattr(torch, f) for f in "floor ceil trunc round isnan isinf isfinite isposinf nan_to_num sqrt".split()},
    **{f"to {dtype}": partial(lambda to, x: x.to(to), dtype) for dtype in (*TYPES, *FLOATS)},
    "clamp": lambda x: x.clamp(3, 100),
    "clamp below zero": lambda x: x.clamp(-7, 5),
    "clamp_min": lambda x: x.clamp(min=17),
    "clamp of a float": lambda x: x.clamp(2.5, 77.5),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -3, 4),
    "threshold": lambda x: torch.nn.functional.threshold(x, 5, 77),
    "add": lambda x: x + 3,
    "add a float": lambda x: x + 0.5,
    "sub with alpha": lambda x: torch.sub(x, 1, alpha=3),
    "rsub": lambda x: 200 - x,
    "mul": lambda x: x * -5,
    "div": lambda x: x / 3,
    "floor_divide": lambda x: x // 3,
    "floor_divide by less than zero": lambda x: x // -3,
    "divide and truncate": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % -7,
    "fmod": lambda x: torch.fmod(x, -7),
    "power": lambda x: x**3,
    "and": lambda x: x & 0x55,
    "or": lambda x: 0x55 | x,
    "xor": lambda x: x ^ 0x55,
    "shift to the left": lambda x: x << 3,
    "shift to the right": lambda x: x >> 3,
    "shift out to the left": lambda x: x << 40,
    "shift out to the right": lambda x: x >> 40,
    "shifted number": lambda x: 100 >> (x & 7),
    "less": lambda x: x < 100,
    "greater than a float": lambda x: x > 100.5,
    "equal": lambda x: x == 200,
    "where": lambda x: torch.where(x > 50, x, ~x),
    "masked_fill": lambda x: x.masked_fill(x > 5, 9),
    "copysign": lambda x: torch.copysign(x, -1),
    "abs, negative": lambda x: -x.abs(),
    "abs of wider ones": lambda x: x.to(torch.int32).abs().to(x.dtype),
    "negative, shifted": lambda x: (-x) >> 1,
    "not, shifted": lambda x: (~x) >> 2,
    "sum, compared": lambda x: (x + 100) > x,
    "product, divided": lambda x: (x * 3) // 2,
}

BINARY: Mapping[str, Function] = {
    **{f: getattr(torch, f) for f in "add sub mul div maximum minimum fmax fmin copysign pow rsub".split()},
    **{f: getattr(torch, f) for f in "lt le gt ge eq ne logical_and logical_or logical_xor heaviside".split()},
    **{f: getattr(torch, f"bitwise_{f}") for f in "and or xor left_shift right_shift".split()},
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=3),
    "difference": lambda x, y: (x - y).abs(),
    "mean": lambda x, y: (x + y) >> 1,
    "hash": lambda x, y: (x * 31 ^ y) & 0x7F,
}

DIVISION: Mapping[str, Function] = {
    **{f: getattr(torch, f) for f in "remainder fmod floor_divide".split()},
    "divide and truncate": partial(torch.div, rounding_mode="trunc"),
}
"""PyTorch raises for a divisor of zero, and its process ends where the least number is divided by -1."""

DIVISORS: Mapping[str, Function] = {"gcd": torch.gcd, "lcm": torch.lcm}
"""Long programs for wide types; PyTorch's process ends where an operand is the least number."""


def values(dtype: torch.dtype) -> torch.Tensor:
    """Returns all values of a narrow type; for a wide one 0, powers of two and the ends, with their neighbours."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    info = torch.iinfo(dtype)
    if info.bits <= 16:
        return torch.arange(info.min, info.max + 1, dtype=dtype)
    near = {sign * 2**k + step for k in range(info.bits) for sign in (1, -1) for step in (-1, 0, 1)}
    return torch.tensor(sorted(v for v in near if info.min <= v <= info.max), dtype=dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns all pairs of 8-bit values; for wider types pairs of selected and random values."""
    some = values(dtype)
    if dtype.itemsize > 1:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        random = torch.randint(low, high, (40,), generator=torch.Generator().manual_seed(34), dtype=dtype)
        near = some if dtype.itemsize > 2 else values(torch.int8).to(dtype)
        some = torch.cat([near[:: len(near) // 50], torch.tensor([low, low + 1, high], dtype=dtype), random])
    x, y = torch.meshgrid(some, some, indexing="ij")
    return x.reshape(-1), y.reshape(-1)


def _arguments(dtype: torch.dtype, table: Mapping[str, Function]) -> tuple[torch.Tensor, ...]:
    if table is UNARY:
        return (values(dtype),)
    x, y = pairs(dtype)
    if table is BINARY or dtype == torch.bool:
        return x, y
    least = torch.iinfo(dtype).min if dtype.is_signed else -1
    ends = (x == least) & (y == -1) if table is DIVISION else (x == least) | (y == least)
    inside = (y != 0) & ~ends
    return x[inside], y[inside]


@cache
def _expected(dtype: torch.dtype, kind: str) -> dict[str, torch.Tensor]:
    """Returns PyTorch's result for each operator of a table that the type has, by name."""
    expected = dict[str, torch.Tensor]()
    for name, function in TABLES[kind].items():
        try:
            expected[name] = function(*_arguments(dtype, TABLES[kind]))
        except (RuntimeError, TypeError):
            continue  # not an operator of this type
    if dtype == torch.bool:  # the exporter refuses shifts, which eager PyTorch has
        expected = {name: result for name, result in expected.items() if not SHIFTS & {*name.split(), name}}
    return expected


REDUCTIONS: Mapping[str, Function] = {
    **{name: getattr(torch, name) for name in "sum prod amin amax any all argmax argmin cumsum cumprod".split()},
    "max": lambda x, dim: torch.max(x, dim)[0],
    "min and where": lambda x, dim: torch.min(x, dim)[1],
    "mean": lambda x, dim: x.float().mean(dim),
    "sum of bytes": lambda x, dim: x.sum(dim, dtype=x.dtype),
    "count_nonzero": torch.count_nonzero,
    "sort": lambda x, dim: torch.sort(x, dim)[0],
}

SCANS = {"cumsum", "cumprod", "sort"}
"""Long programs."""

SHIFTS = {"shift", "shifted", "left_shift", "right_shift", "mean"}
TABLES = {"unary": UNARY, "binary": BINARY, "division": DIVISION, "divisors": DIVISORS}


def _chunks(args: tuple[torch.Tensor, ...], length: int) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    """Yields parts of the arguments with their first index. The last parts overlap."""
    count = len(args[0])
    for begin in range(0, count, length):
        begin = max(min(begin, count - length), 0)
        yield begin, tuple(a[begin : begin + length].contiguous() for a in args)


def _differs(result: torch.Tensor, expected: torch.Tensor) -> str:
    """Returns a message on the first element that differs from PyTorch's, or an empty text."""
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return f"{result.dtype} of {[*result.shape]}, expected {expected.dtype} of {[*expected.shape]}"
    same = result == expected
    if result.is_floating_point():
        same |= torch.isclose(result, expected, rtol=4 * torch.finfo(result.dtype).eps, atol=0.0, equal_nan=True)
    if same.all():
        return ""
    at = int((~same).nonzero()[0])
    return f"element {at} is {result[at]}, expected {expected[at]}"


def check(dtype: torch.dtype, kind: str, names: list[str], length: int | None, **how: Any) -> None:
    """Compiles the operators `names` as one program, and compares all of its results with PyTorch's.

    Args:
        dtype: the type of the operands.
        kind: the table of the operators.
        names: the operators.
        length: elements of each call; None for one call with all values.
        how: target or executor.
    """
    table, args, expected = TABLES[kind], _arguments(dtype, TABLES[kind]), _expected(dtype, kind)
    chunks = list(_chunks(args, length or len(args[0])))
    compiled = deplodock.compile(lambda *a: tuple(table[name](*a) for name in names), chunks[0][1], **how)
    wrong = dict[str, str]()
    for begin, given in chunks:
        for name, result in zip(names, compiled(*given), strict=True):
            if text := _differs(result, expected[name][begin : begin + len(given[0])]):
                wrong.setdefault(name, f"{text} for {[a[:4].tolist() for a in given]} ...")
    assert not wrong, f"{dtype}, {how}: {wrong}"


ISAS = ("avx512", "avx2", "sse")
LENGTHS = (1, 3, 37, 64, 65, None)


def _runs_here(isa: str) -> bool:
    needed = {"avx512": "AVX512", "avx2": "AVX"}.get(isa, "")
    return platform.machine() == "x86_64" and needed in torch.backends.cpu.get_cpu_capability()


def _slices(every: bool) -> Iterator[tuple[torch.dtype, str, list[str], int]]:
    """Yields (type, table, operators, number of the type). Without `every` each operator comes once."""
    for n, dtype in enumerate(TYPES):
        for kind, table in TABLES.items():
            names = [name for name in table if name in _expected(dtype, kind)]
            if not every:
                wide = kind == "divisors" and dtype.itemsize > 1
                names = [] if wide else [name for i, name in enumerate(names) if (i + n) % len(TYPES) == 0]
            if names:
                yield dtype, kind, names, n


@pytest.mark.parametrize("isa", ISAS)
def test_vectors(request: pytest.FixtureRequest, isa: str) -> None:
    """On the CPU, in calls of a few elements, whose loops are unrolled, and in one call of all values."""
    if not _runs_here(isa):
        pytest.skip(f"this processor has no {isa}")
    every = request.config.getoption("--kernels") == "all"
    for dtype, kind, names, n in _slices(every):
        if not every and n % len(ISAS) != ISAS.index(isa):
            continue
        lengths = LENGTHS if every else [(37, None, 65)[(n + ISAS.index(isa)) % 3]]
        for length in lengths:
            check(dtype, kind, names, length, target=f"cpu{{isa={isa} cores={min(cores(), 2)}}}")


@pytest.mark.parametrize("executor", ["reference", "emulator"])
def test_programs_of_a_gpu(request: pytest.FixtureRequest, executor: str) -> None:
    every = request.config.getoption("--kernels") == "all"
    for dtype, kind, names, n in _slices(every):
        if every or executor == "reference" or dtype == torch.int8:
            check(dtype, kind, names, None if executor == "reference" else 65, executor=executor)


@pytest.mark.parametrize("length", [16, 37])
def test_magnitude_of_bytes(length: int) -> None:
    """Regression: with AVX-512, g++ computes the magnitude of a zero-extended byte as that of a signed one."""
    check(torch.uint8, "unary", ["abs", "abs, negative", "abs of wider ones"], length, target="cpu")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions(request: pytest.FixtureRequest, dtype: torch.dtype) -> None:
    """Along rows and columns, of all values of 8 bits, or of as many of a wide type with its ends."""
    every = request.config.getoption("--kernels") == "all"
    some = values(dtype)
    some = torch.cat([some[:: max(len(some) // 300, 1)], some[-1:], some[:1]])
    generator = torch.Generator().manual_seed(34)
    drawn = some[torch.randint(len(some), (7 * 37,), generator=generator)].reshape(7, 37)
    x = torch.cat([drawn.flatten(), some])[: (7 * 37 + len(some)) // 37 * 37].reshape(-1, 37)
    left_out = {"mean"} if dtype.itemsize == 8 else set[str]()
    left_out |= SCANS if dtype != torch.uint8 and not every else set()
    names = [name for name in REDUCTIONS if name not in left_out]
    for dim in (0, 1) if every else (TYPES.index(dtype) % 2,):
        expected = dict[str, torch.Tensor]()
        for name in names:
            with contextlib.suppress(RuntimeError, TypeError):  # not an operator of this type
                expected[name] = REDUCTIONS[name](x, dim)
        for target in [f"cpu{{isa={isa}}}" for isa in ISAS if _runs_here(isa)] if every else ["cpu"]:
            compiled = deplodock.compile(
                lambda x, d=dim, known=tuple(expected): tuple(REDUCTIONS[n](x, d) for n in known), (x,), target=target
            )
            found = dict(zip(expected, compiled(x), strict=True))
            wrong = {name: text for name in expected if (text := _differs(found[name], expected[name]))}
            assert not wrong, f"{dtype}, {target}, along {dim}: {wrong}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_products(dtype: torch.dtype) -> None:
    """Integer matmuls wrap like products and sums. Matmuls of bytes can accumulate in 32 bits."""
    rows, depth, columns = (3, 37, 65) if dtype in (torch.int8, torch.int32) else (16, 64, 32)
    some = values(dtype)
    generator = torch.Generator().manual_seed(34)
    x, y = (some[torch.randint(len(some), s, generator=generator)] for s in ((rows, depth), (depth, columns)))
    results = deplodock.compile(lambda x, y: (x @ y, x[0] * y[:, 0]), (x, y), target="cpu")(x, y)
    assert not _differs(results[0], x @ y)
    assert not _differs(results[1], x[0] * y[:, 0])
    if dtype in (torch.int8, torch.uint8):
        wide = deplodock.compile(lambda x, y: x.int() @ y.int(), (x, y), target="cpu")(x, y)
        assert not _differs(wide, x.int() @ y.int())
