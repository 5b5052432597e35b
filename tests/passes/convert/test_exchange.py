"""Conversions of layouts by warp shuffles: the plan (`Exchange`) against an enumeration of lanes, and the kernels."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.exchanges import CASES, DTYPES, TF32, lowered
from xdsl.dialects.builtin import DenseArrayBase, i64

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.interpreter.domains import Array
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel
from deplodock.dialects.kernel.mma import MMA_ATOMS
from deplodock.dialects.layouts.conversion import Exchange, find_exchange
from deplodock.dialects.layouts.linear import LANES, Linear, Span, blocked, combine
from deplodock.dialects.layouts.mma import accumulator, fragment, matrix_rows, warpgroup_accumulator
from deplodock.errors import ScheduleError
from deplodock.passes.analysis.tile_layouts import route
from deplodock.target.architectures import TARGETS


def check(source: Linear, target: Linear, found: Exchange) -> None:
    """Asserts that the exchange `found` moves each element of `source` to its register and lane of `target`."""
    for warp in sorted({0, source.warps - 1}):
        for lane in range(LANES):
            for number in range(target.registers):
                sender = combine(found.lanes, lane) ^ combine(found.flips, number)
                held = combine(found.registers, number) ^ combine(found.before, sender)
                got = target.apply(number ^ combine(found.after, lane), lane, warp)
                assert source.apply(held, sender, warp) == got


def invertible(draw: st.DrawFn, bits: int) -> list[int]:
    """Draws the columns of an invertible matrix over GF(2): a permuted identity with columns XORed into others."""
    columns = draw(st.permutations([1 << b for b in range(bits)]))
    pairs = st.tuples(st.integers(0, bits - 1), st.integers(0, bits - 1))
    for i, j in draw(st.lists(pairs, max_size=12)):
        columns[i] ^= columns[j] if i != j else 0
    return list(columns)


@st.composite
def pairs_of_layouts(draw: st.DrawFn) -> tuple[Linear, Linear]:
    """Draws two layouts of one tile in one warp. Several threads may have the same element."""
    bits = draw(st.integers(1, 8))

    def layout() -> Linear:
        spare = st.one_of(st.just(0), st.integers(0, (1 << bits) - 1))
        copies = draw(st.lists(spare, min_size=max(0, 5 - bits), max_size=max(0, 5 - bits) + 2))
        bases = draw(st.permutations([(b,) for b in (*invertible(draw, bits), *copies)]))
        return Linear((1 << bits,), tuple(bases[5:]), tuple(bases[:5]), ())

    return layout(), layout()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(pairs_of_layouts())
def test_any_two_layouts_of_a_warp(pair: tuple[Linear, Linear]) -> None:
    """Any two layouts within a warp have an exchange. From a layout to itself it needs no shuffle."""
    source, target = pair
    found = find_exchange(source, target)
    assert found is not None
    check(source, target, found)
    own = find_exchange(source, source)
    assert own is not None
    if source.is_injective:
        assert (own.shuffles, own.choices(source.registers)) == (0, 0)


ATOMS = {
    "mma": accumulator((32, 64), 2, rows_first=True),
    "mma, wide": accumulator((64, 64), 4, rows_first=True, vec=8),
    "wgmma": warpgroup_accumulator((64, 64), 4),
}


@pytest.mark.parametrize("atom", ATOMS)
def test_layouts_of_every_atom(atom: str) -> None:
    """Between an accumulator and 16-bit operands, 32-bit operands and rows, if no element moves to another warp."""
    acc = ATOMS[atom]
    assert isinstance(acc, Linear)
    depth, done = acc.shape[1], 0
    others = [fragment(acc, 0, depth, atom) for atom in (MMA_ATOMS[0], TF32)]
    others += [matrix_rows(acc, 0, depth, False, atom).layout for atom in (MMA_ATOMS[0], TF32)]
    others += [blocked(acc.shape, (1, 0), vec, acc.warps, (0, 1)) for vec in (2, 4, 8)]
    for other in others:
        for source, target in ((acc, other), (other, acc)):
            found = find_exchange(source, target)
            within = source.warp == target.warp
            inside = Span(source.packed[: len(source.reg) + 5])
            reachable = all(inside.solve(p) is not None for p in target.packed[: len(target.reg) + 5])
            assert (found is not None) == (within and reachable)
            if found is not None:
                check(source, target, found)
                done += 1
    assert done >= 4


def test_what_a_butterfly_costs() -> None:
    """Swapping a lane bit and a register bit takes one shuffle for half of the registers, and four selects."""
    a = Linear((64,), ((1,),), tuple((2 << b,) for b in range(5)), ())
    b = Linear((64,), ((8,),), ((2,), (4,), (1,), (16,), (32,)), ())
    found = find_exchange(a, b)
    assert found is not None
    assert (found.stays, found.shuffles, found.choices(2)) == (True, 1, 4)
    turned = Linear(a.shape, a.reg, a.lane[::-1], ())
    found = find_exchange(a, turned)
    assert found is not None
    assert (found.stays, found.shuffles, found.choices(2)) == (False, 2, 0)


def test_other_warps_are_out_of_reach() -> None:
    a = blocked((64, 64), (1, 0), 4, 4)
    assert find_exchange(a, blocked((64, 64), (0, 1), 4, 4)) is None
    assert route(a, blocked((64, 64), (0, 1), 4, 4), 4) == "shared"
    assert route(a, Linear(a.shape, a.reg[::-1], a.lane, a.warp), 4) == "registers"
    assert route(a, Linear(a.shape, a.reg, a.lane[::-1], a.warp), 4) == "shuffles"


def numbers(name: str) -> Array:
    source, _, element = CASES[name]
    found = np.random.default_rng(0).integers(-100, 100, source.shape)
    return (found > 0 if element == "i1" else found).astype(DTYPES[element])


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """Returns all cases, built for the emulator together."""
    modules = {name: lowered(name) for name in CASES}
    texts = {name: print_cuda(m) for name, m in modules.items()}
    built = compile_many(list(texts.values()))
    return {n: EmulatedProgram(texts[n], make_plan(modules[n]), b) for n, b in zip(CASES, built, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    """A kernel that loads, converts and stores returns its input, without shared memory, in both executors."""
    module, x = lowered(name), numbers(name)
    assert not any(isinstance(op, kernel.SharedOp | kernel.BarrierOp) for op in module.walk())
    found = simulate(module, [x], domain="typed")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], x)
    (output,), reports = emulated()[name].run([x])
    assert not reports, str(reports[0])
    np.testing.assert_array_equal(output, x)


@pytest.mark.parametrize("arch", TARGETS)
def test_machine_code(arch: str) -> None:
    """A shuffle moves two 16-bit elements at once, and nothing goes through memory."""
    name = "accumulators to rows, bf16"
    compiled = compile_cubin(print_cuda(lowered(name)), arch)
    code = disassemble(compiled.cubin)["k0"]
    assert code.count("SHFL") == 16
    assert code.count("STS") + code.count("LDS") + code.spills == 0
    assert code.count("SEL") <= 96


def _plant(op: kernel.ShuffleOp, what: str) -> None:
    if what == "other flips":
        op.properties["lane_xor"] = DenseArrayBase.from_list(i64, [f ^ 1 for f in op.lane_xor.get_values()])
    elif what == "no flips":
        op.properties["lane_xor"] = DenseArrayBase.from_list(i64, [0] * len(op.lane_xor.get_values()))
    else:
        op.properties["operandSegmentSizes"] = None  # pyright: ignore
        op.operands = [op.source]


@pytest.mark.parametrize("what", ["other flips", "no flips", "own lane"])
def test_mistakes_show(what: str) -> None:
    name = "a fragment of tf32"
    module, x = lowered(name), numbers(name)
    for op in [o for o in module.walk() if isinstance(o, kernel.ShuffleOp)]:
        _plant(op, what)
    assert not np.array_equal(simulate(module, [x], domain="typed").outputs[0], x)


def test_a_way_that_is_none_is_refused() -> None:
    with pytest.raises(ScheduleError, match="cannot be converted so"):
        lowered("mixed bases", "registers")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_the_device(name: str) -> None:
    """Shuffles on a GPU return the same results as in the simulator."""
    from deplodock.backend.cuda.runtime import CudaProgram
    from deplodock.frontend.capture.arrays import to_numpy, to_torch

    module, x = lowered(name), numbers(name)
    (result,) = CudaProgram(module, print_cuda(module)).run([to_torch(x)])
    np.testing.assert_array_equal(to_numpy(result.cpu()), x)
