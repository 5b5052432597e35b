"""`Compilation`: one program, lowered level by level on demand. Every level is stored and can be printed.

The passes between two levels are the named pipelines that `dl-opt` runs (`passes/pipelines.py`). So the printed text of
a level yields the same CUDA if it is parsed and the remaining pipelines run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field, replace
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ParameterListType

from ..backend.host.launch_plan import Buffer, LaunchPlan, make_plan
from ..dialects import LEVELS, MACHINE_CODE, make_context
from ..dialects.loop import NestOp
from ..dialects.support.printing import WIDTH, PrintedText, print_module, print_with_owners
from ..errors import CompileError, TargetError, raised_at
from ..passes.analysis.host_memory import HostMemory
from ..passes.pass_manager import Observer, Remark, collect_remarks, run_passes
from ..passes.pipelines import parse_passes, pipeline_text, with_options
from ..passes.record_file import read_record
from ..target.architectures import DEFAULT, TARGETS
from ..target.attribute import arch_of, get_target, on_cores, set_target, stamp_comment
from ..target.host import NONE, consulted_record, resolve_target
from ..target.model import Target
from . import RARE_COLLECTIONS
from .capture.captured_program import CapturedProgram
from .capture.eager_fallback import EagerCall
from .capture.refusals import UserCalls
from .pipeline_steps import Steps, default_steps, divided, scheduled_steps

MACHINE_TEXT = f"{__package__}.machine_code:machine_text"
"""Function that returns the text of machine code. It is imported when it is called, because it needs compilations."""


@contextmanager
def one_at_a_time() -> Generator[None]:
    """Holds PyTorch's compile lock and makes garbage collections rare (`RARE_COLLECTIONS`).

    Neither PyTorch's exporter nor a compilation supports two threads at once. The lock is reentrant.
    """
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        before = gc.get_threshold()
        gc.set_threshold(*(map(max, before, RARE_COLLECTIONS) if before[0] else before))
        try:
            yield
        finally:
            gc.set_threshold(*before)


class InternalError(CompileError):
    """An unexpected exception in a pass: a bug of deplodock, not of the user's program."""


