"""f32 matmuls on tensor cores in tf32, if the schedule permits it, from loop nests to the printed CUDA."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.emulation import emulated_kernels
from support.tf32_products import PRODUCTS, Product
from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, i64
from xdsl.ir import Operation

import deplodock
from deplodock.backend.check_each import Checker, operand_roundoff, within
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.interpreter.domains import Array, cut_tf32, round_tf32
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop, make_context, payload
from deplodock.dialects.support.parsing import parse_module
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import collect_remarks, run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning.choose import rank
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.target.architectures import TARGETS
from deplodock.target.attribute import get_target
from deplodock.tools import cli

TF32 = ("--f32-matmul-precision", "tf32")


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """Returns all matmuls, built for the emulator together."""
    return emulated_kernels({name: p.lowered() for name, p in PRODUCTS.items()})


def close(found: Array, p: Product, cuts: bool = False) -> None:
    """Asserts that only the order of f32 sums differs; an error of tf32 would be a thousand times larger.

    If the tensor core truncates (`cuts`) its sums, each addition errs by up to one unit instead of half a unit.
    """
    atol = 2.0 ** (-21 if cuts else -22) * p.k
    np.testing.assert_allclose(found.astype(np.float64), p.expected(), rtol=0, atol=atol)


@pytest.mark.parametrize("name", PRODUCTS)
def test_simulated(name: str) -> None:
    """The simulator computes exact results in the exact domain and close ones in floats, without bank conflicts."""
    p = PRODUCTS[name]
    module, args = p.lowered(), p.inputs()
    assert any(isinstance(op, kernel.MmaOp | kernel.WgmmaOp) for op in module.walk())
    (wanted,) = run(parse_module(make_context(), p.text, "product.mlir"), args, "exact")
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], wanted)
    found = simulate(module, args, domain="typed")
    close(found.outputs[0], p)
    (counts,) = found.report.launches
    assert counts.wavefronts == counts.ideal_wavefronts


@pytest.mark.parametrize("name", PRODUCTS)
def test_emulated(name: str) -> None:
    """The emulated CUDA is right; emulated tensor cores truncate sums."""
    p = PRODUCTS[name]
    outputs, reports = emulated()[name].run(p.inputs())
    assert not reports, str(reports[0])
    close(outputs[0], p, cuts=True)


COUNTS = {"weights along k": (32, 16, 0), "weights along n": (32, 8, 32), "eight warps": (64, 8, 64)}
"""HMMA of a warp in one chunk, LDSM, and LDS."""


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", COUNTS)
def test_machine_code(name: str, arch: str) -> None:
    compiled = compile_cubin(print_cuda(PRODUCTS[name].lowered()), arch)
    (use,) = compiled.kernels.values()
    assert use.spills == use.stack == 0
    assert not compiled.warnings
    code = disassemble(compiled.cubin)["k0"]
    assert code.spills == code.count("FFMA") == 0
    assert code.opcodes["HMMA.1688.F32.TF32"] == code.count("HMMA")
    assert (code.count("HMMA"), code.count("LDSM"), code.count("LDS")) == COUNTS[name]


def test_machine_code_of_warpgroups() -> None:
    """There is one HGMMA per 8 elements of k, and no rounding of operands that TMA loads."""
    for name, count in (("warpgroups", 4), ("warpgroups, boxes", 4)):
        compiled = compile_cubin(print_cuda(PRODUCTS[name].lowered()), "sm_90a")
        (use,) = compiled.kernels.values()
        assert use.spills == use.stack == 0
        assert not compiled.warnings
        code = disassemble(compiled.cubin)["k0"]
        assert sum(n for o, n in code.opcodes.items() if o.startswith("HGMMA") and "TF32" in o) == count


def _unrounded(op: Operation) -> None:
    op.results[0].replace_all_uses_with(op.operands[0])


MISTAKES: dict[str, tuple[type[Operation], Callable[[Any], object]]] = {
    "not rounded": (payload.RoundTf32Op, _unrounded),
    "half the step of k": (
        scf.ForOp,
        lambda op: op.attributes.get("unroll") and op.step.owner.properties.update(value=IntegerAttr(4, IndexType())),
    ),
    "fragment in another order": (
        kernel.LdMatrixOp,
        lambda op: op.properties.update(steps=DenseArrayBase.from_list(i64, op.steps.get_values()[::-1])),
    ),
    "rows for columns": (kernel.MmaOp, lambda op: op.properties.update(rows=op.cols, cols=op.rows)),
    "factors swapped": (kernel.MmaOp, lambda op: setattr(op, "operands", [op.rhs, op.lhs, op.acc])),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_show(mistake: str) -> None:
    """Each planted bug changes the result by more than the order of addition can."""
    p = Product(64, 64, 64, (64, 64), 64, 1)
    module = p.lowered()
    kind, plant = MISTAKES[mistake]
    for op in [o for o in module.walk() if isinstance(o, kind)]:
        plant(op)
    try:
        found = simulate(module, p.inputs(), domain="typed")
    except ValueError:
        return
    assert found.report.findings or np.max(np.abs(found.outputs[0] - p.expected())) > 2.0**-22 * p.k


def test_roundings() -> None:
    """Rounding to tf32 to the nearest, halves away from zero; and truncation."""
    unit = 2.0**-10
    x = np.array([1.0, 1 + unit / 2, 1 + unit / 2 - 2.0**-23, -1 - unit / 2, np.inf, -np.inf, np.nan], np.float32)
    rounded = np.array([1.0, 1 + unit, 1.0, -1 - unit, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(round_tf32(x), rounded)
    np.testing.assert_array_equal(cut_tf32(x), np.trunc(x / unit) * unit)
    for found in (round_tf32(x), cut_tf32(x)):
        assert not (found.view(np.uint32) & 0x1FFF).any()


def test_only_with_permission() -> None:
    """Without permission f32 matmuls use no tensor cores, and a remark names the option that permits it."""
    module = parse_module(
        make_context(), PRODUCTS["odd sizes"].text.replace(", f32_matmul_precision = tf32", ""), "product.mlir"
    )
    with collect_remarks() as remarks:
        run_passes(make_context(), module, parse_passes("loop-to-tile,tile-to-kernel"))
    assert not any(isinstance(op, kernel.MmaOp | payload.RoundTf32Op) for op in module.walk())
    assert any("f32_matmul_precision = tf32" in str(r) for r in remarks)


@pytest.mark.parametrize(("target", "right", "atom"), [("sm_90a", "nk", "wgmma"), ("sm_80", "kn", "mma")])
def test_the_planner_takes_it_where_it_may(target: str, right: str, atom: str) -> None:
    """With the permission the planner chooses tf32, which is over three times faster. Otherwise no candidate has it."""
    text = re.sub(r" attributes \{schedule = .*>\}", "", Product(1024, 1024, 1024, (64, 64), 32, 4, right=right).text)
    (nest,) = (op for op in parse_module(make_context(), text, "product.mlir").walk() if isinstance(op, loop.NestOp))
    permitted, plain = (rank(NestInfo(nest), get_target(target), p) for p in ("tf32", "ieee"))
    assert permitted[0].schedule.data.atom == atom
    assert permitted[0].schedule.data.f32_matmul_precision == "tf32"
    assert {c.schedule.data.atom for c in plain} == {"fma"}
    fast, slow = permitted[0].prediction, plain[0].prediction
    assert fast is not None
    assert slow is not None
    assert fast.seconds * 3 < slow.seconds


def test_every_pass_is_checked_with_its_tolerance() -> None:
    """The check after each pass tolerates the rounding of operands to tf32, but not to bf16."""
    module = parse_module(make_context(), Product(32, 32, 64, (32, 32), 32, 1).text, "product.mlir")
    checker = Checker(module)
    for one in parse_passes("loop-to-tile,tile-to-kernel"):
        run_passes(make_context(), module, [one])
        checker.after(one.name, module)
    product = next(op for op in module.walk() if isinstance(op, kernel.MmaOp))
    assert operand_roundoff(module) == 2.0**-11
    exact = np.ones(4)
    assert within(exact + 2.0**-10, exact, exact, 1, operand_roundoff(module)).all()
    assert not within(exact + 2.0**-8, exact, exact, 1, operand_roundoff(module)).any()
    rounding = product.lhs.owner
    assert isinstance(rounding, payload.RoundTf32Op)
    product.operands[0] = rounding.operand
    assert operand_roundoff(module) == 2.0**-10


def test_every_pass_of_warpgroups_is_checked() -> None:
    """wgmma needs a fence after threads store operands. It is checked from the pass on that inserts barriers."""
    product = Product(64, 64, 32, (64, 64), 32, 4, decisions="atom = wgmma")
    module = parse_module(make_context(), product.text, "product.mlir")
    checker = Checker(module)
    for one in parse_passes("loop-to-tile,tile-to-kernel"):
        run_passes(make_context(), module, [one])
        checker.after(one.name, module)
    assert checker.synchronised
    assert operand_roundoff(module) == 2.0**-10


def test_torch_has_a_switch() -> None:
    """`deplodock.compile` follows `torch.set_float32_matmul_precision`, unless its option says otherwise."""
    layer, x = torch.nn.Linear(64, 64), torch.randn(64, 64)

    def narrow(permission: str | None = None) -> bool:
        return "f32_matmul_precision = tf32" in deplodock.compile(
            layer, (x,), target="sm_80", f32_matmul_precision=permission
        ).ir("tile")

    assert (narrow(), narrow("tf32")) == (False, True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert (narrow(), narrow("ieee")) == (True, False)
    finally:
        torch.set_float32_matmul_precision(before)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`--f32-matmul-precision tf32` permits tf32, and the comparison with PyTorch tolerates its error."""

    def printed(*args: str) -> str:
        assert cli.main([args[0], "-c", "nn.Linear(96, 64)(torch.randn(70, 96))", *args[1:]]) == 0
        return capsys.readouterr().out

    (result,) = json.loads(printed("run", *TF32, "--executor", "simulator", "--json"))["results"]
    assert 2.0**-14 < result["error"] < result["tolerance"] < 2.0**-5
    assert "f32_matmul_precision = tf32" not in printed("compile", "--explain")
    assert "f32_matmul_precision = tf32" in printed("compile", "--explain", *TF32)
    assert "f32_matmul_precision=tf32" in printed("compile", "--print-pipeline", *TF32)


