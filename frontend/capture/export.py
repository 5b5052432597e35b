"""From a PyTorch module or function to a module of the torch dialect, by `torch.export`.

The program is exported without guessing: what PyTorch cannot export, what is not ATen, what mutates after capture, has
a data type that we do not know or a size that depends on data, is refused by name.
"""

from __future__ import annotations

import functools
import inspect
import logging
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch._decomp import decompositions
from torch.export import ExportedProgram, _trace
from torch.export.graph_signature import InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ...errors import CaptureError, CompileError, UnsupportedError
from ...garbage import rare_collections
from ...passes.convert.torch_to_tensor.registry import get_decompositions
from .addressed_views import AddressedViews
from .aliasing import Lies
from .arguments import leaf_names, parameter_names
from .captured_program import Binding, CapturedProgram, kind_of
from .complex import without_rule
from .decompositions.table import decomposed, is_ours
from .eager_fallback import Fallback, is_complex
from .exported_programs import merge_duplicates
from .features import Features, words_of
from .gradients import marked_grad_mode, may_require_grad
from .graph_capture import Argument, import_graph
from .known_sizes import known_sizes
from .refusals import UserCalls, refusal_of
from .source_locations import blame, callers_place, is_users, shown, users_frames_in_stack_traces
from .specialization_check import check_at_one
from .symbolic_shapes import NamedDim, every_size, named_dims
from .transforms import BothBranches, below_transforms, trace
from .user_calls import function_name
from .variables import modules_of, variables_of


@rare_collections()
def capture(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] | None = None,
    place: tuple[str, int] | None = None,
    fallback: Fallback = None,
    dynamic_shapes: Any = None,
    in_memory: bool = False,
) -> CapturedProgram:
    """Capture a module, or a function of tensors, called with these example arguments.

    `names` names the tensor inputs; `place` is the (file, line) of ops of which PyTorch does not know the line. With
    `fallback="eager"` what is not supported is left to PyTorch, with a FallbackWarning that lists it. `dynamic_shapes`
    says, as for `torch.export.export`, which sizes may vary. With `in_memory` results lie in memory as eager PyTorch's
    do: with its strides, and those that are views of arguments are not computed but made of these. Raises CaptureError
    if PyTorch cannot export it, UnsupportedError for what is outside of the torch dialect.
    """
    given = function, tuple(args), dict(kwargs or {}), names, place, fallback, dynamic_shapes, in_memory
    calls = UserCalls(
        function_name(function), _defined_at(function) if place is None else ":".join(map(str, place)), fallback
    )
    try:
        return _capture(*given, calls)
    except CompileError as error:
        raise calls.complete(error) from error.__cause__


def _defined_at(function: Any) -> str | None:
    """`file:line` of a function of the user's, or of the forward method of a module; else of the call from outside."""
    while isinstance(function, functools.partial):
        function = function.func
    method = type(function).forward if isinstance(function, torch.nn.Module) else function
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    if code is not None and is_users(code.co_filename):
        return f"{shown(code.co_filename)}:{code.co_firstlineno}"
    return callers_place()


def _capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Sequence[str] | None,
    place: tuple[str, int] | None,
    fallback: Fallback,
    dynamic_shapes: Any,
    in_memory: bool,
    calls: UserCalls,
) -> CapturedProgram:
    module = callable_module(function)
    parameters = parameter_names(function, len(args))
    for name, leaf in zip(leaf_names(parameters, args, kwargs), pytree.tree_leaves((args, kwargs)), strict=True):
        if isinstance(leaf, torch.Tensor) and (kind := kind_of(leaf)) is not None:
            raise UnsupportedError(f"a tensor of another kind is not supported: {kind}", argument=name)
    given, sizes = (*_apart(args, kwargs), dynamic_shapes), list[NamedDim]()
    exported, lies, features = _export(module, *given)
    if dynamic_shapes is not None:
        sizes = named_dims(module, *given, exported)
        check_at_one(exported, sizes, *given, lambda *other: _export(module, *other)[0])
    lies = lies if in_memory else (None,) * len(lies)
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    if viewed := {x.source for x in lies if x is not None and x.source}:
        _without_views(exported, lies)
    arguments = _bind_inputs(exported, leaves, list(names or []), fallback, viewed)
    assert exported.call_spec.out_spec is not None
    specs = in_spec, exported.call_spec.out_spec
    if any(b.kind == "constant" for b, _ in arguments) and not isinstance(function, torch.nn.Module):
        arguments = _with_closed_over(arguments, function)
    given = arguments, *_returned(exported), lies, leaves, specs, features
    read = frozenset(i for i, (_, node) in enumerate(arguments) if node.users and may_require_grad(node))
    captured = import_graph(exported.graph, *given, place, fallback, sizes, calls)
    needs = captured.needs or ((frozenset[int](),), (read,))
    return replace(captured, needs=needs if in_memory else (), parameters=parameters)