@dataclass
class Compilation:
    """A program at all levels of IR, for one target.

    Attributes:
        module: the program at `level`. A lower level is computed at the first use and stored.
        target: name of the target.
        observers: observers of every pass that runs.
        verify: whether the verifiers run after each pass.
        cubin: machine code of a saved program, or None.
        eager: name of a function of the module -> the operator that PyTorch computes in its place.
        record: file of fusion plans and schedules, or `none`; by default the record of the user, if it exists.
        f32_matmul_precision: as for `plan-schedules`.
        schedule: options of `plan-schedules` as text (`block=64,128 warps=4`), or a printed schedule
            (`<block = [64, 128], warps = 4>`), which sets the option `exact`. Several exact schedules are separated by
            `;`; each becomes a pass before the pass that plans all other nests. A part `roots=3,5` sets the option of
            `tensor-plan-fusion`.
        pipeline_given: pipeline text as for `dl-opt -p`, which replaces the named pipelines. The passes to a level end
            at its last `verify-level{level=...}`. Passes after the last `verify-level` belong to the last level.
        insert: passes in addition to the named pipelines (`read_insertion`).
        strategy: option `strategy` of the planning passes: `model`, or `simple` for rules without a cost model.
        resolved: target with all its numbers, such as bandwidths; passes read it in the module. The argument `machine`
            of the constructor sets it. By default a CPU has the numbers of the local machine, and a GPU those of its
            architecture with the number of multiprocessors of the local device. Constants in the record of plans
            correct both.
        checked: whether the program stops at an index that PyTorch would refuse.
        calls: the user's call for each operator, for errors.
        level: level of `module`.
        seconds: (pass, seconds) of every pass that ran, in order.
        skipped: (pass, reason) of every pass that did not run.

    Raises:
        PipelineError: invalid text of a pipeline.
        CompileError: options exclude each other, or the levels of a pipeline are not in order.
    """

    module: ModuleOp
    target: str = DEFAULT
    observers: Sequence[Observer] = ()
    verify: bool = False
    cubin: bytes | None = None
    eager: Mapping[str, EagerCall] = field(default_factory=dict[str, EagerCall])
    record: str | None = None
    f32_matmul_precision: str | None = None
    schedule: str | None = None
    pipeline_given: str | None = None
    insert: str | Sequence[str] = ()
    strategy: str = "model"
    machine: InitVar[Target | None] = None
    checked: bool = False
    calls: UserCalls = field(default_factory=UserCalls, compare=False)
    level: str = "torch"
    _remarks: list[Remark] = field(default_factory=list[Remark])
    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _levels: dict[str, ModuleOp] = field(default_factory=dict[str, ModuleOp])
    _texts: dict[str, PrintedText] = field(default_factory=dict[str, PrintedText])

    def __post_init__(self, machine: Target | None) -> None:
        self.record = consulted_record(self.record) if self.record != NONE else None
        if machine is None:
            local = self.record or on_cores(self.target) or torch.cuda.is_available()
            machine = resolve_target(device_target(self.target), self.record) if local else get_target(self.target)
        self.resolved, self.target = machine, machine.arch
        self._steps = self._steps_below(LEVELS[_position(self.level) + 1 : -1])
        self.ctx = make_context()
        self._levels[self.level] = self.module

    def _steps_below(self, levels: Sequence[str]) -> Steps:
        """Returns the passes to each of the levels, as the options of the compilation select them."""
        strategy = None if self.strategy == "model" else self.strategy
        settings = {"record": self.record, "f32_matmul_precision": self.f32_matmul_precision, "strategy": strategy}
        options: dict[str, ParameterListType] = {
            name: (value,) for name, value in settings.items() if value is not None
        }
        if self.checked:
            options["checked"] = (True,)
        if self.pipeline_given is not None:
            return self._text_steps(self.pipeline_given, options, levels)
        insert = (self.insert,) if isinstance(self.insert, str) else self.insert
        if self.schedule is not None:
            return scheduled_steps(self.schedule, options, levels, insert)
        return default_steps(levels, options, insert)

    def _text_steps(self, pipeline: str, options: dict[str, ParameterListType], levels: Sequence[str]) -> Steps:
        if self.insert:
            raise CompileError(
                "expected either a pipeline or insertions, but got both; write the inserted passes into the pipeline",
                argument="insert",
            )
        if self.schedule is not None:
            raise CompileError(
                "expected either a pipeline or a schedule, but got both; write plan-schedules{...} into the pipeline",
                argument="schedule",
            )
        return divided(parse_passes(pipeline, options), levels)

    def passes_to(self, level: str) -> tuple[ModulePass, ...]:
        """Returns the passes from the level of the program to `level` (to the kernel level for `cuda`)."""
        steps = LEVELS[_position(self.level) + 1 : min(_position(level), len(LEVELS) - 2) + 1]
        return tuple(p for step in steps for p in self._step(step))

    def pipeline(self, level: str = "cuda") -> str:
        """Returns the passes from the level of the program to `level` as an argument for `dl-opt -p`."""
        return pipeline_text(self.passes_to(level))

    def of(self, module: ModuleOp, observers: Sequence[Observer] | None = None) -> Compilation:
        """Returns a compilation of another module at the same level, with the same options.

        `observers`: observers of its passes; default: the same observers.
        """
        record, observers = self.record or NONE, self.observers if observers is None else observers
        fresh: dict[str, Any] = {"_remarks": [], "seconds": [], "skipped": [], "_levels": {}, "_texts": {}}
        fresh |= {"module": module, "record": record, "observers": observers}
        return replace(self, cubin=None, machine=self.resolved, **fresh)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of the program that its passes reach, from the top down. The last one may be `cuda` or `cpp`."""
        start = _position(self.level)
        levels = [self.level, *takewhile(self._steps.__contains__, LEVELS[start + 1 : -1])]
        text = ["cpp" if on_cores(self.target) else "cuda"] if levels[-1] == LEVELS[-2] else []
        return (*levels, *text)

    def with_text(self, text: str) -> Compilation:
        """Returns the compilation with another text of CUDA or C++ for the kernels. All levels are shared.

        Args:
            text: the text. Its kernels must have the names and heads of the printed kernels (`edited_text`).
        """
        self.at("kernel")
        record, name = self.record or NONE, "print-cpp" if on_cores(self.target) else "print-cuda"
        return replace(self, record=record, cubin=None, machine=self.resolved, _texts={name: PrintedText(text, ())})

    def _step(self, level: str) -> tuple[ModulePass, ...]:
        """Returns the passes to a level from the level above it. Raises CompileError if there are none."""
        if level not in self._steps:
            raise self._unreachable(level)
        return self._steps[level]

    def _unreachable(self, level: str) -> CompileError:
        if level == "cpp":
            return CompileError(f"expected the level cuda for {self.target}, but got cpp; the target cpu prints C++")
        position = _position(level)
        if level == "cuda":
            return CompileError("CUDA is text, not a module: see `Compilation.cuda`")
        if position < _position(self.level):
            reason = f"the program begins at the {self.level} level, above which it has no text"
            return CompileError(reason, argument=level)
        first = next(name for name in LEVELS[_position(self.level) + 1 :] if name not in self._steps)
        return CompileError(f"ends before the {first} level", argument="pipeline")

    def at(self, level: str) -> ModuleOp:
        """Returns the module at a level. Do not change it: lower levels are computed from it."""
        if level not in self._levels:
            passes = self._step(level)
            module = self.at(LEVELS[LEVELS.index(level) - 1]).clone()
            if level == "tile" and self.record is not None:
                passes = self._take_options(module, self.record)
            self._run(module, passes)
            self._levels[level] = module
        if level == self.level:
            # Set at each access, because compilations for several targets may share the module.
            set_target(self.module, self.resolved)
        return self._levels[level]

    @property
    def most_bytes(self) -> int | None:
        """Limit of the bytes that a call may allocate in addition to its arguments, or None if there is no limit.

        The loop level holds the limit, so there is none for programs that start below it.
        """
        if _position(self.level) > _position("loop"):
            return None
        return HostMemory(self.at("loop"), self.resolved).limit

    @property
    def remarks(self) -> list[Remark]:
        """Remarks of the passes that ran, and one if the kernel level exceeds `most_bytes`."""
        most = self.most_bytes if "kernel" in self._levels else None
        why = "" if most is None else memory_excess(make_plan(self._levels["kernel"]), most)
        return [*self._remarks, *([Remark("memory", "func.func", f"@main takes {why}", None)] if why else [])]

    def _take_options(self, module: ModuleOp, record: str) -> tuple[ModulePass, ...]:
        """Sets options of passes from the record, and returns the passes to the tile level.

        A pass has one value of an option for the whole module. So the options are ignored, with a remark, unless the
        record has the same options for all nests of `module`.
        """
        plans, target = read_record(record, self.resolved.card), self.resolved
        nests = [op for op in module.walk() if isinstance(op, NestOp)]
        options_of_nests = [plans.options_for(nest, target) for nest in nests] if plans.options else []
        if any(options != options_of_nests[0] for options in options_of_nests):
            why = f"the options of passes in {record} are ignored, because they differ between the nests"
            self._remarks.append(Remark("plan-schedules", nests[0].name, why, None))
        elif options_of_nests and options_of_nests[0]:
            tile, kernel = self._step("tile"), self._step("kernel")
            both = with_options([*tile, *kernel], options_of_nests[0])
            self._steps = {**self._steps, "tile": both[: len(tile)], "kernel": both[len(tile) :]}
        return self._step("tile")

    def scheduled(self) -> ModuleOp:
        """Returns the loop level with a schedule on every nest, as it is before `convert-loop-to-tile`."""
        module = self.at("loop").clone()
        passes = [*takewhile(lambda p: p.name != "convert-loop-to-tile", self._step("tile"))]
        with collect_remarks():  # Dropped, because the passes to the tile level emit the same remarks.
            run_passes(self.ctx, module, passes)
        return module

    def _run(self, module: ModuleOp, passes: Sequence[ModulePass]) -> None:
        clock = _Clock(self)
        try:
            with collect_remarks() as remarks:
                run_passes(self.ctx, module, passes, [clock, *self.observers], verify=self.verify)
        except BrokenPipeError:  # The reader of the printed diffs has closed the pipe.
            raise
        except CompileError as error:
            raise self.calls.complete(error) from error.__cause__
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]} at {raised_at(error)}"
            raise InternalError(f"internal error in pass {clock.current!r}: {reason}") from error
        self._remarks += remarks

    @property
    def cuda(self) -> str:
        """CUDA source of all kernels."""
        from ..backend.cuda.printer import cuda_with_owners

        return self._printed("print-cuda", cuda_with_owners).text

    @property
    def cpp(self) -> str:
        """C++ source of all kernels, for the target `cpu`."""
        from ..backend.cpu.printer import cpp_with_owners

        return self._printed("print-cpp", cpp_with_owners).text

    def _printed(self, name: str, printer: Callable[[ModuleOp], PrintedText]) -> PrintedText:
        if name not in self._texts:
            module, start = self.at("kernel"), time.perf_counter()
            self._texts[name] = printer(module)
            self.seconds.append((name, time.perf_counter() - start))
        return self._texts[name]

    def text(self, level: str, with_locations: bool = False) -> str:
        """Returns the text of a level.

        CUDA and C++ start with a comment of facts about the program, such as versions (`stamp_comment`). The text of
        the torch level contains the locations of the Python source, that of other levels only with `with_locations`.
        `ptx`, `sass` (GPU) and `asm` (CPU) are machine code.
        """
        if level in MACHINE_CODE:
            return resolve_name(MACHINE_TEXT)(self, level)
        if level == "cuda" or level == "cpp" and on_cores(self.target):
            return stamp_comment(self.at("kernel")) + (self.cpp if on_cores(self.target) else self.cuda)
        return print_module(self.at(level), debuginfo=with_locations or level == "torch", width=WIDTH)

    def text_with_owners(self, level: str) -> PrintedText:
        """Returns the text of a level, as `text` returns it, with the operations of each line."""
        if level in ("cuda", "cpp"):
            text = self.text(level)
            (printed,) = self._texts.values()
            return printed.preceded_by(text.removesuffix(printed.text))
        return print_with_owners(self.at(level), debuginfo=level == "torch", width=WIDTH)


def device_target(target: str) -> str:
    """Returns the name of a target with the number of multiprocessors of the current CUDA device (`sm_90a:114`).

    The name stays as it is if the device does not run code for the target, or has the common number.
    """
    if target not in TARGETS or not torch.cuda.is_available():
        return target
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    with suppress(TargetError):
        if arch_of((device.major, device.minor)) == target and device.multi_processor_count != TARGETS[target].sms:
            return f"{target}:{device.multi_processor_count}"
    return target


def compile_captured(
    captured: CapturedProgram,
    target: str = DEFAULT,
    *,
    f32_matmul_precision: str | None = None,
    pipeline: str | None = None,
    prepack_weights: bool | None = False,
    **options: Any,
) -> Compilation:
    """Returns the compilation of a captured program, before any pass.

    Args:
        captured: the captured program.
        target: name of the target.
        f32_matmul_precision: as for `deplodock.compile`; by default the setting of PyTorch at the time of the capture.
        pipeline: pipeline text that replaces the named pipelines.
        prepack_weights: whether a CPU program marks parameters as constants, so that weights are packed once.
        options: further arguments of `Compilation`.
    """
    constant = prepack_weights and on_cores(target)
    return Compilation(
        captured.constant_module() if constant else captured.module,
        target,
        eager=captured.eager,
        calls=captured.calls,
        f32_matmul_precision=f32_matmul_precision or captured.f32_matmul_precision,
        pipeline_given=pipeline,
        **options,
    )


def memory_excess(plan: LaunchPlan, most: int) -> str:
    """Returns a message if a plan allocates more than `most` bytes in addition to its arguments, else an empty text.

    The message names the step with the most bytes in intermediate buffers, and the largest of these buffers.
    """
    if plan.program is not None or plan.peak_bytes <= most:
        return ""
    text = f"{plan.peak_bytes} bytes of results and in between, where {most} are allowed"
    step, largest = fullest_step(plan)
    if largest is None:
        return text
    shown = f"{largest.name}, {largest.dtype}{list(largest.shape)} of {largest.bytes} bytes"
    return f"{text}: most of it in step {step}, with {shown}"


def fullest_step(plan: LaunchPlan) -> tuple[int, Buffer | None]:
    """Returns the step with the most bytes in intermediate buffers and the largest of these buffers, or (-1, None)."""
    scratch = [b for b in plan.buffers[plan.arguments :] if b.first >= 0]
    live = [[b for b in scratch if b.first <= n <= b.last] for n in range(len(plan.steps))]
    step = max(range(len(live)), key=lambda n: sum(b.bytes for b in live[n]), default=-1)
    return (step, max(live[step], key=lambda b: b.bytes)) if scratch else (-1, None)


@dataclass
class _Clock(Observer):
    """Observer that records the seconds of every pass in a compilation. `current`: name of the running pass."""

    compilation: Compilation
    current: str = ""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.current = module_pass.name
        self._start = time.perf_counter()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.compilation.seconds.append((module_pass.name, time.perf_counter() - self._start))

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        self.compilation.skipped.append((module_pass.name, why))


def _position(level: str) -> int:
    if level == "cpp" or level in MACHINE_CODE:
        level = "cuda"
    if level not in LEVELS:
        raise CompileError(f"unknown level {level!r}; the levels are {', '.join(LEVELS)}")
    return LEVELS.index(level)
