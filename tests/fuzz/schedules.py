"""Random legal schedules of the nests of a corpus, executed thread by thread in the simulator.

For the target `cpu` the same tiles are computed by blocks of one thread, and the printed C++ runs too.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop, make_context
from deplodock.dialects.payload import shape_of
from deplodock.dialects.shapes.extents import Extent, typical
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.schedule import LEGAL, PLAIN, ScheduleAttr
from deplodock.errors import CompileError, ScheduleError
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.passes.analysis.nest_schedule import reduction_indices, splittable, stages_of
from deplodock.passes.analysis.operands import packable_loads
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.passes.planning.plan_schedules import check_schedule
from deplodock.target.attribute import get_target

LOWERING = "loop-to-tile,tile-to-kernel"
TARGET = "sm_90a"
TARGETS = (TARGET, "cpu")

PACKED = 3
"""For `cpu`, one case in this many packs a matmul operand in advance."""

OF_ONE_THREAD = ("block", "chunk", "serial", "split_k", "group_m", "num_ctas", "cache_rows")
"""Fields of a schedule that apply to a block of one thread."""

DRAWS = 400
"""Largest number of schedules that are drawn until one is legal."""

MOST_STEPS = 128
"""Largest number of tiles of one block, which the simulator computes one by one."""

_PLAIN = (
    "softmax relu_matmul attention causal_attention rms_norm rms_norm_matmul layer_norm gather gather_inside_a_sum"
    " pad_and_transpose convolution integers column_sums product_of_maxima logsumexp swiglu heads_merged"
).split()
_NARROW = {"relu_matmul": "bf16", "attention": "bf16", "causal_attention": "bf16", "swiglu": "f16"}

_LOAD = re.compile(r"(%\w+) = (loop\.load [^\n]*): tensor<(\w+)xf32>$", re.MULTILINE)


def narrowed(text: str, element: str) -> str:
    """Returns a program with inputs of a narrow element type, which are widened after each load."""
    head, body = text.split("{", 1)
    head = re.sub(r"(%\w+: tensor<\w+)xf32>", rf"\1x{element}>", head)
    new = rf"\1_narrow = \2: tensor<\3x{element}>\n\1 = payload.cast \1_narrow : {element} -> f32"
    return head + "{" + _LOAD.sub(new, body)


@cache
def corpus() -> dict[str, str]:
    """Returns the loop nests of the corpus by name."""
    known, large = (_programs(f"{size}_nests.mlir") for size in ("loop", "large"))
    found = {name: known[name] for name in _PLAIN} | large
    for name, element in _NARROW.items():
        comment, program = known[name].split("\n", 1)
        found[f"{name}, {element}"] = f"{comment}\n{narrowed(program, element)}"
    return found


def _programs(file: str) -> dict[str, str]:
    text = (Path(__file__).parents[1] / "programs" / file).read_text(encoding="utf-8")
    parts = [part.strip() for part in text.split("// -----")]
    return {part.splitlines()[0].removeprefix("// "): part for part in parts}


@cache
def expected(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the inputs of a kernel and its exact results."""
    module = parse_module(make_context(), corpus()[name], f"{name}.mlir")
    rng = np.random.default_rng(len(name))
    main = next(f for f in module.ops if isinstance(f, FuncOp))
    inputs: list[np.ndarray] = []
    for t in main.function_type.inputs:
        kind = str(t.element_type)  # pyright: ignore
        if kind == "i64":
            inputs.append(rng.integers(0, 7, shape_of(t)))
        else:
            dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[kind]
            inputs.append(rng.standard_normal(shape_of(t)).astype(dtype))
    return inputs, run(module, inputs, "exact")


@dataclass(frozen=True)
class Case:
    """A kernel of the corpus with a schedule."""

    seed: int
    name: str
    module: ModuleOp
    schedule: ScheduleAttr

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.name} under {self.schedule}"


def draw(seed: int) -> Case:
    """Returns a random kernel with a random legal schedule."""
    rng, also = random.Random(seed), random.Random(f"cluster_k {seed}")
    name = sorted(corpus())[seed % len(corpus())]
    module = parse_module(make_context(), corpus()[name], f"{name}.mlir")
    (nest,) = (op for op in module.walk() if isinstance(op, loop.NestOp))
    for _ in range(DRAWS):
        drawn = any_schedule(nest, rng, name)
        shared = [with_cluster_k(drawn, ranks) for ranks in also.sample((2, 4, 8, 8), 4) if also.random() < 0.4]
        for schedule in (*shared, drawn):
            nest.attributes["schedule"] = schedule
            if steps(nest, schedule) > MOST_STEPS:
                continue
            try:
                check_schedule(nest, get_target(TARGET))
            except ScheduleError:
                continue
            return Case(seed, name, module, schedule)
    raise AssertionError(f"no legal schedule of {name} in {DRAWS} draws")


