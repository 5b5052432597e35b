"""Loop nests and the kernels at the tile level compute the same, with planned and with random schedules."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest
from support import TESTS
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from deplodock.backend.reference import run
from deplodock.dialects import loop, make_context, tile
from deplodock.dialects.payload import shape_of
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.errors import ScheduleError, TargetError
from deplodock.passes.analysis.nest_schedule import reduction_indices, splittable, stages_of
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.target.architectures import TARGETS
from deplodock.target.attribute import get_target

LOWER = "loop-split-k,plan-schedules,convert-loop-to-tile,cse,dce"


def _read_programs() -> dict[str, str]:
    text = (TESTS / "programs" / "loop_nests.mlir").read_text(encoding="utf-8")
    parts = [part.strip() for part in text.split("// -----")]
    return {part.splitlines()[0].removeprefix("// "): part for part in parts}


PROGRAMS = _read_programs()


def parse(name: str) -> ModuleOp:
    return parse_module(make_context(), PROGRAMS[name], f"{name}.mlir")


def inputs(module: ModuleOp, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    main = next(f for f in module.ops if isinstance(f, FuncOp))
    found: list[np.ndarray] = []
    for t in main.function_type.inputs:
        shape = shape_of(t)
        kind = str(t.element_type)  # pyright: ignore
        if kind == "i64":
            found.append(rng.integers(0, 7, shape))
        else:
            dtype = np.float32 if kind == "f32" else ml_dtypes.bfloat16
            found.append(rng.standard_normal(shape).astype(dtype))
    return found


def nests(module: ModuleOp) -> list[loop.NestOp]:
    return [op for op in module.walk() if isinstance(op, loop.NestOp)]


def lower(module: ModuleOp, pipeline: str = LOWER) -> ModuleOp:
    lowered = module.clone()
    run_passes(make_context(), lowered, parse_passes(pipeline))
    assert not nests(lowered)
    return lowered


def check(module: ModuleOp, lowered: ModuleOp) -> None:
    """Asserts that both modules have equal results in the exact domain, and close results in floats."""
    args = inputs(module)
    for a, b in zip(run(module, args, "exact"), run(lowered, args, "exact"), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(run(module, args, "real"), run(lowered, args, "real"), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-11, atol=1e-11)
    for a, b in zip(run(module, args), run(lowered, args), strict=True):
        tolerance = 1e-2 if a.dtype == ml_dtypes.bfloat16 else 2e-5
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_planned(name: str, target: str) -> None:
    module = parse(name)
    lowered = lower(module, f"plan-schedules{{target={target}}},{LOWER}")
    if target == "sm_90a":
        check(module, lowered)


def with_schedule(module: ModuleOp, rng: random.Random) -> ModuleOp:
    """Returns a copy of `module` with a random schedule on every nest."""
    planned = module.clone()
    for nest in nests(planned):
        block = [rng.choice((1, 2, 4, 8, 16, 64)) for _ in nest.shape]
        serial = [i for i in range(len(block)) if rng.random() < 0.3]
        sizes = {arg: rng.choice((1, 2, 4, 8, 16, 64)) for arg, _ in reduction_indices(nest)}
        for op in nest.walk():
            if isinstance(op, loop.StagedReduceOp):
                for stage in op.stage_ops:
                    sizes.update(
                        (a, sizes[b])
                        for a, b in zip(stage.body.block.args, op.stage_ops[0].body.block.args, strict=True)
                    )
        chunk = [sizes[arg] for arg, _ in reduction_indices(nest)]
        parts = rng.choice([1, *possible_parts(nest)])
        nest.attributes["schedule"] = ScheduleAttr.get(block, chunk, serial=serial, split_k=parts)
    return planned


def possible_parts(nest: loop.NestOp) -> list[int]:
    """Returns numbers of parts (`split_k`) into which the reduction of a nest can be split."""
    reduction = splittable(nest)
    if isinstance(reduction, str):
        return []
    return [p for p in (2, 3, 5, 7, 13, 41) if any(n and n % p == 0 for n in stages_of(reduction)[0].shape)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_odd_schedules(name: str) -> None:
    module = parse(name)
    for seed in range(2):
        check(module, lower(with_schedule(module, random.Random(seed))))


@pytest.mark.parametrize(
    ("name", "dots"),
    [("relu_matmul", 1), ("rms_norm_matmul", 1), ("attention", 2), ("causal_attention", 2), ("swiglu", 2)],
)
def test_products_are_found(name: str, dots: int) -> None:
    lowered = lower(parse(name), f"plan-schedules,{LOWER}")
    assert sum(isinstance(op, tile.DotOp) for op in lowered.walk()) == dots
    assert all(len(shape_of(r.type)) < 3 for op in lowered.walk() for r in op.results if "arith" in op.name)


@pytest.mark.parametrize("name", ["attention", "causal_attention", "logsumexp", "sum_of_everything", "relu_matmul"])
def test_every_split(name: str) -> None:
    """A reduction that is split into any number of parts has the same result, also a staged reduction."""
    module = parse(name)
    (nest,) = nests(module)
    assert possible_parts(nest)
    for parts in possible_parts(nest):
        planned = module.clone()
        run_passes(make_context(), planned, parse_passes("plan-schedules"))
        (copy,) = nests(planned)
        copy.attributes["schedule"] = copy.attributes["schedule"].changed(split_k=parts)  # pyright: ignore
        lowered = lower(planned)
        assert sum(isinstance(op, tile.KernelOp) for op in lowered.ops) == 2
        check(module, lowered)


def test_results_do_not_depend_on_chance() -> None:
    """Lowering is deterministic: the text is the same every time."""
    texts = {str(lower(parse("causal_attention"), f"plan-schedules,{LOWER}")) for _ in range(3)}
    assert len(texts) == 1


def planned_nest(name: str, schedule: ScheduleAttr) -> ModuleOp:
    module = parse(name)
    for nest in nests(module):
        nest.attributes["schedule"] = schedule
    return module


@pytest.mark.parametrize(
    ("name", "schedule", "message"),
    [
        (
            "logsumexp",
            ScheduleAttr.get([1], [16, 32]),
            "chunk: expected equal chunks for all stages of a staged reduction",
        ),
        ("relu_matmul", ScheduleAttr.get([16, 16], [8], atom="wgmma"), "atom: sm_80 has no wgmma"),
        ("relu_matmul", ScheduleAttr.get([16, 16], [8], copy="tma"), "copy: sm_80 has no tma"),
        ("relu_matmul", ScheduleAttr.get([16, 16], [8], thread=[2]), "thread: expected a register tile of 2 extents"),
        ("relu_matmul", ScheduleAttr.get([16, 16], []), "chunk: 0 extents for 1 reduction indices"),
        ("swiglu", ScheduleAttr.get([16, 16], [8, 8], split_k=2), "split_k: the nest has 2 outermost reductions"),
        ("softmax", ScheduleAttr.get([1, 64], [64, 64], serial=[1, 1]), "serial: an index is listed twice"),
    ],
)
def test_schedules_that_cannot_be(name: str, schedule: ScheduleAttr, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        run_passes(make_context(), planned_nest(name, schedule), parse_passes("plan-schedules{target=sm_80}"))


def test_unknown_target() -> None:
    with pytest.raises(TargetError, match=r"unknown target 'sm_90', did you mean sm_90a\? \(known: sm_80, sm_89,"):
        get_target("sm_90")
