"""Kernels of a compiled program, with their work, and with the times that the planning model predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from ..backend.cuda.resources import Resources, expected_resources
from ..backend.host.launch_plan import make_plan
from ..dialects.kernel import FuncOp, kernel_names
from ..dialects.loop import NestOp
from ..dialects.loop.work import Size, Work, nest_work
from ..dialects.shapes.extents import typical
from ..dialects.support.locations import line_text
from ..passes.analysis.host_memory import parts_of
from ..passes.analysis.nest_schedule import schedule_of
from ..passes.planning.matmul import on_tensor_cores
from ..passes.planning.model import Prediction, model_of
from ..passes.planning.nest_info import NestInfo
from ..target.attribute import on_cores
from ..target.model import Target
from .compilation import Compilation
from .texts import Text


@dataclass(frozen=True)
class Kernel:
    """A kernel of the program.

    Attributes:
        name: name in the printed text.
        launches: launches in one call of the program.
        blocks: number of blocks, or its formula if sizes vary.
        threads: threads of a block.
        shared_bytes: shared memory of a block.
        work: least bytes and operations of a launch.
        schedules: schedule of each nest that the kernel computes.
        lines: lines of the user's Python code that the kernel computes.
        tensor_cores: whether a matmul runs on tensor cores.
        predicted: seconds of a launch by the planning model.
        limit: resource that limits the kernel by the planning model.
        parts: parts of the predicted seconds by cause, which overlap.
        expected: resources of a kernel of a GPU by the planning model.
        print: prints the kernel.
    """

    name: str
    launches: int
    blocks: int | str
    threads: int
    shared_bytes: int
    work: Work
    schedules: tuple[str, ...]
    lines: tuple[str, ...]
    tensor_cores: bool
    predicted: float
    limit: str
    parts: dict[str, float]
    expected: Resources | None = None
    print: Callable[[], str] = field(kw_only=True, repr=False, compare=False)

    @property
    def text(self) -> Text:
        """The CUDA or C++ of the kernel, without the helper functions that it calls."""
        return Text(self.print(), self.name, "cpp")


def kernels_of(compilation: Compilation, size: Size = typical) -> list[Kernel]:
    """Returns the kernels of a program in the order of the printed text. `size` maps symbolic extents to numbers."""
    module = compilation.at("kernel")
    names, launches = kernel_names(module), Counter(x.kernel for x in make_plan(module).launches)
    nests = {f"k{i}": op for i, op in enumerate(op for op in compilation.scheduled().walk() if isinstance(op, NestOp))}
    target = compilation.resolved
    if on_cores(compilation.target):
        from ..backend.cpu.printer import print_kernel
    else:
        from ..backend.cuda.printer import print_kernel
    kernels: list[Kernel] = []
    for f in (op for op in module.walk() if isinstance(op, FuncOp)):
        name, parts = names[f.sym_name.data], [nests[n] for n in parts_of(f)]
        schedules = [schedule_of(nest) for nest in parts]
        atoms = ((NestInfo(nest), s.data.atom) for nest, s in zip(parts, schedules, strict=True))
        lines = (line_text(op.location) for nest in parts for op in nest.walk())
        kernel = Kernel(
            name,
            launches.get(name, 0),
            " * ".join(map(str, f.grid_shape)) if any(not isinstance(n, int) for n in f.grid_shape) else f.blocks,
            f.threads,
            f.shared.data if f.shared is not None else 0,
            reduce(Work.__add__, (nest_work(nest, size) for nest in parts)),
            tuple(str(s).removeprefix("#tile.schedule") for s in schedules),
            tuple(dict.fromkeys(filter(None, lines))),
            any(on_tensor_cores(info, atom, target) for info, atom in atoms),
            *_predicted(parts, target, f.threads),
            print=partial(print_kernel, f, name),
        )
        kernels.append(kernel)
    return kernels


def _predicted(
    nests: Sequence[NestOp], target: Target, threads: int
) -> tuple[float, str, dict[str, float], Resources | None]:
    """Returns the predicted seconds and the resources of a launch of several nests, and the limit of the longest nest.

    The third result has the parts of the seconds by cause, as the sum over the nests. The time to start a launch counts
    once. The resources, of blocks of `threads` threads, are None on a CPU.
    """
    predictions: list[Prediction] = [model_of(NestInfo(nest), target).predict(schedule_of(nest)) for nest in nests]
    starts = [min(p.times.start, target.rates.launch + target.rates.ramp) for p in predictions]
    seconds = sum(p.seconds for p in predictions) - (sum(starts) - max(starts))
    limit = max(predictions, key=lambda p: p.seconds).limit
    parts = {name: sum(float(p.parts[name]) for p in predictions) for name in predictions[0].parts}
    if target.core is not None:
        return seconds, limit, parts, None
    registers, shared = int(max(p.registers for p in predictions)), int(max(p.shared for p in predictions))
    blocks = int(min(p.resident for p in predictions))
    return seconds, limit, parts, expected_resources(target, threads, registers, shared, blocks)