def one_thread(case: Case) -> Case:
    """Returns the case with the tiles of its schedule, for a block of one thread."""
    decided = {
        name: value if name in OF_ONE_THREAD else PLAIN[name] for name, value in vars(case.schedule.data).items()
    }
    schedule = case.schedule.changed(**decided | {"lanes": 1, "warps": 1})
    for nest in case.module.walk():
        if isinstance(nest, loop.NestOp):
            along = [i for i, a in enumerate(nest.body.block.args) if isinstance(packable_loads(nest, a), list)]
            if along and case.seed % PACKED == 0:
                schedule = schedule.changed(pack=[along[case.seed // PACKED % len(along)]])
            nest.attributes["schedule"] = schedule
    return replace(case, schedule=schedule)


def case_for(seed: int, target: str) -> Case:
    """Returns the case of a seed for `sm_90a` or `cpu`."""
    return one_thread(draw(seed)) if target == "cpu" else draw(seed)


def steps(nest: loop.NestOp, schedule: ScheduleAttr) -> int:
    """Returns the number of chunks that one block computes, over all its tiles."""
    tiles = [-(-typical(n) // b) for n, b in zip(nest.sizes, schedule.data.block, strict=True)]
    own = prod(tiles[s] for s in schedule.data.serial)
    blocks, shared = prod(tiles) // own, schedule.data.num_ctas
    chunks = [-(-typical(n) // c) for (_, n), c in zip(reduction_indices(nest), schedule.data.chunk, strict=True)]
    return own * (-(-blocks // shared) if shared else 1) * prod(chunks)


def any_schedule(nest: loop.NestOp, rng: random.Random, name: str) -> ScheduleAttr:
    """A random schedule, often an illegal one; of products two of three are for tensor cores."""
    block = [_tile(rng, n, (1, 2, 4, 8, 16, 16, 32, 64, 64)) for n in nest.sizes]
    sizes = {arg: _tile(rng, n, (1, 2, 4, 8, 16, 16, 32)) for arg, n in reduction_indices(nest)}
    narrow, products = "," in name, any(r.contraction is not None for r in NestInfo(nest).reductions)
    copy = rng.choice(("sync", "cp_async", "tma") if narrow else ("sync", "cp_async"))
    atom = rng.choice(("fma", "mma", "wgmma")) if narrow else rng.choice(("fma", "fma", "mma"))
    warps = rng.choice((1, 1, 2, 2, 4, 8))
    serial = [i for i in range(len(block)) if rng.random() < 0.2]
    styles = ("any", "mma", "wgmma", "wgmma") if narrow else ("any", "mma")
    style = rng.choice(styles) if products and len(block) > 1 else "any"
    if style != "any":
        whole = style == "wgmma"
        tile = rng.choice((64, 64, 128) if whole else (16, 32, 64)), rng.choice((32, 64, 128) if whole else (8, 16, 32))
        block = [*(1 for _ in block[2:]), *tile]
        sizes = {arg: _tile(rng, n, (16, 32, 32, 64)) for arg, n in reduction_indices(nest)}
        copy = rng.choice(("sync", "cp_async", "tma", "tma") if whole else ("sync", "cp_async", "cp_async"))
        atom, warps = style, rng.choice((4, 4, 8) if whole else (1, 2, 4))
        serial = serial if rng.random() < 0.2 else []
    for op in nest.walk():
        if isinstance(op, loop.StagedReduceOp):
            first = op.stage_ops[0].body.block.args
            for stage in op.stage_ops:
                sizes.update((a, sizes[b]) for a, b in zip(stage.body.block.args, first, strict=True))
    reduction = splittable(nest)
    parts = [1, 1]
    if not isinstance(reduction, str):
        parts += [p for p in (2, 3, 5, 7, 13, 41) if any(n and n % p == 0 for n in stages_of(reduction)[0].shape)]
    decided = {
        "serial": serial,
        "split_k": rng.choice(parts),
        "group_m": rng.choice((1, 1, 2, 3)),
        "num_ctas": rng.choice((0, 0, 0, 2, 3)),
        "cache_rows": rng.choice(LEGAL["cache_rows"]),
    }
    cluster = rng.choice((2, 4)) if rng.random() < 0.6 and (copy == "tma" or not products) else 1
    if cluster > 1 and not products:  # blocks that share rows do nothing else in common
        decided = {"cache_rows": decided["cache_rows"]}
    return ScheduleAttr.get(
        block,
        [sizes[arg] for arg, _ in reduction_indices(nest)],
        thread=rng.choice(((), (1, 1), (2, 2), (4, 2), (4, 4))),
        warps=warps,
        atom=atom,
        copy=copy,
        stages=1 if copy == "sync" else rng.choice((1, 2, 3, 4)),
        cluster=cluster,
        f32_matmul_precision=rng.choice(("ieee", "input_dtype", "bf16x3", "tf32")),
        promotion_interval=rng.choice((0, 0, 1, 2, 3)) if products else 0,
        promotion_memory=rng.choice(LEGAL["promotion_memory"]) if products else "registers",
        **decided,
    )


def with_cluster_k(schedule: ScheduleAttr, ranks: int) -> ScheduleAttr:
    """Returns the schedule with clusters that split reductions, without decisions that exclude them."""
    plain = {name: PLAIN[name] for name in ("serial", "split_k", "group_m", "num_ctas", "cluster", "cache_rows")}
    return schedule.changed(**plain, cluster_k=ranks)


def _tile(rng: random.Random, extent: Extent, choices: tuple[int, ...]) -> int:
    """Returns a random tile extent. A long range gets a long tile, because the simulator is slow."""
    assert isinstance(extent, int)
    return rng.choice((256, 512, 1024, 2048, 4096) if extent >= 1024 else [c for c in choices if c < 2 * extent] or [1])


PARTS = {
    "products on CUDA cores": "kernel.outer_fma",
    "mma": "kernel.mma",
    "wgmma": "kernel.wgmma",
    "cp.async": "kernel.cp_async",
    "boxes": "kernel.tma_load",
    "partitions": "kernel.warp_specialize",
    "results as boxes": "kernel.tma_store",
    "clusters": "kernel.cluster_barrier",
    "rings": "kernel.subview",
    "shuffles": "kernel.shuffle_xor",
}
"""Feature of a kernel -> the operation by which it is recognised."""


def made_of(case: Case) -> list[str]:
    """Returns the features of a judged kernel. A drawn decision may have no effect, so operations are inspected."""
    used = {op.name for op in case.module.walk()}
    s = case.schedule
    decided = {
        "a divided sum": s.data.split_k > 1,
        "sums of a cluster": s.data.cluster_k > 1,
        "several tiles a block": s.data.num_ctas > 0,
        "patches of blocks": s.data.group_m > 1,
        "serial tiles": bool(s.data.serial),
        "rows in shared memory": s.data.cache_rows == "shared" and "kernel.shared" in used and "softmax" in case.name,
        "parts of f32": s.data.f32_matmul_precision == "bf16x3" and "kernel.mma" in used and "," not in case.name,
    }
    return [part for part, op in PARTS.items() if op in used] + [part for part, is_so in decided.items() if is_so]


def judge(case: Case, target: str = TARGET, built: bool = True) -> tuple[str, str]:
    """Returns ("right" | "refused" | "wrong" | "crash", reason).

    A kernel is right if the simulator gives the exact result and reports no error. If `built`, the emulator also runs
    kernels with shared memory, and C++ for `cpu` is compared in floats.
    """
    inputs, want = expected(case.name)
    source = case.module.clone()
    try:
        run_passes(make_context(), case.module, parse_passes(LOWERING, {"target": (target,)}))
        found = simulate(case.module, inputs, domain="exact")
    except CompileError as error:
        return "refused", str(error)
    except Exception as error:  # A legal schedule must not raise any error.
        return "crash", f"{type(error).__name__}: {error}"
    if found.report.findings:
        return "wrong", str(found.report.findings[0])
    for i, (g, w) in enumerate(zip(found.outputs, want, strict=True)):
        if not np.array_equal(g, w):
            return "wrong", f"result {i}: {int((g != w).sum())} of {w.size} elements differ"
    if not built:
        return "right", ""
    if target != "cpu" and any(isinstance(op, kernel.SharedOp) for op in case.module.walk()):
        _, reports = EmulatedProgram(print_cuda(case.module), make_plan(case.module)).run(inputs, (0,))
        if reports:
            return "wrong", str(reports[0])
    if target == "cpu" and (reason := _wrong_as_cpp(case.module, inputs, run(source, inputs))):
        return "wrong", reason
    return "right", ""


def _wrong_as_cpp(module: ModuleOp, inputs: list[np.ndarray], wanted: list[np.ndarray]) -> str:
    """Returns a message on a wrong result of the printed C++, or an empty text."""
    found = CpuProgram(module, print_cpp(module)).run([to_torch(a) for a in inputs])
    for i, (t, want) in enumerate(zip(found, wanted, strict=True)):
        a, b = to_numpy(t).astype(np.float64), want.astype(np.float64)
        near = np.isclose(a, b, rtol=2e-2, atol=2e-2 * max(1.0, float(np.abs(b).mean())), equal_nan=True)
        if not near.all():
            return f"result {i} as C++: {int((~near).sum())} of {near.size} elements differ"
    return ""
