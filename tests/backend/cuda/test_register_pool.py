"""Registers that warp partitions share: lowering, verifier, emulator and ptxas count the same number per block."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from mutation.hopper_mutants import SUBJECTS
from support.hopper_running import allocated, inputs
from support.static_gates import missing_registers
from torch.nn import functional as F
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64
from xdsl.utils.exceptions import VerifyException

import deplodock
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, Report, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.dialects import make_context
from deplodock.dialects.kernel import FuncOp, kernel_names
from deplodock.dialects.kernel.barriers import (
    PRODUCER_REGISTERS,
    WARPGROUP,
    WarpSpecializeOp,
    consumer_registers,
    register_pool,
)
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError, ScheduleError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning.gpu import resources
from deplodock.target.architectures import TARGETS
from deplodock.target.model import launch_registers, occupancy

SUBJECT = SUBJECTS["two warpgroups"]


def partitions(*each: tuple[int, int], blocks: int = 1) -> str:
    """Returns the IR of a kernel with one partition for each (warps, registers per thread)."""
    programs = "".join(f'partition "r{i}"(%w{i}) warps {w} registers {r} {{\n}}\n' for i, (w, r) in enumerate(each))
    head = f"kernel.func @k() grid [1] warps {sum(w for w, _ in each)} blocks_per_sm {blocks}"
    return f"{head} {{\nkernel.warp_specialize {{\n{programs}}}\n}}"


def test_the_sums_of_flash_attention_3() -> None:
    """The registers that FlashAttention-3 gives to a producer and two or three consumer warpgroups are exactly all."""
    for text in (partitions((4, 24), (4, 240), (4, 240)), partitions((4, 32), (4, 160), (4, 160), (4, 160))):
        parse_module(make_context(), text, "test.mlir").verify()
    assert register_pool(384) == 128 * (24 + 240 + 240)
    assert register_pool(512) == 128 * (32 + 160 + 160 + 160)
    for text in (partitions((4, 32), (4, 240), (4, 240)), partitions((4, 40), (4, 160), (4, 160), (4, 160))):
        with pytest.raises(VerifyException, match="registers in all partitions"):
            parse_module(make_context(), text, "test.mlir").verify()


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("warps", range(4, 29, 4))
def test_what_consumers_take_is_there(warps: int, blocks: int) -> None:
    """For any number of warps, consumers get as many registers as fit, in steps of eight per thread."""
    threads, wanted = 32 * (warps + WARPGROUP), consumer_registers(warps, blocks)
    total = 32 * (warps * wanted + WARPGROUP * PRODUCER_REGISTERS)
    assert total <= register_pool(threads, blocks) <= 65536 // blocks
    assert wanted == 240 or total + 32 * warps * 8 > register_pool(threads, blocks)
    if wanted >= 24 and blocks * threads <= 2048:
        parse_module(
            make_context(), partitions((warps, wanted), (WARPGROUP, PRODUCER_REGISTERS), blocks=blocks), "test.mlir"
        ).verify()


def test_the_compiler_launches_with_as_many_registers() -> None:
    """ptxas launches kernels with `setmaxnreg` with the number of registers that `launch_registers` computes."""
    kernels: dict[str, tuple[int, int]] = {}
    text = ""
    for warps in range(12, 33, 4):
        for blocks in (1, 2):
            name = f"k{warps}_{blocks}"
            kernels[name] = 32 * warps, blocks
            text += f"""extern "C" __global__ void __launch_bounds__({32 * warps}, {blocks}) {name}(int* x) {{
              if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
              else {{ asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); x[threadIdx.x] = 1; }}
            }}\n"""
    compiled = compile_cubin(text, "sm_90a")
    assert not compiled.warnings
    assert {n: u.registers for n, u in compiled.kernels.items()} == {
        n: launch_registers(*k) for n, k in kernels.items()
    }


@pytest.mark.parametrize(("batch", "length", "depth"), [(4, 4096, 64), (1, 2048, 128)])
def test_compiled_attention_has_what_its_roles_want(batch: int, length: int, depth: int) -> None:
    q = torch.zeros(batch, 32, length, depth, dtype=torch.bfloat16)
    compiled = deplodock.compile(F.scaled_dot_product_attention, (q, q, q), target="sm_90a", executor="reference")
    (function,) = [op for op in compiled.compilation.at("kernel").ops if isinstance(op, FuncOp)]
    found = compile_cubin(compiled.compilation.cuda, "sm_90a")
    assert not found.warnings
    (use,) = found.kernels.values()
    assert function.partitions is not None
    assert missing_registers(function, use) == 0
    assert missing_registers(function, replace(use, registers=use.registers - 8)) > 0


PRODUCTS = [
    ("sm_80", 512, 4096, 2048),
    ("sm_89", 256, 4096, 2048),
    ("sm_120", 512, 2048, 2048),
]


@pytest.mark.parametrize(("target", "rows", "columns", "depth"), PRODUCTS)
def test_as_many_blocks_fit_as_planned(target: str, rows: int, columns: int, depth: int) -> None:
    """`__launch_bounds__` has the planned number of blocks per multiprocessor; ptxas reaches it without spills."""
    a, b = torch.zeros(rows, depth, dtype=torch.bfloat16), torch.zeros(columns, depth, dtype=torch.bfloat16)
    compiled = deplodock.compile(F.linear, (a, b), target=target, executor="reference").compilation
    functions = [op for op in compiled.at("kernel").ops if isinstance(op, FuncOp)]
    (function,) = [f for f in functions if any(op.name in ("kernel.mma", "kernel.wgmma") for op in f.walk())]
    assert function.resident > 1
    assert f"__launch_bounds__({function.threads}, {function.resident})" in compiled.cuda
    found = compile_cubin(compiled.cuda, target)
    assert not found.warnings
    use = found.kernels[kernel_names(compiled.at("kernel"))[function.sym_name.data]]
    assert (use.spills, use.stack, missing_registers(function, use)) == (0, 0, 0)
    shared = 0 if function.shared is None else function.shared.data
    assert occupancy(TARGETS[target], function.threads, use.registers, shared) >= function.resident


@pytest.mark.parametrize(
    ("block", "blocks", "fits"), [("64,128", 2, True), ("64,256", 2, False), ("64,128", 3, False), ("64,64", 3, True)]
)
def test_the_plan_knows_what_ptxas_compiles(
    block: str, blocks: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner accepts and refuses the same warpgroup matmuls as ptxas.

    A matmul needs its registers at the launch, even if `setmaxnreg` raises the number later.
    """
    zeros = torch.zeros(2048, 2048, dtype=torch.bfloat16)
    compiled = deplodock.compile(F.linear, (zeros, zeros), target="sm_90a", executor="reference")
    text = re.sub(r" attributes \{schedule = [^}]*\}", "", compiled.ir("loop"))
    options = f"block={block} chunk=64 warps=4 atom=wgmma copy=tma stages=2 blocks_per_sm={blocks}"
    pipeline = parse_passes(f"plan-schedules{{{options}}},loop-to-tile,tile-to-kernel")

    def lowered() -> ModuleOp:
        ctx = make_context()
        module = parse_module(ctx, text, "test.mlir")
        run_passes(ctx, module, pipeline)
        return module

    if not fits:
        with pytest.raises(ScheduleError, match="do not fit on a multiprocessor of sm_90a"):
            lowered()
        monkeypatch.setattr(resources, "_at_launch", lambda *_: 1 << 10)
        with pytest.raises(CompileError, match="the CUDA compiler refuses the text"):
            compile_cubin(print_cuda(lowered()), "sm_90a")
        return
    (use,) = compile_cubin(print_cuda(lowered()), "sm_90a").kernels.values()
    assert use.spills == use.stack == 0