@pytest.mark.parametrize("decisions", ["atom=mma", "atom=wgmma block=1,1,64,64 warps=4 stages=2 copy=tma"])
def test_weights_of_attention_stay_in_registers(decisions: str) -> None:
    """Softmax weights move from the first matmul to the second by shuffles, not through shared memory."""
    torch.manual_seed(0)
    attend: Callable[..., torch.Tensor] = torch.nn.functional.scaled_dot_product_attention
    args = [torch.randn(1, 1, 64, 64) for _ in range(3)]
    module = Compilation(capture(attend, args).module).at("loop").clone()
    passes = f"plan-schedules{{f32_matmul_precision=tf32 nest=k0 {decisions}}},loop-to-tile,tile-to-kernel"
    run_passes(make_context(), module, parse_passes(passes))
    shuffled = [op for op in module.walk() if isinstance(op, kernel.ShuffleOp)]
    assert [op.lane is not None for op in shuffled] == [True]
    found = simulate(module, [a.numpy() for a in args], domain="typed")
    assert not found.report.findings, str(found.report)
    wanted = attend(*(a.double() for a in args)).numpy()
    error = np.max(np.abs(found.outputs[0] - wanted))
    assert 2.0**-16 < error < 2.0**-8


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_the_device(name: str) -> None:
    """A GPU rounds and truncates as the simulator and the emulator do."""
    from deplodock.backend.cuda.runtime import CudaProgram
    from deplodock.frontend.capture.arrays import to_numpy, to_torch

    p = PRODUCTS[name]
    module = p.lowered()
    (result,) = CudaProgram(module, print_cuda(module)).run([to_torch(a) for a in p.inputs()])
    close(to_numpy(result.cpu()), p)
