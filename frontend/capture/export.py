"""Capture of a PyTorch module or function as a module of the torch dialect, by `torch.export`.

A program is refused, with the operator and the line, if PyTorch cannot export it, or if the torch dialect does not
support it. Examples are operators of other libraries, unsupported data types, and sizes that depend on data.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, SymIntArgument, TensorArgument
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ...errors import CaptureError, CompileError, UnsupportedError
from ...passes.convert.torch_to_tensor.conversion import get_decompositions
from .arguments import leaf_names, parameter_names
from .arrays import kind_of, may_require_grad
from .captured_program import Binding, CapturedProgram
from .decompositions.table import decomposed
from .eager_fallback import Fallback
from .features import AUTOCAST, Features, autocast_state, words_of
from .importer import Argument, TracedGraph, import_graph
from .refusals import UserCalls, refusal_of
from .source_locations import blame, users_frames_in_stack_traces
from .symbolic_shapes import every_size
from .tracing import Request, quiet, trace


def capture(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
    place: tuple[str, int] | None = None,
    fallback: Fallback = None,
    dynamic_shapes: Any = None,
    in_memory: bool = False,
) -> CapturedProgram:
    """Captures a module, or a function of tensors.

    Args:
        function: the module or function.
        args: example arguments by position.
        kwargs: example arguments by name.
        names: names for the tensor inputs, in their order.
        place: (file, line) of operators whose line PyTorch does not know.
        fallback: `"eager"` lets PyTorch compute operators that are not supported; a FallbackWarning lists them.
        dynamic_shapes: sizes that vary, as for `torch.export.export`.
        in_memory: whether results have the strides, and share the memory, that they have in eager PyTorch.

    Raises:
        CaptureError: PyTorch cannot export the program.
        UnsupportedError: the torch dialect does not support an operator or a type of the program.
    """
    calls = UserCalls(function, place, fallback)
    options: Any = {"shapes": dynamic_shapes, "fallback": fallback, "in_memory": in_memory}
    try:
        module, differentiating = callable_module(function), torch.is_grad_enabled()
        request = Request(module, tuple(args), dict(kwargs or {}), **options, differentiating=differentiating)
        return _capture(request, names, calls)
    except CompileError as error:
        raise calls.complete(error) from error.__cause__


def _capture(request: Request, names: Sequence[str], calls: UserCalls) -> CapturedProgram:
    leaves, in_spec = pytree.tree_flatten((request.args, request.kwargs))
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and (kind := kind_of(leaf)) is not None:
            parameters = parameter_names(calls.function, len(request.args))
            name = leaf_names(parameters, request.args, request.kwargs or {})[i]
            raise UnsupportedError(f"a tensor of another kind is not supported: {kind}", argument=name)
    if _has_repeats(leaves):
        args, kwargs = _distinct(leaves, in_spec)
        request = replace(request, args=args, kwargs=kwargs)
    exported, features = export(request)
    features.run("checked", exported)
    arguments = _bind_inputs(exported, names)
    if any(b.kind == "constant" for b, _ in arguments) and not isinstance(calls.function, torch.nn.Module):
        arguments = _with_closed_over(arguments, calls.function)
    read = frozenset(i for i, (_, node) in enumerate(arguments) if node.users and may_require_grad(node))
    specs: Any = in_spec, exported.call_spec.out_spec
    captured = import_graph(
        TracedGraph(exported.graph, arguments, *_returned(exported), leaves, specs, features, calls)
    )
    if request.in_memory and not captured.needs:
        captured.needs = (frozenset[int](),), (read,)
    return captured


def _has_repeats(values: Iterable[Any]) -> bool:
    """Returns true if a tensor object occurs twice."""
    tensors = [id(value) for value in values if isinstance(value, torch.Tensor)]
    return len(set(tensors)) < len(tensors)


def _distinct(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Any:
    """Returns arguments in which no tensor object occurs twice.

    For a repeated object, PyTorch's exporter would assume that both arguments are the same in every call.
    """
    distinct = list(leaves)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and any(leaf is other for other in leaves[:i]):
            other = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            distinct[i] = other.requires_grad_(leaf.requires_grad)
    return pytree.tree_unflatten(distinct, spec)


def callable_module(function: Callable[..., Any]) -> torch.nn.Module:
    """Returns a module unchanged, and a function as a module. Raises CaptureError for other objects."""
    return function if isinstance(function, torch.nn.Module) else _Function(function)


_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)


class _Function(torch.nn.Module):
    """Module that calls a function, or another callable object, and has its signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        function = function if isinstance(function, _FUNCTIONS) else _called(function)
        try:
            self.__signature__ = inspect.signature(function)
            self.forward = function
        # A builtin such as torch.relu has no signature.
        except ValueError:
            self.forward = lambda *args, **kwargs: function(*args, **kwargs)