def test_the_verifier_refuses_a_pool_that_is_too_small() -> None:
    module = allocated(SUBJECT.text())
    (found,) = [op for op in module.walk() if isinstance(op, WarpSpecializeOp)]
    found.registers = DenseArrayBase.from_list(i64, [48, 232])  # 64512 registers are there, 65536 wanted
    with pytest.raises(VerifyException, match="expected at most 64512 registers in all partitions, .*, but got 65536"):
        found.verify_()


def test_the_emulator_hangs_where_the_pool_is_too_small() -> None:
    sound = print_cuda(allocated(SUBJECT.text()))
    texts = [
        sound,
        sound.replace("give_registers<40>", "give_registers<48>"),
        sound.replace("__launch_bounds__(384, 1)", "__launch_bounds__(384)"),
        re.sub(r"take_registers<232>", "give_registers<232>", sound),
    ]
    reports = [run(text, module) for text, module in zip(texts, compile_many(texts), strict=True)]
    assert not reports[0]
    assert reports[1].kind == "deadlock"
    assert "in take_registers for 232 registers a thread" in reports[1].text
    assert reports[2].kind == "protocol"
    assert "setmaxnreg is ignored" in reports[2].text
    assert reports[3].kind == "protocol"
    assert "give_registers<232> by threads that have 168" in reports[3].text


def run(text: str, module: object) -> Report | None:
    """Returns the emulator's first report for a CUDA text of the subject, or None."""
    program = EmulatedProgram(text, make_plan(allocated(SUBJECT.text())), module)  # pyright: ignore[reportArgumentType]
    _, reports = program.run([np.asarray(x) for x in inputs(SUBJECT)], (0,))
    return reports[0] if reports else None
