"""`deplodock.compile`: a module or function becomes a program that is called like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch._guards import tracing

from ..errors import CaptureError, CompileError
from .captured import CapturedProgram
from .compilation import Compilation
from .executors import Executor, make_executor
from .fallback import EagerCall, Fallback


class CompiledFunction:
    """A compiled program: called like the module or function it came from, on tensors of the same types and shapes, or
    of other sizes in the ranges that were declared."""

    def __init__(
        self,
        captured: CapturedProgram,
        target: str,
        executor: str,
        record: str | PathLike[str] | None = None,
        narrow: str | None = None,
        schedule: str | None = None,
        pipeline: str | None = None,
    ) -> None:
        self.captured = captured
        plans = None if record is None else str(Path(record))
        narrow = narrow or captured.narrow
        self.compilation = Compilation(
            captured.module,
            target,
            eager=captured.eager,
            record=plans,
            narrow=narrow,
            schedule=schedule,
            pipeline_given=pipeline,
        )
        self._wanted = executor
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """Who runs it, and why; made at the first call."""
        if self._executor is None:
            self._executor = make_executor(self._wanted, self.compilation)
        return self._executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Raises ShapeError for arguments unlike the example ones."""
        tensors = self.captured.bind(args, kwargs)
        return self.captured.restore(self.executor.run(tensors), tensors)

    @property
    def eager(self) -> tuple[EagerCall, ...]:
        """What is left to PyTorch, each with its operator, the reason and the place; empty unless asked for."""
        return tuple(self.captured.eager.values())

    def ir(self, level: str) -> str:
        """The program's text at `torch`, `tensor`, `loop`, `tile`, `kernel` or `cuda`."""
        return self.compilation.text(level)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the program with its parameters to the folder `path`, for `deplodock.load`. Raises ArtefactError."""
        from .saved import ToSave, save

        save(Path(path), {"main": ToSave(self.captured, self.compilation, {})})

    @property
    def pipeline(self) -> str:
        """The passes from the torch level to the kernel level, as one argument for `dl-opt -p`."""
        return self.compilation.pipeline()


def compile(
    module_or_function: Callable[..., Any],
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "sm_90a",
    executor: str = "auto",
    fallback: Fallback = None,
    dynamic_shapes: Any = None,
    record: str | PathLike[str] | None = None,
    narrow: str | None = None,
    schedule: str | None = None,
    pipeline: str | None = None,
) -> CompiledFunction:
    """Compile a module or function for arguments like the example ones.

    `dynamic_shapes` says which sizes may vary, as for `torch.export.export`: one program then serves every size in the
    range of its `torch.export.Dim`, and a call outside of it is a ShapeError.
    `target` is the GPU (`sm_80`, `sm_89`, `sm_90a`, `sm_120`); `executor` who runs it (`auto`, `cuda`, `emulator`,
    `simulator`, `reference`). With `fallback="eager"` operators that are not supported are left to PyTorch, between the
    kernels and on the same tensors, and a FallbackWarning lists them. `record` is a file of plans, as `deplodock
    compile --write-record` writes it: what it has an entry for is fused and scheduled so. `narrow` permits products of
    f32 on tensor cores: `parts` as sums of bf16 numbers, with errors as of f32, `tf32` with 10 bits of their fraction
    (see `#tile.schedule`); left out, it is what PyTorch itself is permitted (`never`, unless
    `torch.set_float32_matmul_precision` said otherwise). `schedule` decides in the planner's place for every kernel
    that it fits (`"block=64,128 warps=4"`, the options of `plan-schedules`). `pipeline` are the passes to run in place
    of the default ones, those of plugins among them, as text for `dl-opt -p` that begins at the torch level and has a
    `check-border{level=...}` where it reaches each level (`frontend/steps.py`). The result takes and gives torch
    tensors. Raises CompileError, or a subclass of it, for whatever is not understood.
    """
    if not isinstance(example_args, tuple | list):
        kind = type(example_args).__name__
        raise CaptureError(f"a tuple of arguments is needed, not {kind}", argument="example_args")
    from .capture import capture  # with PyTorch's exporter, as slow to import as all the rest

    captured = capture(
        module_or_function,
        tuple(example_args),
        dict(example_kwargs or {}),
        fallback=fallback,
        dynamic_shapes=dynamic_shapes,
    )
    compiled = CompiledFunction(captured, target, executor, record, narrow, schedule, pipeline)
    compiled.compilation.at("kernel")  # what is refused is refused here, not at the first call
    return compiled


OPTIONS = ("target", "executor", "fallback", "record", "narrow", "schedule", "pipeline")
"""The arguments of `compile` that `torch.compile(..., options=...)` takes."""


def torch_compile_backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend behind `torch.compile(m, backend="deplodock")`: compiles one graph that Dynamo found.

    `options` are the keyword arguments of `compile`: `torch.compile(m, ..., options={"fallback": "eager"})`.
    """
    given = dict(options or {})
    for unknown in sorted(set(given) - set(OPTIONS)):
        raise CompileError(f"no such option (options: {', '.join(OPTIONS)})", argument=unknown)
    if any(isinstance(i, torch.SymInt) for i in example_inputs):
        from .dynamo import TensorsOnly

        program = TensorsOnly(graph)
        examples = [_example(i) for i in program.chosen(example_inputs)]
        with tracing(None):  # or the sizes here would be guarded as if they were Dynamo's
            varying = compile(program, examples, dynamic_shapes={"tensors": tuple(program.shapes)}, **given)
        return lambda *args: _as_tuple(varying(*program.chosen(args)))
    compiled = compile(graph, [_example(i) for i in example_inputs], **given)
    return lambda *args: _as_tuple(compiled(*args))


def _example(value: Any) -> Any:
    """Dynamo may hand over fake tensors; an example of the same type stands in for one."""
    if isinstance(value, torch.Tensor) and type(value).__name__ == "FakeTensor":
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    return value


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, tuple | list) else (value,)
