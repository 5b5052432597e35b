"""The public function `deplodock.compile` and its result, `CompiledFunction`.

`compile` captures a module or function as a program of the torch dialect and lowers it to kernels. The result is called
like the module:

    f = deplodock.compile(module, (x,))
    y = f(x)

A call with arguments like those of an earlier call takes a fast path (`repeated_calls.py`). Before each call, the
parameters and submodules of the module are compared with those of the last call (`module_state.py`).
"""

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
from .executors import AUTO, Executor, lower_for, make_executor, target_for
from .inspection import Inspected, inspected
from .module_state import ModuleState, attribute, attribute_names
from .repeated_calls import RepeatedCalls, never_matches

if TYPE_CHECKING:
    from torch.export import ExportedProgram


OTHER_PROGRAMS = 3
"""Number of earlier programs that a CompiledFunction keeps: one for each combination of submodules and modes."""


class CompiledFunction(Inspected):
    """A compiled program, called like the module or function that it was compiled from.

    The arguments must have the types and shapes of the example arguments. Sizes that were declared with
    `dynamic_shapes` may have any value of their range.

    Attributes:
        captured: the captured program with its parameters and buffers.
        compilation: the program at all levels of IR.
        executor: the executor that runs the program.
    """

    def __init__(
        self,
        captured: CapturedProgram,
        target: str | Compilation = AUTO,
        executor: str = "auto",
        *,
        cuda_graphs: bool = False,
        **options: Any,
    ) -> None:
        """Compiles a captured program, unless `target` is its compilation.

        Args:
            captured: the captured program.
            target: name of the target, or an existing compilation of `captured`.
            executor: name of the executor, as for `compile`.
            cuda_graphs: whether the launches of a call run as one CUDA graph.
            options: further options of `compile` for the passes (`compile_captured`); unused with a compilation.
        """
        self.captured = captured
        if not isinstance(target, Compilation):
            target = compile_captured(captured, target_for(executor) if target == AUTO else target, **options)
        self.compilation = target
        self._executor_name, self._cuda_graphs = executor, cuda_graphs
        self._compiled_under_autocast = any(captured.autocast.values())
        self._executor: Executor | None = None
        self._module: torch.nn.Module | None = None
        self._state: ModuleState | None = None
        self._compile_again: Callable[[torch.nn.Module | None], CompiledFunction]
        self._others: list[dict[str, Any]] = []
        self._forget_calls()

    @property
    def executor(self) -> Executor:
        """The executor that runs the program, made at the first use. Its `why` is the reason for the choice."""
        if self._executor is None:
            with one_at_a_time():
                self._executor = self._executor or make_executor(
                    self._executor_name, self.compilation, self._cuda_graphs
                )
        return self._executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Args:
            args: arguments by position, as for the module or function.
            kwargs: arguments by name.

        Returns:
            the result, nested in the same tuples, lists and dictionaries as that of the module or function.

        Raises:
            ShapeError: the types or shapes of the arguments do not match those of the example arguments.
            ExecutionError: the call is part of a transform of torch.func or of forward-mode AD, or autocast is in
                another state than when the program was compiled.
        """
        try:
            if self.captured.autocast and (_is_any_autocast_enabled() or self._compiled_under_autocast):
                from .capture.features.autocast import check_autocast

                check_autocast(self.captured.autocast, (args, kwargs), (b.tensor for b in self.captured.bindings))
            result = self._repeat(*args, **kwargs) if forward_ad._current_level < 0 else NotImplemented
            return self._call(args, kwargs) if result is NotImplemented else result
        except DeplodockError as error:
            raise presented(self.captured.calls.explained(error)) from error.__cause__

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call that differs from all earlier calls, and registers it for the fast path if the program has
        one."""
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
        """Adapts the program to changes of the modules since the last call. Raises CompileError if that is
        impossible."""
        state.check()
        if not state.has_same_structure():
            self._switch()
            state = self._state or state
        if not state.is_current():
            self._use(state.renewed(self.captured), state.modules)

    def _switch(self) -> None:
        """Replaces the state of this object by that of an earlier program with these submodules and modes, or compiles
        one."""
        with one_at_a_time():
            others = [vars(self).copy(), *self._others[: OTHER_PROGRAMS - 1]]
            earlier = next((n for n, other in enumerate(others) if other["_state"].has_same_structure()), None)
            vars(self).update(vars(self._compile_again(self._module)) if earlier is None else others.pop(earlier))
            self._others = others

    def _use(self, captured: CapturedProgram, modules: Mapping[str, torch.nn.Module]) -> None:
        self.captured = captured
        self._state = ModuleState(modules, captured.bindings) if modules else None
        self._forget_calls()

    def refresh(self) -> None:
        """Makes the next call pack the weights again (option `prepack_weights`).

        Call it after a change of weights through `.data`, NumPy or DLPack. A call detects such a change only in a
        sample of the elements (docs/refusals.md#stale-weights).
        """
        for program in [vars(self), *self._others]:
            program["_calls"], program["_repeat"] = None, never_matches
            if (executor := program["_executor"]) is not None:
                executor.refresh()

    def _forget_calls(self) -> None:
        self._calls: RepeatedCalls | None = None
        self._repeat: Callable[..., Any] = never_matches

    def __repr__(self) -> str:
        """Returns the signature of the program, its target and its executor."""
        types = main_function(self.captured.module).function_type
        arguments = [
            f"{b.name}: {_shown(t)}" for b, t in zip(self.captured.bindings, types.inputs) if b.kind == "input"
        ]
        results = ", ".join(map(_shown, types.outputs))
        executor = self._executor_name if self._executor is None else self._executor.name
        signature = f"({', '.join(arguments)}) -> ({results})"
        return f"<deplodock program {signature}, target {self.compilation.target}, executor {executor}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        """Returns the program with copies of the module, its parameters and its buffers."""
        other = object.__new__(CompiledFunction)
        other.__dict__.update(self.__dict__)
        other._module, other._others = copy.deepcopy(self._module, memo), []
        bindings = tuple(replace(b, tensor=copy.deepcopy(b.tensor, memo)) for b in self.captured.bindings)
        other._use(replace(self.captured, bindings=bindings), {} if other._module is None else {"": other._module})
        return other

    def __dir__(self) -> list[str]:
        """Returns the names of attributes, also of the compiled module."""
        return [*super().__dir__(), *([] if self._module is None else attribute_names(self._module))]

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the compiled module, such as `state_dict` or `eval` (see
        `module_state.attribute`)."""
        if name.startswith("__") or "captured" not in self.__dict__:
            raise AttributeError(name)
        return attribute(self._module, self, name)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise CaptureError(
            "a compiled program is not pickled: `save(folder)` writes it, `deplodock.load(folder)` reads it"
        )

    @property
    def eager(self) -> tuple[EagerCall, ...]:
        """Operators that PyTorch computes, each with the reason and the location. Empty without `fallback="eager"`."""
        return tuple(self.captured.eager.values())

    def check(self) -> None:
        """Lowers the program to the kernel level. Raises CompileError if an operator or a schedule is not supported."""
        inspected(lambda: self.compilation.at("kernel"))

    def _lower(self) -> None:
        """Lowers the program to the level that its executor reads, so that errors are raised before the first call."""
        lower_for(self._executor_name, self.compilation)

    def save(self, path: str | PathLike[str], prepack_weights: bool = True) -> None:
        """Writes the program and its parameters to a folder, from which `deplodock.load` reads them.

        Args:
            path: the folder.
            prepack_weights: whether weights are saved in the order in which matmuls read them.

        Raises:
            PluginError: no installed package implements `save`.
        """
        inspected(lambda: plugin("deplodock.api", "save", "function")(self, path, prepack_weights))

    def report(self, path: str | PathLike[str], check_each: bool = False) -> None:
        """Writes a page about the program: its levels, passes, kernels and times. One HTML file without references.

        Args:
            path: the file.
            check_each: whether the program is executed after every pass, for a verdict on each.

        Raises:
            PluginError: no installed package implements `report`.
        """
        inspected(lambda: plugin("deplodock.api", "report", "function")(self, path, check_each))


