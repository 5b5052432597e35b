"""Attention as one kernel of two consumer warpgroups and a producer, whose softmax weights stay in registers."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, make_context, payload
from deplodock.dialects.payload import shape_of
from deplodock.dialects.tile.copies import RingOp
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

WINDOW = 200


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str = "causal") -> torch.Tensor:
    if mask == "window":
        rows, keys = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
        seen = (keys <= rows) & (rows - keys < max(WINDOW, k.shape[-2] // 2))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    return F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal", enable_gqa=True)


def inputs(heads: int, groups: int, length: int, depth: int, queries: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(length + depth)
    shapes = ((1, heads, queries or length, depth), (1, groups, length, depth), (1, groups, length, depth))
    return [torch.randn(s, dtype=torch.bfloat16) for s in shapes]


@lru_cache(maxsize=8)
def _loops(heads: int, groups: int, length: int, depth: int, mask: str) -> ModuleOp:
    """Returns attention of these sizes at the loop level."""
    q, k, v = inputs(heads, groups, length, depth)
    return Compilation(capture(lambda q, k, v: attention(q, k, v, mask), [q, k, v]).module).at("loop")


def lowered(loops: ModuleOp, decisions: str = "", upto: str = "kernel", target: str = "sm_90a") -> ModuleOp:
    """Returns `loops` lowered to the level `upto`, with a schedule that has `decisions`."""
    module = loops.clone()
    text = f"plan-schedules{{target={target} {decisions}}},loop-to-tile{{target={target}}}"
    run_passes(make_context(), module, parse_passes(text + (",tile-to-kernel" if upto == "kernel" else "")))
    return module


def decided(rows: int, keys: int, depth: int, stages: int = 2) -> str:
    chunks = ",".join([f"{keys},{depth}"] * 3)
    return f"block=1,1,{rows},{depth} chunk={chunks} warps={rows // 16} atom=wgmma copy=tma stages={stages}"


def check(module: ModuleOp, args: list[torch.Tensor], want: torch.Tensor) -> str:
    """Asserts that the simulator and the emulator compute `want` without reports. Returns the CUDA."""
    arrays = [to_numpy(t) for t in args]
    found = simulate(module, arrays)
    assert not found.report.findings, str(found.report)
    expected = want.numpy()
    np.testing.assert_allclose(found.outputs[0].astype(np.float64), expected, atol=2e-2)
    text = print_cuda(module)
    outputs, reports = EmulatedProgram(text, make_plan(module), compile_many([text])[0]).run(arrays)
    assert not reports, str(reports[0])
    np.testing.assert_allclose(outputs[0].astype(np.float64), expected, atol=2e-2)
    return text


@pytest.mark.parametrize(
    ("mask", "rows", "keys", "parts"),
    [("causal", 64, 32, 2), ("causal", 128, 64, 1), ("none", 256, 32, 1), ("window", 64, 32, 3)],
)
def test_right_in_both_executors(mask: str, rows: int, keys: int, parts: int) -> None:
    """One loop over keys, or up to three of which one has no masks; circular buffers continue across the loops.

    The matmul with the values runs one iteration late, and once more after the loops.
    """
    module = lowered(_loops(1, 1, 256, 64, mask), decided(rows, keys, 64))
    args = inputs(1, 1, 256, 64)
    text = check(module, args, attention(*(t.double() for t in args), mask))
    products = len(re.findall(r" wgmma_64rt\(", text)) - 1
    assert products == parts + 1, "the weights are multiplied from registers, once in each loop and once after them"
    assert len(re.findall(r"wgmma_wait_for<1>\(", text)) == parts, "the values' product runs while the scores are used"


def test_right_on_tensor_cores_of_other_targets() -> None:
    """The pipeline continues from the loop without masks to the one with masks. Weights stay in registers."""
    chunks = ",".join(["32,64"] * 3)
    decisions = f"block=1,1,64,64 chunk={chunks} warps=4 atom=mma copy=cp_async stages=3"
    module = lowered(_loops(1, 1, 256, 64, "causal"), decisions, target="sm_80")
    args = inputs(1, 1, 256, 64)
    text = check(module, args, attention(*(t.double() for t in args), "causal"))
    assert len(re.findall(r"for \(int k\d", text)) == 2
    assert text.count("copy_async_wait<0>();") == 1, "copies in flight are waited for behind the last loop only"


def test_the_planner_gives_a_producer_and_two_consumers() -> None:
    """The plan has 128 queries in one stage, and 128 keys, or 64 keys in more stages for longer rows."""
    for length, keys, slots in ((1024, 128, 2), (4096, 64, 4)):
        module = lowered(_loops(32, 32, length, 128, "causal"), upto="tile")
        rings = [op.result.type for op in module.walk() if isinstance(op, RingOp)]
        shapes = ["128x128", f"128x{keys}", f"{keys}x128"]  # queries, keys across, values
        assert [re.findall(r"\d+x\d+(?=xbf16)", str(r)) for r in rings] == [[shape] for shape in shapes]
        assert [int(re.search(r"ring<(\d+)", str(r))[1]) for r in rings] == [1, slots, slots]  # pyright: ignore


GATES = [(32, 128, "causal"), (8, 128, "window"), (32, 64, "none"), (32, 256, "causal")]
"""Heads of keys and values for 32 of queries, length of a head, mask."""


@pytest.mark.parametrize(("groups", "depth", "mask"), GATES)
def test_hopper_gates(groups: int, depth: int, mask: str) -> None:
    """Machine code has no spills and no wgmma warnings. Both matmuls are wgmma with TMA loads."""
    module = lowered(_loops(32, groups, 2048, depth, mask))
    (function,) = (op for op in module.walk() if isinstance(op, kernel.FuncOp))
    compiled = compile_cubin(print_cuda(module), "sm_90a")
    assert not compiled.warnings
    (use,), (code,) = compiled.kernels.values(), disassemble(compiled.cubin).values()
    assert (use.spills, use.stack, code.spills) == (0, 0, 0)
    assert code.count("UTMALDG") >= 3
    assert not code.count("HMMA")
    loops = [
        op
        for op in function.walk()
        if isinstance(op, scf.ForOp)
        and any(isinstance(o, kernel.WgmmaOp) for o in op.body.block.ops)
        and not any(isinstance(o, scf.ForOp) for o in op.body.block.ops)
    ]
    assert len(loops) == {"none": 1, "causal": 2, "window": 3}[mask]
    masked = [
        any(
            isinstance(o, payload.CmpOp) and len(shape_of(o.result.type)) and shape_of(o.result.type)[0] > 4
            for o in op.walk()
        )
        for op in loops
    ]
    assert masked == {"none": [False], "causal": [False, True], "window": [True, False, True]}[mask]


INSTRUCTIONS = {(128, "causal"): 490, (128, "none"): 490}
"""Most instructions of a warp for 128 keys without masks, by length of a head and mask. FlashAttention-3 has 469."""


@pytest.mark.parametrize(("depth", "mask"), INSTRUCTIONS)
def test_instructions_of_the_hot_loop(depth: int, mask: str) -> None:
    """The loop without masks has the wgmma of both matmuls, one exponential per score, and few other instructions."""
    compiled = compile_cubin(print_cuda(lowered(_loops(32, 32, 2048, depth, mask))), "sm_90a")
    (code,) = disassemble(compiled.cubin).values()
    loop, keys = code.hot_loop, 128
    assert loop is not None
    products, scores = 2 * keys // 16 * depth // 128, 64 * keys // 128
    assert (loop.count("HGMMA"), loop.count("R2UR"), loop.count("F2F")) == (products, 0, 0)
    assert loop.count("F2FP") == scores // 2
    assert loop.count("FFMA") >= scores
    assert loop.count("SHFL") == 4, "maxima of two rows, in two rounds"
    assert loop.count("MUFU") <= scores + 2
    assert len(loop) <= INSTRUCTIONS[depth, mask]


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_120"])
def test_compiles_without_spills(target: str) -> None:
    text = print_cuda(lowered(_loops(32, 32, 1024, 128, "causal"), target=target))
    compiled = compile_cubin(text, target)
    assert not compiled.warnings
    assert [(u.spill_stores, u.spill_loads, u.stack) for u in compiled.kernels.values()] == [(0, 0, 0)]