def _apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in which no tensor is there twice: PyTorch's exporter would take the two for one in every call."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and any(leaf is other for other in leaves[:i]):
            other = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            leaves[i] = other.requires_grad_(leaf.requires_grad)
    return pytree.tree_unflatten(leaves, spec)


def callable_module(function: Callable[..., Any]) -> torch.nn.Module:
    """A module, or a function as one. Raises CaptureError for what is neither."""
    return function if isinstance(function, torch.nn.Module) else _Function(function)


_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)


_CALLABLE = "pass an nn.Module or a function of tensors"


class _Function(torch.nn.Module):
    """A function, or another object that can be called, as a module with the function's own signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            reason = f"expected a module or a function, but got {type(function).__name__}"
            raise CaptureError(reason, kind="wrong-arguments", remedy=_CALLABLE)
        if not isinstance(function, _FUNCTIONS):
            function = function.__call__  # whose code PyTorch can find
        try:
            self.__signature__ = inspect.signature(function)
            self.forward = function
        except ValueError:  # a builtin such as torch.relu does not tell its parameters
            self.forward = lambda *args, **kwargs: function(*args, **kwargs)


def _export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> tuple[ExportedProgram, tuple[Lies | None, ...], Features]:
    """The program as PyTorch exports it, where its results lie in memory, and its features with what they noted. With
    `shapes` it holds where its assertions do. Raises CaptureError."""
    differentiating, exported = torch.is_grad_enabled(), None
    get_decompositions()  # outside of `try`: an error in there is ours
    try:
        with (
            torch.no_grad(),
            users_frames_in_stack_traces(),
            _quiet(),
            every_size(shapes is not None),
            BothBranches(),
            known_sizes(),
            _states_of_lstm(),
        ):
            exported = below_transforms(
                module,
                differentiating,
                lambda traced, above: trace(lambda: _exported(traced, args, kwargs, shapes, above)),
            )
            below = {"below autograd"} if exported.dialect != "TRAINING" else set[str]()
            features = Features(words_of(exported.graph_module) | below)
            features.traced(exported)
            kinds = [spec.kind for spec in exported.graph_signature.output_specs]
            known = features.facts.get("aliasing", (None,) * kinds.count(OutputKind.USER_OUTPUT)), features
            unruled = without_rule(exported.graph) if "complex" in features.words else set[Any]()
            if not unruled and all(_needs_nothing(node) for node in exported.graph.nodes):
                return exported, *known
            if shapes is None or any(map(is_complex, exported.graph.nodes)):
                # PyTorch writes conditions on arguments so that they fail for complex tensors, and for the size of the
                # memory that a view is a part of. Where sizes are fixed, each call is compared with the example.
                exported._guards_code = []
            merge_duplicates(exported)
            exported = decomposed(exported, unruled)
            features.words |= words_of(exported.graph_module)
            features.run("decomposed", exported.graph)
            return exported, *known
    except CompileError:
        raise
    except (Exception, SystemExit) as error:  # whatever PyTorch or the user's code raises, of hundreds of kinds
        graphs = [m.graph for m in (exported, module) if isinstance(m, ExportedProgram | GraphModule)]
        raise refusal_of(error, graphs) from error


@contextmanager
def _states_of_lstm() -> Iterator[None]:
    """Gives the states of an LSTM their shape while it is traced: PyTorch 2.11 adds a dimension of size 1."""
    traced = decompositions.one_layer_lstm

    def one_layer(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        result, states = traced(*args, **kwargs)
        return result, tuple(s.squeeze(0) if s.dim() > 2 else s for s in states)

    with patch.object(decompositions, "one_layer_lstm", one_layer):
        yield


def _exported(module: torch.nn.Module, args: Any, kwargs: Any, shapes: Any, above: bool) -> ExportedProgram:
    """The program, traced `above` autograd or below it, where its own gradients are part of what it computes."""
    export = torch.export.export if above else _trace._export
    how = {"dynamic_shapes": shapes, "strict": False, "prefer_deferred_runtime_asserts_over_guards": shapes is not None}
    if not above:
        with AddressedViews():
            return export(module, args, kwargs, **how)
    with marked_grad_mode(module) as switch:
        found = export(module, args, kwargs, **how)
    if switch.asked:
        export(module, args, kwargs, **how)  # which does not return where it comes to gradients that are computed
    return found


def _needs_nothing(node: torch.fx.Node) -> bool:
    """Whether a node is one that we take as it is: then PyTorch's own decompositions, which take a while, have
    nothing to do."""
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op in ("placeholder", "output", "call_function")
    checked = node.target in (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_async.msg)
    return checked or is_ours(node.target) and not node.target._schema.is_mutable  # pyright: ignore


@contextmanager
def without_logs(level: int) -> Iterator[None]:
    """While it is open, nothing up to `level` is logged."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's warnings about itself, and the logs and graphs it prints of errors that are raised anyway."""
    silent = patch.object(_trace, "print", _print_nothing, create=True)
    with without_logs(logging.CRITICAL), warnings.catch_warnings(), silent:
        warnings.simplefilter("ignore")
        yield