def _called(function: Any) -> Callable[..., Any]:
    """Returns the function that runs when an object is called, for which PyTorch can find the source. Raises
    CaptureError."""
    if not callable(function):
        reason = f"expected a module or a function, but got {type(function).__name__}"
        raise CaptureError(reason, kind="wrong-arguments", remedy="pass an nn.Module or a function of tensors")
    return function.__call__


def export(request: Request) -> tuple[ExportedProgram, Features]:
    """Returns the program in ATen operators that this library supports, and its features. Raises CaptureError."""
    exported = None
    # Called outside of `try`, because an error in it is an error of this library.
    get_decompositions()
    sizes = nullcontext() if request.shapes is None else every_size()
    try:
        with torch.no_grad(), users_frames_in_stack_traces(), quiet(), sizes:
            exported = trace(request)
            features = Features(words_of(exported.graph_module), request)
            if exported.dialect != "TRAINING":
                features.words.add("below_autograd")
            features.facts["autocast"] = autocast_state(d for d, word in AUTOCAST.items() if word in features.words)
            features.run("traced", exported)
            features.run("split", exported.graph)
            # PyTorch's own decompositions are slow, so they run only for programs that need them.
            if features.split or "foreign" in features.words:
                exported = _decomposed(exported, features)
            features.run("decomposed", exported)
            for _, expand in features.stage("expanded"):
                exported = expand(exported, features)
            return exported, features
    except CompileError:
        raise
    # PyTorch and the user's code raise exceptions of hundreds of types.
    except (Exception, SystemExit) as error:
        graphs = [m.graph for m in (exported, request.module) if isinstance(m, ExportedProgram | GraphModule)]
        raise refusal_of(error, graphs) from error


def _decomposed(exported: ExportedProgram, features: Features) -> ExportedProgram:
    if features.request.shapes is None or "complex" in features.words:
        # PyTorch's guards on arguments fail for complex tensors, and for views of a larger tensor. With fixed sizes no
        # guards are needed, because each call is compared with the example.
        exported._guards_code = []
    if _has_repeats((*exported.constants.values(), *exported.state_dict.values())):
        _merge_duplicates(exported)
    lists = any(word.startswith("aten._foreach_") for word in features.words)
    exported = decomposed(exported, features.split, lists)
    features.words |= words_of(exported.graph_module)
    return exported


