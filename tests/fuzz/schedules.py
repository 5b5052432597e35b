"""Random legal schedules: any nest of a corpus, any tiles, any transport, run by all threads in the simulator."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.backend.targets import get_target
from deplodock.dialects import loop
from deplodock.dialects.parsing import make_context, parse_module
from deplodock.dialects.payload import shape_of
from deplodock.dialects.schedule import ScheduleAttr
from deplodock.errors import CompileError, ScheduleError
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.plan_schedules import check_schedule
from deplodock.passes.running import run_passes
from deplodock.passes.split_reductions import splittable, stages_of
from deplodock.passes.tiling.kernels import reduction_indices

LOWERING = "loop-to-tile,tile-to-kernel"
TARGET = "sm_90a"
DRAWS = 400
"""Schedules drawn for one that is legal."""

_PLAIN = (
    "softmax relu_matmul attention causal_attention rms_norm rms_norm_matmul layer_norm gather gather_inside_a_sum"
    " pad_and_transpose convolution integers column_sums product_of_maxima logsumexp swiglu heads_merged"
).split()
_NARROW = {"relu_matmul": "bf16", "attention": "bf16", "causal_attention": "bf16", "swiglu": "f16"}

_LOAD = re.compile(r"(%\w+) = (loop\.load [^\n]*): tensor<(\w+)xf32>$", re.MULTILINE)


def narrowed(text: str, element: str) -> str:
    """A program whose inputs are of a narrow type, widened as they are loaded."""
    head, body = text.split("{", 1)
    head = re.sub(r"(%\w+: tensor<\w+)xf32>", rf"\1x{element}>", head)
    new = rf"\1_narrow = \2: tensor<\3x{element}>\n\1 = payload.cast \1_narrow : {element} -> f32"
    return head + "{" + _LOAD.sub(new, body)


@cache
def corpus() -> dict[str, str]:
    """Name -> loop nest."""
    text = (Path(__file__).parents[1] / "programs" / "loop_nests.mlir").read_text(encoding="utf-8")
    parts = [part.strip() for part in text.split("// -----")]
    known = {part.splitlines()[0].removeprefix("// "): part for part in parts}
    found = {name: known[name] for name in _PLAIN}
    for name, element in _NARROW.items():
        comment, program = known[name].split("\n", 1)
        found[f"{name}, {element}"] = f"{comment}\n{narrowed(program, element)}"
    return found


@cache
def expected(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs of a kernel and its exact results."""
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
    """A kernel of the corpus under a schedule."""

    seed: int
    name: str
    module: ModuleOp
    schedule: ScheduleAttr

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.name} under {self.schedule}"


def draw(seed: int) -> Case:
    """A random kernel under a random schedule that its checks let pass."""
    rng = random.Random(seed)
    name = sorted(corpus())[seed % len(corpus())]
    module = parse_module(make_context(), corpus()[name], f"{name}.mlir")
    (nest,) = (op for op in module.walk() if isinstance(op, loop.NestOp))
    for _ in range(DRAWS):
        schedule = any_schedule(nest, rng, name)
        nest.attributes["schedule"] = schedule
        try:
            check_schedule(nest, get_target(TARGET))
        except ScheduleError:
            continue
        return Case(seed, name, module, schedule)
    raise AssertionError(f"no legal schedule of {name} in {DRAWS} draws")


def any_schedule(nest: loop.NestOp, rng: random.Random, name: str) -> ScheduleAttr:
    """A random schedule, often an illegal one."""
    block = [rng.choice((1, 2, 4, 8, 16, 16, 32, 64, 64)) for _ in nest.shape]
    sizes = {arg: rng.choice((1, 2, 4, 8, 16, 16, 32)) for arg, _ in reduction_indices(nest)}
    for op in nest.walk():
        if isinstance(op, loop.StagedReduceOp):
            first = op.stage_ops[0].body.block.args
            for stage in op.stage_ops:
                sizes.update((a, sizes[b]) for a, b in zip(stage.body.block.args, first, strict=True))
    reduction = splittable(nest)
    parts = [1, 1]
    if not isinstance(reduction, str):
        parts += [p for p in (2, 3, 5, 7, 13, 41) if any(n and n % p == 0 for n in stages_of(reduction)[0].shape)]
    narrow = "," in name
    copy = rng.choice(("plain", "cp_async", "tma") if narrow else ("plain", "cp_async"))
    return ScheduleAttr.get(
        block,
        [sizes[arg] for arg, _ in reduction_indices(nest)],
        serial=[i for i in range(len(block)) if rng.random() < 0.2],
        thread=rng.choice(((), (1, 1), (2, 2), (4, 2), (4, 4))),
        warps=rng.choice((1, 1, 2, 2, 4, 8)),
        atom=rng.choice(("fma", "mma", "wgmma")) if narrow else rng.choice(("fma", "fma", "mma")),
        copy=copy,
        stages=1 if copy == "plain" else rng.choice((1, 2, 3, 4)),
        split_k=rng.choice(parts),
        narrow=rng.choice(("never", "operands", "parts")),
    )


def judge(case: Case) -> tuple[str, str]:
    """("right" | "refused" | "wrong" | "crash", why). Right is bit for bit in the exact domain, without a finding."""
    inputs, want = expected(case.name)
    try:
        run_passes(make_context(), case.module, parse_passes(LOWERING))
        found = simulate(case.module, inputs, domain="exact")
    except CompileError as error:
        return "refused", str(error)
    except Exception as error:  # whatever it is, a legal schedule must not raise it
        return "crash", f"{type(error).__name__}: {error}"
    if found.report.findings:
        return "wrong", str(found.report.findings[0])
    for i, (g, w) in enumerate(zip(found.outputs, want, strict=True)):
        if not np.array_equal(g, w):
            return "wrong", f"result {i}: {int((g != w).sum())} of {w.size} elements differ"
    return "right", ""