def _print_nothing(*values: object, **options: object) -> None:
    """What `print` is to PyTorch's exporter, which shows the graph of a failed export on stderr."""


_KINDS: dict[InputKind, Literal["input", "parameter", "buffer", "constant"]] = {
    InputKind.USER_INPUT: "input",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


def _bind_inputs(
    exported: ExportedProgram,
    leaves: Sequence[Any],
    names: list[str],
    fallback: Fallback,
    viewed: Collection[str],
) -> list[Argument]:
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    arguments: list[Argument] = []
    needed = {spec.target for spec in exported.graph_signature.output_specs if spec.target}
    user = 0
    for spec in exported.graph_signature.input_specs:
        node, leaf = nodes[spec.arg.name], user
        user += spec.kind == InputKind.USER_INPUT
        if spec.kind == InputKind.TOKEN:
            continue
        if isinstance(spec.arg, SymIntArgument):
            raise UnsupportedError(
                "an integer argument that varies is not supported", argument=node.name, kind="dynamic-sizes"
            )
        if spec.kind not in _KINDS or spec.kind != InputKind.USER_INPUT and not isinstance(spec.arg, TensorArgument):
            kind = "a generator, or another object that is no tensor, is not supported"
            raise blame(UnsupportedError(kind, kind="python-code"), next(iter(node.users), node))
        if not isinstance(spec.arg, TensorArgument):
            continue
        if spec.kind == InputKind.USER_INPUT:
            tensors_before = sum(isinstance(v, torch.Tensor) for v in leaves[:leaf])
            name = names[tensors_before] if tensors_before < len(names) else node.name
            binding = Binding(name, "input", leaf)
        elif node.users or spec.target in needed or node.name in viewed:
            tensor = exported.state_dict.get(spec.target or "", exported.constants.get(spec.target or ""))
            if not isinstance(tensor, torch.Tensor):
                raise CaptureError(f"the tensor {spec.target!r} has no value")
            binding = Binding(spec.target or "", _KINDS[spec.kind], tensor=tensor)
        else:
            continue  # state that nothing reads, writes or returns, such as a count of batches
        arguments.append((binding, node))
    return arguments


def _with_closed_over(arguments: list[Argument], function: Callable[..., Any]) -> list[Argument]:
    """Returns the arguments with the tensors themselves that variables of a function hold: PyTorch exports them as
    constants, which require no gradients and are no tensors of a module."""
    tensors = [t for t in variables_of(function).values() if isinstance(t, torch.Tensor)]
    for module in (m for top in modules_of(function).values() for m in top.modules()):
        owners = (vars(module), module._buffers, module._parameters)
        tensors += [t for owner in owners for t in owner.values() if isinstance(t, torch.Tensor)]
    places = {(t.data_ptr(), t.shape, t.stride(), t.dtype): t for t in tensors if kind_of(t) is None}

    def itself(b: Binding) -> Binding:
        t = b.tensor
        same = None if b.kind != "constant" or t is None else places.get((t.data_ptr(), t.shape, t.stride(), t.dtype))
        return b if same is None else replace(b, tensor=same)

    return [(itself(b), node) for b, node in arguments]


def _without_views(exported: ExportedProgram, lies: Sequence[Lies | None]) -> None:
    """Remove what only results need that are views of arguments."""
    output = exported.graph.output_node()
    results: tuple[Any, ...] = output.args[0]  # pyright: ignore[reportAssignmentType]
    others = len(results) - len(lies)
    views = {i for i, x in enumerate(lies, others) if x is not None and x.source}
    output.args = (tuple(None if i in views else node for i, node in enumerate(results)),)
    exported.graph.eliminate_dead_code()


def _returned(exported: ExportedProgram) -> tuple[list[tuple[int, str]], list[int]]:
    """Which of what the graph returns replaces which argument, and which are the program's results."""
    changed = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION}
    targets = {spec.target: spec.arg.name for spec in exported.graph_signature.input_specs if spec.target}
    updates, results = list[tuple[int, str]](), list[int]()
    for i, spec in enumerate(exported.graph_signature.output_specs):
        if spec.kind in changed:
            updates.append((i, targets.get(spec.target or "", spec.target or "")))
        elif spec.kind == OutputKind.USER_OUTPUT:
            results.append(i)
        elif spec.kind != OutputKind.TOKEN:
            raise UnsupportedError(f"a result of kind {spec.kind.name.lower()} is not supported")
    return updates, results