_KINDS: dict[InputKind, Literal["input", "parameter", "buffer", "constant"]] = {
    InputKind.USER_INPUT: "input",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


def _bind_inputs(exported: ExportedProgram, names: Sequence[str]) -> list[Argument]:
    """Returns the arguments of a program, without unused state, such as the counter of batches of a batch
    normalization."""
    nodes = exported.graph.find_nodes(op="placeholder")
    written = {spec.target for spec in exported.graph_signature.output_specs if spec.target}
    arguments, leaves, remaining_names = list[Argument](), count(), iter(names)
    for node, spec in zip(nodes, exported.graph_signature.input_specs, strict=True):
        target = spec.target or ""
        leaf = next(leaves) if spec.kind == InputKind.USER_INPUT else -1
        if spec.kind not in _KINDS or not isinstance(spec.arg, TensorArgument):
            _check_no_tensor(spec, node)
        elif leaf >= 0:
            arguments.append((Binding(next(remaining_names, node.name), "input", leaf), node))
        elif node.users or target in written:
            tensor = exported.state_dict.get(target, exported.constants.get(target))
            arguments.append((Binding(target, _KINDS[spec.kind], tensor=tensor), node))
    return arguments


def _check_no_tensor(spec: InputSpec, node: Node) -> None:
    """Raises UnsupportedError for an input that is not a tensor, unless it is a fixed argument or an effect token."""
    if isinstance(spec.arg, SymIntArgument):
        raise UnsupportedError(
            "an integer argument that varies is not supported", argument=node.name, kind="dynamic-sizes"
        )
    if spec.kind not in (InputKind.USER_INPUT, InputKind.TOKEN):
        kind = "a generator, or another object that is no tensor, is not supported"
        raise blame(UnsupportedError(kind, kind="python-code"), next(iter(node.users), node))


def _with_closed_over(arguments: list[Argument], function: Callable[..., Any]) -> list[Argument]:
    """Returns the arguments with constants replaced by the function's own tensors, where they have the same memory.

    PyTorch exports a tensor that a variable of the function holds as a detached constant, which requires no gradients.
    """
    tensors = [t for t in variables_of(function).values() if isinstance(t, torch.Tensor)]
    for module in (m for top in modules_of(function).values() for m in top.modules()):
        owners = (vars(module), module._buffers, module._parameters)
        tensors += [t for owner in owners for t in owner.values() if isinstance(t, torch.Tensor)]
    places = {(t.data_ptr(), t.shape, t.stride(), t.dtype): t for t in tensors if kind_of(t) is None}

    def with_own_tensor(b: Binding) -> Binding:
        t = b.tensor
        same = None if b.kind != "constant" or t is None else places.get((t.data_ptr(), t.shape, t.stride(), t.dtype))
        return b if same is None else replace(b, tensor=same)

    return [(with_own_tensor(b), node) for b, node in arguments]


def _returned(exported: ExportedProgram) -> tuple[list[tuple[int, str]], list[int]]:
    """Returns the updates, as pairs (index in the graph's output, argument name), and the output indices of the
    results."""
    nodes = {spec.target: spec.arg.name for spec in exported.graph_signature.input_specs if spec.target}
    updates, results = list[tuple[int, str]](), list[int]()
    for i, spec in enumerate(exported.graph_signature.output_specs):
        if spec.kind == OutputKind.USER_OUTPUT:
            results.append(i)
        elif spec.kind in _UPDATES:
            updates.append((i, nodes.get(spec.target, spec.target)))
        elif spec.kind != OutputKind.TOKEN:
            raise UnsupportedError(f"a result of kind {spec.kind.name.lower()} is not supported")
    return updates, results


_UPDATES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def _merge_duplicates(program: ExportedProgram) -> None:
    """Merges inputs of an exported program that are the same tensor, as of a layer that is registered twice.

    PyTorch cannot decompose a program that writes one of two such inputs.

    Args:
        program: changed in place; the first name of a tensor remains.
    """
    tensors = {**program.constants, **program.state_dict}
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs, first = program.graph_signature.input_specs, dict[int, Any]()
    for spec in list(specs):
        tensor = tensors.get(spec.target or "")
        if not isinstance(tensor, torch.Tensor):
            continue
        node = nodes[spec.arg.name]
        if (same := first.setdefault(id(tensor), node)) is not node:
            node.replace_all_uses_with(same)
            program.graph.erase_node(node)
            specs.remove(spec)


def variables_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the values that a callable reads in addition to its arguments, by name, as far as they are known."""
    if not inspect.isfunction(function):
        return _fields_of(function)
    function = inspect.unwrap(function)
    code, names, cells = function.__code__, function.__globals__, function.__closure__ or ()
    variables = {name: names[name] for name in code.co_names if name in names}
    return variables | {n: c.cell_contents for n, c in zip(code.co_freevars, cells, strict=True) if c != CellType()}


def _fields_of(function: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(function, functools.partial):
        return variables_of(function.func) | {"arguments": function.args, **function.keywords}
    if inspect.ismethod(function):
        owner = function.__self__
        fields = {} if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
        return variables_of(function.__func__) | fields | {"self": owner}
    return variables_of(function.__call__) if inspect.ismethod(function.__call__) else {}


def modules_of(function: Callable[..., Any]) -> dict[str, nn.Module]:
    """Returns the modules that a callable uses: itself, or its variables, also in lists, tuples and dictionaries.

    The keys are prefixes for the names of their tensors.
    """
    if isinstance(function, nn.Module):
        return {"": function}
    variables = variables_of(function)
    for name, value in tuple(variables.items()):
        if isinstance(value, dict | list | tuple):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            variables |= {f"{name}.{key}": inner for key, inner in items if isinstance(inner, nn.Module)}
    return {name: value for name, value in variables.items() if isinstance(value, nn.Module)}
