"""`deplodock.compile`: a module or function becomes a program that is called like it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, Unpack

import torch
from torch._C import _is_any_autocast_enabled
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd import forward_ad
from xdsl.ir import Attribute

from ..backend.host.calls import building
from ..dialects.payload import element_type
from ..dialects.shapes.extents import extents_of
from ..dialects.support.calls import main_function
from ..errors import CaptureError, DeplodockError, ExecutionError, TargetError, presented
from ..plugins import plugin
from .capture.arrays import dtype_of
from .capture.captured_program import CapturedProgram
from .capture.eager_fallback import EagerCall, Fallback
from .compilation import Compilation, compile_captured, one_at_a_time
from .executors import AUTO, Executor, make_executor, target_for
from .module_state import ModuleState, attribute
from .repeated_calls import RepeatedCalls, unlike

if TYPE_CHECKING:
    from torch.export import ExportedProgram


OTHER_PROGRAMS = 3
"""Programs that a module keeps of its earlier modes and submodules."""


class CompiledFunction:
    """A compiled program: called like the module or function it came from, on tensors of the same types and shapes, or
    of other sizes in the ranges that were declared."""

    def __init__(
        self,
        captured: CapturedProgram,
        target: str | Compilation = AUTO,
        executor: str = "auto",
        *,
        cuda_graphs: bool = False,
        **options: Any,
    ) -> None:
        """`target` is what it runs on, with the `options` of `compile` that are about compiling, or what was
        compiled."""
        self.captured = captured
        if not isinstance(target, Compilation):
            target = compile_captured(captured, target_for(executor) if target == AUTO else target, **options)
        self.compilation = target
        self._wanted, self._cuda_graphs = executor, cuda_graphs
        self._autocast = any(captured.autocast.values())  # whether it was compiled under autocast
        self._executor: Executor | None = None
        self._module: torch.nn.Module | None = None
        self._state: ModuleState | None = None
        self._compile_again: Callable[[torch.nn.Module | None], CompiledFunction]
        self._others: list[dict[str, Any]] = []
        self._forget_calls()

    @property
    def executor(self) -> Executor:
        """Who runs it, and why; made at the first call."""
        if self._executor is None:
            with one_at_a_time():
                self._executor = self._executor or make_executor(self._wanted, self.compilation, self._cuda_graphs)
        return self._executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Raises ShapeError for arguments unlike the example ones, ExecutionError for those of a transform of
        torch.func or of forward-mode AD, and where autocast is not as when it was compiled."""
        try:
            if self.captured.autocast and (_is_any_autocast_enabled() or self._autocast):
                from .capture.features.autocast import check_autocast

                check_autocast(self.captured.autocast, (args, kwargs), (b.tensor for b in self.captured.bindings))
            result = self._repeat(*args, **kwargs) if forward_ad._current_level < 0 else NotImplemented
            return self._call(args, kwargs) if result is NotImplemented else result
        except DeplodockError as error:
            raise presented(self.captured.calls.explained(error)) from error.__cause__

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call that is unlike those before."""
        if self._state is not None:
            self._follow(self._state)
        captured, executor = self.captured, self.executor
        tensors = captured.bind(args, kwargs)
        refuse_transforms(tensors)
        results = executor.run(tensors)
        result = captured.restore(results, tensors)
        if executor.program is not None:
            if self._calls is None and building().done():
                self._calls = RepeatedCalls(captured, executor.program, self._state.entries if self._state else ())
                self._repeat = self._calls.call
            if self._calls is not None:
                self._calls.remember(tensors, results, result)
        return result

    def _follow(self, state: ModuleState) -> None:
        """Become the program of the modules as they are now. Raises CompileError."""
        state.check()
        if not state.is_built_alike():
            self._switch()
            state = self._state or state
        if not state.is_current():
            self._use(state.renewed(self.captured), state.modules)

    def _switch(self) -> None:
        """Become the program of the modules with their present submodules and modes: an earlier one, or a new one."""
        with one_at_a_time():
            others = [vars(self).copy(), *self._others[: OTHER_PROGRAMS - 1]]
            earlier = next((n for n, other in enumerate(others) if other["_state"].is_built_alike()), None)
            vars(self).update(vars(self._compile_again(self._module)) if earlier is None else others.pop(earlier))
            self._others = others

    def _use(self, captured: CapturedProgram, modules: Mapping[str, torch.nn.Module]) -> None:
        self.captured = captured
        self._state = ModuleState(modules, captured.bindings) if modules else None
        self._forget_calls()

    def refresh(self) -> None:
        """Packs weights again in the next call (`prepack_weights`), after changes that a call does not notice: those
        through `.data`, NumPy or DLPack to elements outside of the sample (docs/refusals.md#stale-weights)."""
        for program in [vars(self), *self._others]:
            program["_calls"], program["_repeat"] = None, unlike
            if (executor := program["_executor"]) is not None:
                executor.refresh()

    def _forget_calls(self) -> None:
        self._calls: RepeatedCalls | None = None
        self._repeat: Callable[..., Any] = unlike

    def __repr__(self) -> str:
        """What it takes and gives, for which target it is, and who runs it."""
        types = main_function(self.captured.module).function_type
        given = [f"{b.name}: {_shown(t)}" for b, t in zip(self.captured.bindings, types.inputs) if b.kind == "input"]
        results = ", ".join(map(_shown, types.outputs))
        wanted = self._wanted if self._executor is None else self._executor.name
        signature = f"({', '.join(given)}) -> ({results})"
        return f"<deplodock program {signature}, target {self.compilation.target}, executor {wanted}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        """The same program on copies of its parameters and buffers, as a deep copy of a module has them."""
        other = object.__new__(CompiledFunction)
        other.__dict__.update(self.__dict__)
        other._module, other._others = copy.deepcopy(self._module, memo), []
        bindings = tuple(replace(b, tensor=copy.deepcopy(b.tensor, memo)) for b in self.captured.bindings)
        other._use(replace(self.captured, bindings=bindings), {} if other._module is None else {"": other._module})
        return other

    def __getattr__(self, name: str) -> Any:
        """Attributes of the module that was compiled: its state, and `eval()`, `to()` where they change nothing."""
        if name.startswith("__") or "captured" not in self.__dict__:
            raise AttributeError(name)
        return attribute(self._module, self, name)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise CaptureError(
            "a compiled program is not pickled: `save(folder)` writes it, `deplodock.load(folder)` reads it"
        )

    @property
    def eager(self) -> tuple[EagerCall, ...]:
        """What is left to PyTorch, each with its operator, the reason and the place; empty unless asked for."""
        return tuple(self.captured.eager.values())

    def check(self) -> None:
        """Compile it as far as anything may be refused. Raises CompileError."""
        with one_at_a_time():
            self.compilation.at("kernel")

    def ir(self, level: str) -> str:
        """Returns the program's text at a level: `torch`, `tensor`, `loop`, `tile`, `kernel`, or `cuda` (`cpp` for a
        CPU)."""
        with one_at_a_time():
            return self.compilation.text(level)

    def save(self, path: str | PathLike[str], prepack_weights: bool = True) -> None:
        """Writes the program with its parameters to the folder `path`, for `deplodock.load`, by the plug-in that
        declares `save`. Raises PluginError if there is none."""
        plugin("deplodock.api", "save", "function")(self, path, prepack_weights)

    @property
    def pipeline(self) -> str:
        """The passes from the torch level to the kernel level, as one argument for `dl-opt -p`."""
        return self.compilation.pipeline()


def refuse_transforms(tensors: Sequence[torch.Tensor]) -> None:
    """Raises ExecutionError if one of the tensors is wrapped by a transform of torch.func, or has a tangent."""
    if peek_interpreter_stack() is not None and any(map(is_functorch_wrapped_tensor, tensors)):
        kind = "transforms of torch.func"
    elif forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        kind = "forward-mode AD"
    else:
        return
    remedy = "compile what is transformed as a whole"
    raise ExecutionError(f"{kind} around a compiled program are not supported", kind="gradients", remedy=remedy)


def _shown(t: Attribute) -> str:
    extents = ", ".join(map(str, extents_of(t)))
    return f"{str(dtype_of(element_type(t))).removeprefix('torch.')}[{extents}]"


class Options(TypedDict, total=False):
    """Options of `compile`.

    Attributes:
        target: a GPU of `deplodock.target.architectures.TARGETS` (`sm_90a`), or `cpu`. By default (`auto`) it is the
            local GPU, else `cpu` where there is a C++ compiler, else `sm_90a`, which an interpreter runs.
        executor: what runs the program: `auto`, `cuda` or `cpu`; to check it `emulator`, `simulator` or `reference`.
        fallback: `"eager"` leaves operators that are not supported to PyTorch, and a FallbackWarning lists them.
        dynamic_shapes: the sizes that may vary, as for `torch.export.export`: one program serves every size in the
            range of its `torch.export.Dim`, and a call outside of the range is a ShapeError.
        record: a file of plans, as `compile --write-record` and `tune` write it, or `"none"`. By default it is the
            user's own, to which `tune` writes.
        f32_matmul_precision: `bf16x3` or `tf32` permits tensor cores for matmuls of f32 (see `#tile.schedule`),
            `ieee` does not. By default it is what PyTorch is permitted.
        schedule: options of `plan-schedules` for every kernel that they fit, as `"block=64,128 warps=4"`.
        pipeline: passes in place of the default ones, as for `dl-opt -p`, from the torch level on, with a
            `verify-level{level=...}` where they reach each level.
        insert: passes in addition to the default ones, each with its place
            (`"my-pass:after=convert-torch-to-tensor"`).
        strategy: `model`, or `simple`: short rules fuse and schedule without a model, for right and slow kernels.
        checked: the program stops at an index that PyTorch would not take, with an ExecutionError that names operator,
            place, legal range and index. Otherwise such an index reads zero and writes nothing.
        cuda_graphs: a GPU runs the launches of a call as one CUDA graph, from the second call with the same shapes on,
            and keeps scratch memory between calls.
        prepack_weights: a CPU keeps from call to call what is computed from parameters and buffers alone, above all
            weights in the order in which matmuls read them. Changes that PyTorch counts, or that change a sample of
            at most 64 words, renew it; `refresh()` of the result does so after others.
    """

    target: str
    executor: str
    fallback: Fallback
    dynamic_shapes: Any
    record: str | PathLike[str] | None
    f32_matmul_precision: str | None
    schedule: str | None
    pipeline: str | None
    insert: str | Sequence[str]
    strategy: str
    checked: bool
    cuda_graphs: bool
    prepack_weights: bool


def compile(
    module_or_function: Callable[..., Any] | ExportedProgram,
    example_args: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> CompiledFunction:
    """Compiles a module or function for arguments like the example ones.

    Args:
        module_or_function: what is compiled. The arguments of an `ExportedProgram`, and the sizes that vary, are by
            default those with which it was exported.
        example_args: arguments by position.
        example_kwargs: arguments by name.
        options: as `Options` describes them.

    Raises:
        CompileError, or a subclass of it, for whatever is not understood.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"compile() got an unexpected keyword argument {min(unknown)!r}")
    try:
        with one_at_a_time():
            return _compile(module_or_function, example_args, example_kwargs, options)
    except DeplodockError as error:
        raise presented(error) from error.__cause__


def _compile(module: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> CompiledFunction:
    from torch.export import ExportedProgram

    from .capture.export import capture, modules_of  # with PyTorch's exporter, as slow to import as all the rest

    function, given = module, dict(options)
    fallback, shapes = given.pop("fallback", None), given.pop("dynamic_shapes", None)
    if not isinstance(args, tuple) or isinstance(module, ExportedProgram | torch.jit.ScriptModule):
        from .capture.exported_programs import opened

        function, args, kwargs, shapes = opened(module, args, kwargs, shapes)
    captured = capture(function, args, kwargs, fallback=fallback, dynamic_shapes=shapes, in_memory=True)
    try:
        compiled = CompiledFunction(captured, **given)
    except TargetError as error:
        raise captured.calls.complete(error) from None
    compiled.compilation.at("kernel")  # what is refused is refused here, not at the first call
    compiled._module = module if isinstance(module, torch.nn.Module) else None
    compiled._use(captured, modules_of(module))
    compiled._compile_again = lambda copied: _compile(copied or module, args, kwargs, options)
    return compiled