def refuse_transforms(tensors: Sequence[torch.Tensor]) -> None:
    """Raises ExecutionError for tensors of a transform of torch.func, or with a tangent of forward-mode AD."""
    if peek_interpreter_stack() is not None and any(map(is_functorch_wrapped_tensor, tensors)):
        kind = "transforms of torch.func"
    elif forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        kind = "forward-mode AD"
    else:
        return
    remedy = "compile the transformed function as a whole"
    raise ExecutionError(f"{kind} around a compiled program are not supported", kind="gradients", remedy=remedy)


def _shown(t: Attribute) -> str:
    extents = ", ".join(map(str, extents_of(t)))
    return f"{str(dtype_of(element_type(t))).removeprefix('torch.')}[{extents}]"


class Options(TypedDict, total=False):
    """Options of `compile`.

    Attributes:
        target: a GPU of `deplodock.target.architectures.TARGETS` (`sm_90a`), or `cpu`. The default `auto` is the local
            GPU, else `cpu` if there is a C++ compiler, else `sm_90a`, which an interpreter runs.
        executor: `auto` (default), `cuda` or `cpu`; or, to check a program, `emulator`, `simulator` or `reference`.
            The program is lowered to the level that the executor reads: for `reference` to the tensor level, so that it
            takes every program above schedules. Texts of lower levels are computed when they are asked for.
        fallback: `"eager"` makes PyTorch compute the operators that deplodock does not support, and a FallbackWarning
            lists them. By default they are errors.
        dynamic_shapes: the sizes that may vary, as for `torch.export.export`. One program serves every size in the
            range of its `torch.export.Dim`. A call outside of the range raises ShapeError.
        record: file of fusion plans and schedules, as `compile --write-record` and `tune` write it, or `"none"`. By
            default it is the record of the user, to which `tune` writes.
        f32_matmul_precision: `bf16x3` or `tf32` permits tensor cores for matmuls of f32 (see `#tile.schedule`),
            `ieee` does not. By default the setting of PyTorch holds.
        schedule: options of `plan-schedules` for every kernel that they fit, such as `"block=64,128 warps=4"`.
        pipeline: passes that replace the default ones, as for `dl-opt -p`. They start at the torch level and contain
            `verify-level{level=...}` at the end of each level.
        insert: passes in addition to the default ones, each with its position
            (`"my-pass:after=convert-torch-to-tensor"`).
        strategy: `model` (default) fuses and schedules with a cost model. `simple` uses short rules, for correct but
            slow kernels.
        checked: whether a program stops with an ExecutionError at an index that PyTorch would refuse. The error names
            the operator, its line, the legal range and the index. Without it such an index reads zero and writes
            nothing.
        cuda_graphs: whether a GPU runs the launches of a call as one CUDA graph, from the second call with the same
            shapes. Scratch memory then stays allocated between calls.
        prepack_weights: whether a CPU program keeps the values that depend on parameters and buffers alone, above all
            weights in the order in which matmuls read them. A call computes them again if PyTorch's version counter of
            a parameter has changed, or a sample of at most 64 of its words. After other changes call `refresh()` of
            the result.
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
    """Compiles a module or function for arguments like the example arguments.

        f = deplodock.compile(torch.nn.RMSNorm(64), (torch.randn(8, 64),), target="sm_90a")
        print(f.ir("tile"))

    Args:
        module_or_function: a module, a function, or an `ExportedProgram`. For the last, the example arguments and the
            sizes that vary are by default those of its export.
        example_args: arguments by position.
        example_kwargs: arguments by name.
        options: see `Options`.

    Returns:
        the compiled program, called like `module_or_function`.

    Raises:
        CompileError: the program, an operator or an option is not supported. Subclasses name the kind of error.
        TypeError: unknown option.
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

    # PyTorch's exporter takes as long to import as everything else together.
    from .capture.export import capture, modules_of

    function, compile_options = module, dict(options)
    fallback, shapes = compile_options.pop("fallback", None), compile_options.pop("dynamic_shapes", None)
    if not isinstance(args, tuple) or isinstance(module, ExportedProgram | torch.jit.ScriptModule):
        from .capture.exported_programs import opened

        function, args, kwargs, shapes = opened(module, args, kwargs, shapes)
    captured = capture(function, args, kwargs, fallback=fallback, dynamic_shapes=shapes, in_memory=True)
    try:
        compiled = CompiledFunction(captured, **compile_options)
    except TargetError as error:
        raise captured.calls.complete(error) from None
    compiled._lower()
    compiled._module = module if isinstance(module, torch.nn.Module) else None
    compiled._use(captured, modules_of(module))
    compiled._compile_again = lambda copied: _compile(copied or module, args, kwargs, options)
    return compiled
