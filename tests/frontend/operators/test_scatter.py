"""Writes at computed indices: right at every level and for every type, with work linear in the writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import deplodock
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import loop, make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError
from deplodock.target.architectures import TARGETS

Tensor = torch.Tensor
LEVELS = ("tensor", "loop", "tile", "kernel")
EXECUTORS = ("reference", "simulator", "emulator")

torch.manual_seed(0)
ROWS, WRITES, WIDTH = 30, 50, 8
X, V = torch.randn(ROWS, WIDTH), torch.randn(WRITES, WIDTH)
AT_ROWS = torch.randint(-ROWS, ROWS, (WRITES,))
P = torch.randint(0, ROWS, (WRITES, 5))  # fewer columns than X has
UNIQUE = torch.randperm(40)[:ROWS]


def assigned(x: Tensor, at: tuple[Tensor | slice, ...], values: Tensor) -> Tensor:
    """Returns a copy of `x` with `x[at] = values`."""
    x = x.clone()
    x[at] = values
    return x


def unpool(x: Tensor, at: Tensor) -> Tensor:
    return F.max_unpool2d(x, at, 2)


POOLED, AT = F.max_pool2d(torch.randn(2, 3, 12, 12), 2, return_indices=True)

BAGS = torch.cat([torch.zeros(2, dtype=torch.int64), torch.randint(0, 210, (38,)).sort()[0]])  # some empty

OPERATORS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "scatter": (lambda x, p, v: x.scatter(0, p, v), (X, P, V)),
    "scatter of a number": (lambda x, p: x.scatter(0, p, 7.0), (X, P)),
    "scatter along columns": (lambda x, p, v: x.scatter(1, p, v), (X.t().contiguous(), P.t().contiguous(), V.t())),
    "scatter_add": (lambda x, p, v: x.scatter_add(0, p, v), (X, P, V)),
    "index_copy": (lambda x, i, v: x.index_copy(0, i, v), (X, AT_ROWS.abs() % ROWS, V)),
    "index_copy of columns": (lambda x, i, v: x.index_copy(1, i, v), (X.t(), AT_ROWS.abs() % ROWS, V.t())),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.5), (X, AT_ROWS)),
    "index_add": (lambda x, i, v: x.index_add(0, i, v, alpha=0.5), (X, AT_ROWS.abs() % ROWS, V)),
    "index_put": (lambda x, i, v: x.index_put((i,), v), (X, AT_ROWS, V)),
    "index_put, accumulating": (lambda x, i, v: x.index_put((i,), v, accumulate=True), (X, AT_ROWS, V)),
    "index_put, two indices": (
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        (torch.randn(6, 7, 4), AT_ROWS % 6, AT_ROWS % 7, torch.randn(WRITES, 4)),
    ),
    "index_put, indices apart": (
        lambda x, i, j, v: assigned(x, (i, slice(None), j), v),
        (torch.randn(6, 4, 7), AT_ROWS.reshape(10, 5) % 6, AT_ROWS.reshape(10, 5) % 7, torch.randn(10, 5, 4)),
    ),
    "index_put in the middle": (
        lambda x, i, v: assigned(x, (slice(None), i), v),
        (torch.randn(3, ROWS, 4), AT_ROWS.reshape(5, 10), torch.randn(3, 5, 10, 4)),
    ),
    "put": (lambda x, i, v: x.put(i, v, accumulate=True), (X, P, V[:, :5].contiguous())),
    "max_unpool2d": (unpool, (POOLED, AT)),
    "histc": (lambda x: torch.histc(x, 40, -2, 2), (X,)),
    "embedding_renorm": (lambda w, i: F.embedding(i, w.clone(), max_norm=1.0), (X, AT_ROWS.abs() % ROWS)),
    **{
        f"scatter_reduce {mode}{'' if include else ' without self'}": (
            lambda x, p, v, mode=mode, include=include: x.scatter_reduce(0, p, v, mode, include_self=include),
            (X, P, V),
        )
        for mode in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    },
    **{
        f"embedding_bag {mode}": (
            lambda w, i, o, mode=mode: F.embedding_bag(i, w, o.clamp(max=200), mode=mode, padding_idx=3),
            (X, torch.randint(0, ROWS, (200,)), BAGS),
        )
        for mode in ("sum", "mean", "max")
    },
    "nonzero_static": (lambda x: torch.nonzero_static(x > 0, size=150, fill_value=-2), (X,)),
    **{
        f"index_reduce {mode}": (
            lambda x, i, v, mode=mode: x.index_reduce(0, i, v, mode, include_self=False),
            (X, AT_ROWS.abs() % ROWS, V),
        )
        for mode in ("prod", "mean", "amax", "amin")
    },
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    """On the text of every level, and as CUDA."""
    function, args = OPERATORS[name]
    compiled = deplodock.compile(function, args, executor="reference").compilation
    assert "tensor.scatter" in str(compiled.at("loop")), "the one-hot form, which this test is not about"
    arrays, want = [a.numpy() for a in args], function(*args).numpy()
    for level in LEVELS[:3]:
        np.testing.assert_allclose(run(compiled.at(level), arrays)[0], want, 1e-5, 1e-6, err_msg=level)
    (got,), report = simulate(compiled.at("kernel"), arrays)
    report.raise_errors()
    np.testing.assert_allclose(got, want, 1e-5, 1e-6)
    (got,), reports = run_cuda_on_cpu(compiled.cuda, make_plan(compiled.at("kernel")), arrays, (0, 1, 2))
    assert not reports, str(reports[0])
    np.testing.assert_allclose(got, want, 1e-5, 1e-6)


TYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("mode", ["sum", "prod", "amax", "amin", "write"])
def test_types(dtype: torch.dtype, mode: str) -> None:
    """Values narrower than 32 bits are combined in 32 bits. Floats are rounded once; PyTorch rounds more often."""
    x, v = (torch.randint(0, 4, t.shape).to(dtype) for t in (X, V))

    def write(x: Tensor, p: Tensor, v: Tensor) -> Tensor:
        return x.scatter(0, p, v) if mode == "write" else x.scatter_reduce(0, p, v, mode)

    wide = x.double() if dtype.is_floating_point else x
    want = write(wide, P, v.double() if dtype.is_floating_point else v).to(dtype)
    for executor in EXECUTORS:
        got = deplodock.compile(write, (x, P, v), executor=executor)(x, P, v)
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_truth_values() -> None:
    x, v = X > 1, V > 0

    def write(x: Tensor, p: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x.scatter(0, p, v), x.index_put((p[:, 0],), v, accumulate=True)

    for executor in EXECUTORS:
        for got, want in zip(deplodock.compile(write, (x, P, v), executor=executor)(x, P, v), write(x, P, v)):
            assert torch.equal(got, want)


def test_the_last_write_counts() -> None:
    """For equal indices the last write wins in every executor; PyTorch leaves the winner open."""
    i, v = torch.zeros(100, dtype=torch.int64), torch.arange(100.0)
    i[::2] = 20

    def write(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        return x.index_copy(0, i, v)

    for executor in EXECUTORS:
        got = deplodock.compile(write, (X[:, 0], i, v), executor=executor)(X[:, 0], i, v)
        assert (got[0], got[20]) == (99, 98)
        assert torch.equal(got[1:20], X[1:20, 0])


def test_nan_and_infinity() -> None:
    v = V.clone()
    v[::7], v[1::7], v[2::7] = float("nan"), float("inf"), -float("inf")

    def write(x: Tensor, p: Tensor, v: Tensor) -> list[Tensor]:
        return [x.scatter_reduce(0, p, v, mode) for mode in ("amax", "amin", "sum", "prod")] + [x.scatter(0, p, v)]

    for executor in EXECUTORS:
        for got, want in zip(deplodock.compile(write, (X, P, v), executor=executor)(X, P, v), write(X, P, v)):
            torch.testing.assert_close(got, want, equal_nan=True)


def test_sharing_what_it_starts_from() -> None:
    """A scatter reuses its input's buffer if it is the only user; otherwise the input is computed again."""

    def write(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        zero, twice = torch.zeros_like(x), x * 2
        both = zero.index_add(0, i, v), zero.index_add(0, i, v * v)
        return *both, twice, twice.index_add(0, i, v).index_add(0, i, both[0][:1].expand(WRITES, -1)), both[0]

    i = AT_ROWS.abs() % ROWS
    for executor in EXECUTORS:
        for got, want in zip(deplodock.compile(write, (X, i, V), executor=executor)(X, i, V), write(X, i, V)):
            torch.testing.assert_close(got, want)


class Counter(torch.nn.Module):
    """Adds to a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(ROWS, WIDTH))

    def forward(self, i: Tensor, v: Tensor) -> Tensor:
        self.total.index_add_(0, i, v)
        return self.total.sum(0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_buffer_of_a_module(executor: str) -> None:
    i, ours, theirs = AT_ROWS.abs() % ROWS, Counter(), Counter()
    compiled = deplodock.compile(ours, (i, V), executor=executor)
    for _ in range(2):
        torch.testing.assert_close(compiled(i, V), theirs(i, V), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.total, theirs.total)


def test_embedding_gradients() -> None:
    """Gradients of an embedding through torch.compile."""
    torch.manual_seed(1)
    model = torch.nn.Embedding(40, 8, padding_idx=3)
    index = torch.randint(0, 40, (9, 11))
    compiled = torch.compile(model, backend="deplodock", options={"executor": "reference"})
    found = []
    for m in (model, compiled):
        model.zero_grad()
        m(index).square().sum().backward()
        found.append(model.weight.grad.clone())
    torch.testing.assert_close(*found)
    assert not found[1][3].any()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_sizes_known_at_run_time(executor: str) -> None:
    def write(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x.index_add(0, i, v), x.index_copy(0, i, v)

    rows, writes = torch.export.Dim("rows", min=2, max=500), torch.export.Dim("writes", min=2, max=500)
    shapes = {"x": {0: rows}, "i": {0: writes}, "v": {0: writes}}
    args = X, AT_ROWS.abs() % ROWS, V
    compiled = deplodock.compile(write, args, dynamic_shapes=shapes, executor=executor)
    for n, m in ((30, 50), (3, 200), (77, 2)):
        args = torch.randn(n, WIDTH), torch.randint(0, n, (m,)), torch.randn(m, WIDTH)
        for got, want in zip(compiled(*args), write(*args)):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("places", [0, 1, 40])
@pytest.mark.parametrize("writes", [0, 1, 40])
def test_nothing_to_write_or_nowhere(places: int, writes: int) -> None:
    if writes and not places:
        return
    x, i, v = torch.randn(places, 3), torch.randint(0, max(places, 1), (writes,)), torch.randn(writes, 3)

    def write(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x.index_add(0, i, v), x.index_copy(0, i, v)

    for executor in EXECUTORS:
        for got, want in zip(deplodock.compile(write, (x, i, v), executor=executor)(x, i, v), write(x, i, v)):
            torch.testing.assert_close(got, want)


def iterations(module) -> int:
    """Returns how often the bodies of all nests and reductions are executed."""
    total = 0
    for op in module.walk():
        if isinstance(op, loop.NestOp | loop.ReduceOp):
            times, outer = 1, op
            while isinstance(outer, loop.NestOp | loop.ReduceOp):
                times *= prod(outer.shape)
                outer = outer.parent_op()
            total += times
    return total


def test_linear_work() -> None:
    """`max_unpool2d` of (8, 3, 50, 50): as much work for each element as for an eighth of them, in the nests and in
    what the simulator moves."""
    iterated, moved = [], []
    for batch in (1, 8):
        x, at = F.max_pool2d(torch.randn(batch, 3, 100, 100), 2, return_indices=True)
        compiled = deplodock.compile(unpool, (x, at), executor="reference").compilation
        (got,), report = simulate(compiled.at("kernel"), [x.numpy(), at.numpy()])
        np.testing.assert_array_equal(got, unpool(x, at).numpy())
        iterated.append(iterations(compiled.at("loop")))
        moved.append(sum(sum(c.loaded.values()) + sum(c.stored.values()) for c in report.launches))
    assert iterated[0] <= 20 * x.numel()
    assert iterated[1] <= 8.1 * iterated[0]
    assert moved[1] <= 8.1 * moved[0]


KERNEL = """
kernel.func @k0(%v: memref<64xf32>, %i: memref<64xi32>, %y: memref<10xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %lane = kernel.id lane
  %c32 = arith.constant 32 : index
  %first = arith.muli %block, %c32 : index
  %t = arith.addi %first, %lane : index
  %value = kernel.load %v[%t] : memref<64xf32> -> vector<1xf32>
  %place = kernel.load %i[%t] : memref<64xi32> -> vector<1xi32>
  %p = payload.cast %place : vector<1xi32> -> vector<1xindex>
  kernel.atomic_rmw add %value, %y[%p] : memref<10xf32>, vector<1xf32>
}
kernel.func @zero(%y: memref<10xf32>) grid [1] warps 1 {
  %t = kernel.id thread
  %zero = payload.constant 0.0 : vector<1xf32>
  kernel.store %zero, %y[%t] where 0 <= %t < 10 : memref<10xf32>, vector<1xf32>
}
func.func @main(%v: memref<64xf32>, %i: memref<64xi32>, %y: memref<10xf32>) {
  kernel.launch @zero(%y) : memref<10xf32>
  kernel.launch @k0(%v, %i, %y) : memref<64xf32>, memref<64xi32>, memref<10xf32>
  func.return
}
"""
COMBINE = "kernel.atomic_rmw add %value, %y[%p] : memref<10xf32>, vector<1xf32>"
LOAD = "%w = kernel.load %y[%p] : memref<10xf32> -> vector<1xf32>"
STORE = "kernel.store %value, %y[%p] : memref<10xf32>, vector<1xf32>"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (KERNEL, "", ""),
        (KERNEL.replace("kernel.launch @zero(%y) : memref<10xf32>\n", ""), "uninitialised", "never written"),
        (KERNEL.replace("10xf32", "9xf32").replace("< 10", "< 9"), "out-of-bounds", "coordinate 0 is 9"),
    ],
)
def test_what_the_simulator_finds(text: str, kind: str, message: str) -> None:
    values, places = np.arange(64, dtype=np.float32), np.arange(64, dtype=np.int32) % 10
    (got,), report = simulate(parse_module(make_context(), text, "test.mlir"), [values, places])
    if not kind:
        report.raise_errors()
        np.testing.assert_array_equal(got, np.bincount(places, values))
        return
    assert any(f.kind == kind and message in f.message for f in report.findings), str(report)


@pytest.mark.parametrize("change", [f"{COMBINE}\n{STORE}", f"{STORE}\n{COMBINE}"], ids=["then stored", "stored before"])
def test_stores_beside_atomics_race(change: str) -> None:
    values, places = np.arange(64, dtype=np.float32), np.arange(64, dtype=np.int32) % 10
    module = parse_module(make_context(), KERNEL.replace(COMBINE, change), "test.mlir")
    _, reports = run_cuda_on_cpu(print_cuda(module), make_plan(module), [values, places], (0,))
    assert any(r.kind == "race" for r in reports), reports


def test_what_the_emulator_finds() -> None:
    """The emulator reports a combination that is not atomic as a race, and results that depend on the order."""
    function, args = OPERATORS["index_add"]
    compiled = deplodock.compile(function, args, executor="reference").compilation
    plan, arrays = make_plan(compiled.at("kernel")), [a.numpy() for a in args]
    for old, new, kind in (
        ("{ atomicAdd(p, v); }", "{ *p += v; }", "race"),
        ("{ atomicAdd(p, v); }", "{ if (atomicCAS((int*)p, 0, 0) % 2) atomicAdd(p, v); }", "schedule"),
    ):
        assert old in compiled.cuda
        _, reports = run_cuda_on_cpu(compiled.cuda.replace(old, new), plan, arrays)
        assert kind in {r.kind for r in reports}


@pytest.mark.parametrize("arch", TARGETS)
def test_compiled(arch: str) -> None:
    """NVRTC compiles every atomic device function without spills."""

    def write(p: Tensor, *args: Tensor) -> list[Tensor]:
        modes = ("sum", "prod", "amax", "amin")
        return [x.scatter_reduce(0, p, v, m) for m in modes for x, v in zip(args[::2], args[1::2])]

    args = [t for d in (torch.float32, torch.float64, torch.int32, torch.int64) for t in (X.to(d), V.to(d))]
    compiled = deplodock.compile(write, (P, *args), executor="reference").compilation
    helpers = set(re.findall(r"void (atomic_\w+\([\w ]+\*)", compiled.cuda))
    assert len(helpers) == 16
    for use in compile_cubin(compiled.cuda, arch).kernels.values():
        assert use.spills == 0


@pytest.mark.parametrize("name", ["index_add", "index_copy", "scatter", "scatter_add"])
def test_checked(name: str) -> None:
    """An index outside of the tensor stops a checked program, also in the last lanes."""
    function, (x, index, values) = OPERATORS[name]
    wrong = index.clone()
    wrong[-1] = ROWS
    for executor in EXECUTORS:
        program = deplodock.compile(function, (x, index, values), executor=executor, checked=True)
        torch.testing.assert_close(program(x, index, values), function(x, index, values))
        with pytest.raises(CompileError, match=rf"an index is outside \[0, {ROWS}\): {ROWS}"):
            program(x, wrong, values)
