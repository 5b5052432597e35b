"""Task of a search: one nest of a program, as a program at the loop level, for one target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from ...backend.check_each import make_inputs
from ...dialects import make_context
from ...dialects.loop import LoadOp, NestOp
from ...dialects.loop.work import Work, nest_work
from ...dialects.shapes.binding import bind_sizes
from ...dialects.shapes.extents import extents_of, typical
from ...dialects.support.calls import main_function
from ...dialects.support.parsing import parse_module
from ...dialects.support.printing import print_module
from ...errors import CompileError
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes, pipeline_text
from ...passes.planning.matmul import on_tensor_cores
from ...passes.planning.model import Model, Prediction, model_of
from ...passes.planning.nest_info import NestInfo, footprint
from ...passes.records import describe_nest, plan_key
from ...target.attribute import set_target, target_of
from ...target.model import Target
from ..compilation import Compilation
from .building import Source, nest_of, parse_schedule

SEED = 7
"""Seed of the inputs of a nest."""

PLANNER = "plan-schedules"


@dataclass(frozen=True)
class Task:
    """Nest to tune.

    Attributes:
        name: name of its kernel in the program: `k0`.
        text: program of this nest alone, at the loop level, with its target.
        pipeline: passes after the first `plan-schedules`, to the kernel level.
        planner: pipeline text of that pass.
        launches: number of nests of the program that are equal to this one.
        only: whether the program has no other nest.
        fusion: fusion plan of the program if it is not the planner's: the option `roots` of `tensor-plan-fusion`, and
            a text that describes how the plan differs from the planner's.
    """

    name: str
    text: str
    pipeline: str
    planner: str = PLANNER
    launches: int = 1
    only: bool = True
    fusion: tuple[str, str] = "", ""

    @property
    def source(self) -> Source:
        return Source(self.text, self.pipeline)

    @cached_property
    def module(self) -> ModuleOp:
        """Parsed program. It must not be changed."""
        return parse_module(make_context(), self.text, f"{self.name}.mlir")

    @cached_property
    def nest(self) -> NestOp:
        """Nest without a schedule."""
        return nest_of(self.module)

    @cached_property
    def target(self) -> Target:
        return target_of(self.module)

    @cached_property
    def key(self) -> str:
        return plan_key(self.nest)

    @cached_property
    def what(self) -> str:
        return describe_nest(self.nest)

    @cached_property
    def work(self) -> Work:
        return nest_work(self.nest)

    @cached_property
    def untuned(self) -> str:
        """Schedule of the planner, as text. Raises ScheduleError if there is none."""
        module = self.module.clone()
        run_passes(make_context(), module, parse_passes(self.planner), verify=False)
        return str(nest_of(module).attributes["schedule"])

    def model(self) -> Model:
        """Returns the planning model of the nest."""
        return model_of(NestInfo(self.nest), self.target)

    def predict(self, schedule: str) -> Prediction:
        """Returns the prediction for a schedule. Raises ScheduleError."""
        return self.model().predict(parse_schedule(schedule))

    @cached_property
    def expected(self) -> float:
        """Predicted seconds of the planner's schedule. Raises ScheduleError if there is none."""
        return float(self.predict(self.untuned).seconds)

    def floor(self, atom: str) -> float:
        """Returns the roofline of the nest in seconds, by the rates of the target.

        Bytes count with the rate of the cache if the footprint fits into half of L2. Operations of matmuls count with
        the rate of `atom`.
        """
        t, work, info = self.target, self.work, NestInfo(self.nest)
        near = footprint(info) <= t.l2 // 2
        rate = t.rates.cache if near else t.rates.memory
        return max(work.bytes / rate, work.flops / (t.tensor if on_tensor_cores(info, atom, t) else t.fp32))

    def inputs(self) -> list[np.ndarray]:
        """Returns random arguments. Integers are legal indices of all tensors that the nest gathers from."""
        main = main_function(self.module)
        types = [a.type for a in main.body.block.args]
        indexed = [op.source.type for op in self.nest.walk() if isinstance(op, LoadOp) and op.symbols]
        most = max(1, min((typical(n) for t in indexed for n in extents_of(t)), default=128))
        sizes = bind_sizes(main, [tuple(map(typical, extents_of(t))) for t in types])
        return make_inputs(types, SEED, sizes, most)


def tasks_of(compilation: Compilation, module: ModuleOp | None = None) -> list[Task]:
    """Returns the nests of a program as tasks. Nests that differ in names only are one task.

    Args:
        compilation: the program.
        module: the program at the loop level with another fusion plan, or None.

    Raises:
        CompileError: if there are no nests.
    """
    nests = [op for op in (module or compilation.at("loop")).walk() if isinstance(op, NestOp)]
    below = [*dropwhile(lambda p: p.name != PLANNER, compilation.passes_to("kernel"))]
    if not nests or not below:
        raise CompileError("has no loop.nest to tune")
    planner, *rest = below
    keys = [plan_key(nest) for nest in nests]
    how = pipeline_text(rest), pipeline_text([planner])
    return [
        Task(
            f"k{number}",
            print_module(alone(nest, compilation.resolved)),
            *how,
            launches=keys.count(key),
            only=len(nests) == 1,
        )
        for number, (key, nest) in enumerate(zip(keys, nests, strict=True))
        if keys.index(key) == number
    ]


def alone(nest: NestOp, target: Target) -> ModuleOp:
    """Returns a program of one nest. Its arguments are the tensors that the nest reads, in the order of first use."""
    inner: set[SSAValue] = set()
    outer: dict[SSAValue, None] = {}
    for op in nest.walk():
        inner.update(op.results, *(block.args for region in op.regions for block in region.blocks))
    for op in nest.walk():
        outer.update((v, None) for v in op.operands if v not in inner)
    block = Block(arg_types=[v.type for v in outer])
    for argument, value in zip(block.args, outer, strict=True):
        argument.name_hint = value.name_hint
    copy = nest.clone(dict(zip(outer, block.args, strict=True)))
    copy.attributes.pop("schedule", None)
    block.add_ops([copy, ReturnOp(*copy.res)])
    types = [a.type for a in block.args], [r.type for r in copy.res]
    module = ModuleOp([FuncOp("main", types, Region(block))])
    set_target(module, target)
    return module
