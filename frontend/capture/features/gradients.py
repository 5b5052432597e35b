"""Gradients: the arguments that each result depends on as autograd sees it.

A program may switch gradients off and on, and a call may have them enabled or disabled:

y = x * w               # depends on {x, w} in a call with gradients enabled, else on nothing
with torch.no_grad():
    z = y.sin()         # depends on nothing
    y.mul_(v)           # leaves the dependences of y as they were
with torch.enable_grad():
    u = y.sin()         # the same as y; w.sin() here depends on {w} in every call

The exporter traces with gradients disabled, and ignores the switches of a program. So this module traces such a program
with the switches recorded as marks of the graph's nodes. It then interprets the graph: the value of a node is the set
of arguments that it depends on.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..aliasing import share
from ..arrays import may_require_grad, named_arguments
from ..captured_program import CapturedProgram
from ..source_locations import is_users
from ..tracing import Request, Retrace
from . import Features


def called(function: Any, args: Any, kwargs: Any) -> Any:
    """Requests another trace if a program switches gradients, or asks whether they are enabled.

    Capture calls this function for such a call. The exception Retrace ends the trace; then capture calls `retraced`.

    Args:
        function: the function that the program calls.
        args, kwargs: its arguments.

    Returns:
        NotImplemented, which continues the trace, if code other than the user's calls `is_grad_enabled`.
    """
    if function.__name__ == "is_grad_enabled" and not is_users(sys._getframe(3).f_code.co_filename):
        return NotImplemented
    raise Retrace(retraced)


def retraced(request: Request) -> ExportedProgram:
    """Exports the program again, and marks the nodes of parts in which it has switched gradients."""
    with _marked_grad_mode(request.module) as switch:
        program = request.export(("gradients",))
    if switch.enables:
        # A program that computes gradients itself raises Retrace here: the feature `transforms` traces it instead.
        request.export(("gradients",))
    return program


def traced(program: ExportedProgram, features: Features) -> tuple[Needs, Needs]:
    """Returns the dependences for calls with gradients disabled, and those for calls with gradients enabled."""
    off, on = (_needs(program, grad_in_call) for grad_in_call in (False, True))
    return off, on


def captured(program: CapturedProgram, features: Features) -> None:
    """Adds to a captured program the arguments that its results depend on."""
    if features.request.in_memory and (facts := features.facts.get("gradients")) is not None:
        changed = [features.names[argument] for _, argument in program.updates]
        program.needs = tuple(needs.numbered(features.names, changed) for needs in facts)


@dataclass
class Needs:
    """Dependences of a program: the arguments that its results depend on, by the names of their nodes.

    A result that is a view of an argument has an empty set unless autograd records the view.

    Attributes:
        results: arguments that each result depends on.
        changed: arguments that the new value of a changed argument depends on. Only changes that autograd records are
            included.
    """

    results: list[frozenset[str]]
    changed: dict[str, frozenset[str]]

    def numbered(self, names: Sequence[str], changed: Sequence[str]) -> tuple[frozenset[int], ...]:
        """Returns the dependences of the results, then of changed arguments, as sets of argument numbers.

        Names that are not in `names` are left out: the program does not read these arguments.

        Args:
            names: node names of the captured program's arguments; the numbers index it.
            changed: names of the changed arguments, in the order of the result.
        """
        entries = *self.results, *(self.changed.get(name, ()) for name in changed)
        return tuple(frozenset(names.index(n) for n in entry if n in names) for entry in entries)


def _needs(exported: ExportedProgram, grad_in_call: bool) -> Needs:
    """Returns the dependences of a program. `grad_in_call`: whether gradients are enabled in the call."""
    inputs = [n for n in exported.graph.nodes if n.op == "placeholder"]
    arguments = [_Tensor(_History({n.name} if may_require_grad(n) else set()), is_argument=True) for n in inputs]
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    leaves: Any = exported.graph.output_node().args[0]
    results = zip(_interpret(exported.graph_module, arguments, grad_in_call), leaves, strict=True)
    dependences = [
        _dependences(tensor) if isinstance(node, Node) and may_require_grad(node) else frozenset[str]()
        for (tensor, node), kind in zip(results, kinds, strict=True)
        if kind == OutputKind.USER_OUTPUT
    ]
    changed = {
        n.name: frozenset(t.history.depends) for n, t in zip(inputs, arguments, strict=True) if t.history.changed
    }
    return Needs(dependences, changed)


@dataclass
class _History:
    """State shared by a tensor and its views: the arguments that they depend on.

    `changed` is true after a change in place that autograd records.
    """

    depends: set[str] = field(default_factory=set[str])
    changed: bool = False


@dataclass(frozen=True)
class _Tensor:
    """Abstract value of a node.

    Attributes:
        history: dependences, shared with the views of the tensor.
        is_argument: whether the tensor is an argument, or a view of one.
        recorded: for a view, whether autograd records all operators between the base and the view; None for no view.
    """

    history: _History = field(default_factory=_History)
    is_argument: bool = False
    recorded: bool | None = None


_Value: TypeAlias = _Tensor | Sequence[_Tensor]
"""Value of a node: one tensor, or a sequence of tensors for a subgraph. The results of one operator share one value."""


def _dependences(tensor: _Value) -> frozenset[str]:
    assert isinstance(tensor, _Tensor)
    unrecorded = tensor.is_argument and not tensor.recorded
    return frozenset(() if unrecorded else tensor.history.depends)


def _interpret(module: GraphModule, arguments: Sequence[_Value], grad_in_call: bool) -> list[_Value]:
    """Returns the values of a graph's results.

    Args:
        module: the graph.
        arguments: values of its arguments.
        grad_in_call: whether gradients are enabled in the call.

    Returns:
        The values. A leaf that is not a tensor has a value without dependences.
    """
    graph: Graph = module.graph
    remaining, tensors = iter(arguments), dict[Node, _Value]()
    for node in graph.nodes:
        if node.op == "placeholder":
            tensors[node] = next(remaining)
        elif node.op == "call_function":
            tensors[node] = _interpret_call(module, node, tensors, _grad_enabled(node, grad_in_call), grad_in_call)
    leaves: Any = graph.output_node().args[0]
    return [tensors.get(n, _Tensor()) if isinstance(n, Node) else _Tensor() for n in leaves]


def _interpret_call(
    module: GraphModule, node: Node, tensors: Mapping[Node, _Value], records: bool, grad_in_call: bool
) -> _Value:
    if node.target is operator.getitem:
        value = tensors[node.args[0]]  # pyright: ignore[reportArgumentType]
        return value if isinstance(value, _Tensor) else value[node.args[1]]  # pyright: ignore
    inner = [(i, m) for i, a in enumerate(node.args) if (m := _submodule(module, a)) is not None]
    if len(inner) == 1:  # code under autocast is traced as a subgraph
        ((i, subgraph),) = inner
        operands = pytree.tree_leaves(node.args[i + 1 :])
        return _interpret(subgraph, [tensors.get(a, _Tensor()) for a in operands], grad_in_call)
    read = {n: t for n in node.all_input_nodes if isinstance(t := tensors.get(n), _Tensor) and may_require_grad(n)}
    depends = {name for t in read.values() for name in t.history.depends}
    if isinstance(target := node.target, torch._ops.OpOverload):
        for written in _written(node, target):
            # `read` has the written tensor if it may require a gradient; integers may not.
            if records and written in read:
                read[written].history.depends |= depends
                read[written].history.changed = True
        alias = None if target._schema.name in _FRESH else _alias(node, read)
        if alias is not None:
            is_view = any(a.alias_info for a in target._schema.returns) and not target._schema.is_mutable
            same = read[alias]
            recorded = records and same.recorded is not False if is_view else same.recorded
            return _Tensor(same.history, same.is_argument, recorded)
        if records:
            depends = {name for n in _differentiated(node, target) if n in read for name in read[n].history.depends}
    return _Tensor(_History(depends if records else set()))


def _submodule(module: GraphModule, value: Any) -> GraphModule | None:
    submodule = getattr(module, str(value.target), None) if isinstance(value, Node) and value.op == "get_attr" else None
    return submodule if isinstance(submodule, GraphModule) else None


def _written(node: Node, target: torch._ops.OpOverload) -> list[Node]:
    names = [a.name for a in target._schema.arguments if a.alias_info and a.alias_info.is_write]
    named = named_arguments(node)
    return [n for name in names for n in pytree.tree_leaves(named.get(name)) if isinstance(n, Node)]


def _alias(node: Node, read: Collection[Node]) -> Node | None:
    values = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    return next((n for n in read if any(share(n.meta.get("val"), v) for v in values)), None)


_FRESH = ("aten::detach", "aten::lift_fresh_copy")
"""Operators whose result autograd does not treat as a view, although it shares memory in the trace."""


def _differentiated(node: Node, target: torch._ops.OpOverload) -> Sequence[Node]:
    """Returns the arguments of an operator that gradients may flow to.

    An operator such as `zeros_like` reads only the shape and type of an argument.
    """
    name = target._schema.name.removeprefix("aten::")
    if target._schema.name in _FRESH or name.endswith("_like") or name.startswith("new_"):
        return ()
    return node.all_input_nodes[:1] if name.endswith("_as") or name == "to" else node.all_input_nodes


_GRAD = "grad_enabled"
"""Key of the mark in `node.meta["custom"]`."""


class _CallersGradMode(int):
    """Value of `torch.is_grad_enabled()` in a part of the program that has not switched gradients: the mode of the
    caller.

    It is true, so the program takes gradients for enabled. It is a type of its own, so that switching back to it is
    recognised.
    """


_CALLERS_GRAD_MODE = _CallersGradMode(True)


def _grad_enabled(node: Node, grad_in_call: bool) -> bool:
    return node.meta.get("custom", {}).get(_GRAD, grad_in_call)


@contextmanager
def _marked_grad_mode(module: torch.nn.Module) -> Generator[_Switch]:
    """While active, a trace of `module` marks the nodes of parts in which the program has switched gradients.

    The `_Switch` that it yields has `enables` set if the program enables gradients itself. Such a program may compute
    gradients, and then this trace is not valid.
    """
    forward, switch = module.forward, _Switch()

    @functools.wraps(forward)
    def traced(*args: Any, **kwargs: Any) -> Any:
        switch.enabled, switch.thread = _CALLERS_GRAD_MODE, get_ident()
        query = patch("torch.is_grad_enabled", switch.is_grad_enabled)
        with query, patch("torch.autograd.grad_mode.torch", _torch_with(switch)), switch:
            return forward(*args, **kwargs)

    enable = torch.enable_grad.__enter__

    def enabling(context: Any) -> None:
        switch.enables = True
        enable(context)

    with patch.object(module, "forward", traced), patch.object(torch.enable_grad, "__enter__", enabling):
        yield switch


class _Switch(TorchFunctionMode):
    """Torch function mode that tracks whether gradients are enabled from the program's view, and marks new nodes with
    that."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled: int = _CALLERS_GRAD_MODE
        self.thread, self.enables = get_ident(), False
        self._last: dict[Graph, Node] = {}
        self._is_grad_enabled = torch.is_grad_enabled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func`, and marks the nodes that it creates. A switch of gradients only changes the tracked state."""
        if func is torch._C._set_grad_enabled:
            return self.set_grad_enabled(*args)
        result = func(*args, **(kwargs or {}))
        # Dynamo traces a branch of `torch.cond` and this method with it. `_mark` would then add nodes of its own.
        if not torch.compiler.is_dynamo_compiling():
            self._mark()
        return result

    def _mark(self) -> None:
        """Marks the nodes that were added to the graph since the last call, unless the caller's mode applies."""
        if (mode := get_proxy_mode()) is None:
            return
        graph: Graph = mode.tracer.graph
        end, node = self._last.get(graph), graph._root.prev
        self._last[graph] = node
        while node is not end and node is not graph._root and self.enabled is not _CALLERS_GRAD_MODE:
            node.meta["custom"] = {**node.meta.get("custom", {}), _GRAD: bool(self.enabled)}
            node = node.prev

    def set_grad_enabled(self, enabled: int) -> None:
        """Changes the tracked state, in the tracing thread. In other threads it changes PyTorch's own state."""
        if get_ident() != self.thread:
            return torch._C._set_grad_enabled(bool(enabled))
        self.enabled = enabled
        self.enables = self.enables or enabled is True
        return None

    def inference_mode(self, enabled: bool) -> AbstractContextManager[Any]:
        """Returns a context that replaces inference mode, which traced tensors do not support.

        In the tracing thread, enabling inference mode disables gradients.
        """
        return self._switched(not enabled) if get_ident() == self.thread else torch._C._InferenceMode(enabled)

    @contextmanager
    def _switched(self, enabled: bool) -> Generator[None]:
        before = self.enabled
        self.set_grad_enabled(enabled)
        try:
            yield
        finally:
            self.set_grad_enabled(before)

    def program_grad_mode(self) -> int:
        """Returns the tracked state in the tracing thread, and PyTorch's own state in other threads."""
        return self.enabled if get_ident() == self.thread else self._is_grad_enabled()

    def is_grad_enabled(self) -> int:
        """Returns the tracked state to the user's code, and PyTorch's own state to the exporter."""
        return self.program_grad_mode() if is_users(sys._getframe(1).f_code.co_filename) else self._is_grad_enabled()


class _Overlay:
    """Object that forwards to another object, with some attributes replaced."""

    def __init__(self, of: Any, **others: Any) -> None:
        self._of = of
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _torch_with(switch: _Switch) -> _Overlay:
    """Returns a replacement of `torch` for the context managers that switch gradients, connected to `switch`."""
    inner = _Overlay(torch._C, _set_grad_enabled=switch.set_grad_enabled, _InferenceMode=switch.inference_mode)
    return _Overlay(torch, _C=inner, is_grad_enabled=switch.program_grad_mode)
