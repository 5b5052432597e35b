"""Arguments on which results depend as autograd sees it, where that is not simply all of them.

y = x * w               # as called: {x, w} where gradients are enabled in the call, else nothing
with torch.no_grad():
    z = y.sin()         # nothing
    y.mul_(v)           # y as before
with torch.enable_grad():
    u = y.sin()         # what y depends on; with a `w` for `y`: {w} in every call

The exporter traces with gradients switched off, and knows nothing of parts of a program that switch them: nodes of such
parts are marked as they are traced.
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
    """Raises Retrace for a program that switches gradients, or asks whether they are enabled."""
    if function.__name__ == "is_grad_enabled" and not is_users(sys._getframe(3).f_code.co_filename):
        return NotImplemented
    raise Retrace(retraced)


def retraced(request: Request) -> ExportedProgram:
    """Returns the program with marks where it switches gradients."""
    with _marked_grad_mode(request.module) as switch:
        program = request.export(("gradients",))
    if switch.asked:
        request.export(("gradients",))  # which does not return where it comes to gradients that are computed
    return program


def traced(program: ExportedProgram, features: Features) -> tuple[Needs, Needs]:
    """Returns the dependences in calls where gradients are disabled, and in those where they are enabled."""
    off, on = (_needs(program, as_called) for as_called in (False, True))
    return off, on


def captured(program: CapturedProgram, features: Features) -> None:
    """Enters the arguments on which results depend."""
    if features.request.in_memory and (facts := features.facts.get("gradients")) is not None:
        changed = [features.names[argument] for _, argument in program.updates]
        program.needs = tuple(needs.numbered(features.names, changed) for needs in facts)


@dataclass
class Needs:
    """For each result the names of the arguments that it depends on, and the same for what arguments are changed to by
    what autograd records: an argument that is changed so is among them, one that is not is left out.

    Of a result that is a view of an argument there is something if autograd records the view.
    """

    results: list[frozenset[str]]
    changed: dict[str, frozenset[str]]

    def numbered(self, names: Sequence[str], changed: Sequence[str]) -> tuple[frozenset[int], ...]:
        """The entries of the results and then of the arguments `changed`, with places in `names` for the names, and
        without what has none: nothing is read of it."""
        entries = *self.results, *(self.changed.get(name, ()) for name in changed)
        return tuple(frozenset(names.index(n) for n in entry if n in names) for entry in entries)


def _needs(exported: ExportedProgram, as_called: bool) -> Needs:
    inputs = [n for n in exported.graph.nodes if n.op == "placeholder"]
    given = [_Tensor(_History({n.name} if may_require_grad(n) else set()), is_argument=True) for n in inputs]
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    results = zip(_walk(exported.graph_module, given, as_called), exported.graph.output_node().args[0], strict=True)  # pyright: ignore
    leaves = [
        _entry(tensor) if isinstance(node, Node) and may_require_grad(node) else frozenset[str]()
        for (tensor, node), kind in zip(results, kinds, strict=True)
        if kind == OutputKind.USER_OUTPUT
    ]
    changed = {n.name: frozenset(t.history.depends) for n, t in zip(inputs, given, strict=True) if t.history.changed}
    return Needs(leaves, changed)


@dataclass
class _History:
    """What tensors that are views of each other depend on, and whether autograd has recorded a change of them."""

    depends: set[str] = field(default_factory=set[str])
    changed: bool = False


@dataclass(frozen=True)
class _Tensor:
    """What a node is: with `is_argument` an argument, or a view of one if it is not None whether autograd has
    `recorded` all steps to it."""

    history: _History = field(default_factory=_History)
    is_argument: bool = False
    recorded: bool | None = None


_Value: TypeAlias = _Tensor | Sequence[_Tensor]
"""Of a node; several tensors for a graph in a graph only, as those of an operator depend on the same."""


def _entry(tensor: _Value) -> frozenset[str]:
    assert isinstance(tensor, _Tensor)
    unrecorded = tensor.is_argument and not tensor.recorded
    return frozenset(() if unrecorded else tensor.history.depends)


def _walk(module: GraphModule, given: Sequence[_Value], as_called: bool) -> list[_Value]:
    """The tensors that a graph returns for these; what is none is a tensor that depends on nothing."""
    graph: Graph = module.graph
    left, known = iter(given), dict[Node, _Value]()
    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = next(left)
        elif node.op == "call_function":
            known[node] = _called(module, node, known, _grad_enabled(node, as_called), as_called)
    leaves: Any = graph.output_node().args[0]
    return [known.get(n, _Tensor()) if isinstance(n, Node) else _Tensor() for n in leaves]


def _called(module: GraphModule, node: Node, known: Mapping[Node, _Value], records: bool, as_called: bool) -> _Value:
    if node.target is operator.getitem:
        value = known[node.args[0]]  # pyright: ignore[reportArgumentType]
        return value if isinstance(value, _Tensor) else value[node.args[1]]  # pyright: ignore
    inner = [(i, m) for i, a in enumerate(node.args) if (m := _submodule(module, a)) is not None]
    if len(inner) == 1:  # a part of the program under autocast
        ((i, part),) = inner
        operands = pytree.tree_leaves(node.args[i + 1 :])
        return _walk(part, [known.get(a, _Tensor()) for a in operands], as_called)
    read = {n: t for n in node.all_input_nodes if isinstance(t := known.get(n), _Tensor) and may_require_grad(n)}
    depends = {name for t in read.values() for name in t.history.depends}
    if isinstance(target := node.target, torch._ops.OpOverload):
        for written in _written(node, target):
            if records and written in read:  # whole numbers have no gradient
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
    found = getattr(module, str(value.target), None) if isinstance(value, Node) and value.op == "get_attr" else None
    return found if isinstance(found, GraphModule) else None


def _written(node: Node, target: torch._ops.OpOverload) -> list[Node]:
    names = [a.name for a in target._schema.arguments if a.alias_info and a.alias_info.is_write]
    given = named_arguments(node)
    return [n for name in names for n in pytree.tree_leaves(given.get(name)) if isinstance(n, Node)]


def _alias(node: Node, read: Collection[Node]) -> Node | None:
    values = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    return next((n for n in read if any(share(n.meta.get("val"), v) for v in values)), None)


_FRESH = ("aten::detach", "aten::lift_fresh_copy")
"""Operators whose result is none of autograd's views, though it shares memory as it was traced."""


def _differentiated(node: Node, target: torch._ops.OpOverload) -> Sequence[Node]:
    """The arguments of an operator of which it reads more than what they are like."""
    name = target._schema.name.removeprefix("aten::")
    if target._schema.name in _FRESH or name.endswith("_like") or name.startswith("new_"):
        return ()
    return node.all_input_nodes[:1] if name.endswith("_as") or name == "to" else node.all_input_nodes


_GRAD = "grad_enabled"
"""The mark, in what PyTorch keeps of a node for others."""


class _AsCalled(int):
    """Whether gradients are enabled where the program has not switched them: a matter of each call. It is true, and is
    what the program switches back to."""


_AS_CALLED = _AsCalled(True)


def _grad_enabled(node: Node, as_called: bool) -> bool:
    return node.meta.get("custom", {}).get(_GRAD, as_called)


@contextmanager
def _marked_grad_mode(module: torch.nn.Module) -> Generator[_Switch]:
    """While active, `module` is traced so. What it gives tells whether the program `asked` for gradients to be enabled:
    one that computes gradients itself does, and the trace is none of it then."""
    forward, switch = module.forward, _Switch()

    @functools.wraps(forward)
    def traced(*args: Any, **kwargs: Any) -> Any:
        switch.enabled, switch.thread = _AS_CALLED, get_ident()
        asked = patch("torch.is_grad_enabled", switch.is_grad_enabled)
        with asked, patch("torch.autograd.grad_mode.torch", _torch(switch)), switch:
            return forward(*args, **kwargs)

    enable = torch.enable_grad.__enter__

    def enabling(context: Any) -> None:
        switch.asked = True
        enable(context)

    with patch.object(module, "forward", traced), patch.object(torch.enable_grad, "__enter__", enabling):
        yield switch


class _Switch(TorchFunctionMode):
    """Whether gradients are enabled, as far as the program knows; what it does while it has switched them is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled: int = _AS_CALLED
        self.thread, self.asked = get_ident(), False
        self._last: dict[Graph, Node] = {}
        self._is_grad_enabled = torch.is_grad_enabled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, unless it is the switch."""
        if func is torch._C._set_grad_enabled:
            return self.set_grad_enabled(*args)
        result = func(*args, **(kwargs or {}))
        if not torch.compiler.is_dynamo_compiling():  # which traces this mode with a branch of a `torch.cond`
            self._mark()
        return result

    def _mark(self) -> None:
        """Mark the nodes that are new."""
        if (mode := get_proxy_mode()) is None:
            return
        graph: Graph = mode.tracer.graph
        end, node = self._last.get(graph), graph._root.prev
        self._last[graph] = node
        while node is not end and node is not graph._root and self.enabled is not _AS_CALLED:
            node.meta["custom"] = {**node.meta.get("custom", {}), _GRAD: bool(self.enabled)}
            node = node.prev

    def set_grad_enabled(self, enabled: int) -> None:
        """Take note that the program switches; another thread does it."""
        if get_ident() != self.thread:
            return torch._C._set_grad_enabled(bool(enabled))
        self.enabled = enabled
        self.asked = self.asked or enabled is True
        return None

    def inference_mode(self, enabled: bool) -> AbstractContextManager[Any]:
        """What stands in for the mode, of which tensors that are traced know nothing: it switches gradients, too."""
        return self._switched(not enabled) if get_ident() == self.thread else torch._C._InferenceMode(enabled)

    @contextmanager
    def _switched(self, enabled: bool) -> Generator[None]:
        before = self.enabled
        self.set_grad_enabled(enabled)
        try:
            yield
        finally:
            self.set_grad_enabled(before)

    def known(self) -> int:
        """What the program that is traced knows; another thread has its own answer."""
        return self.enabled if get_ident() == self.thread else self._is_grad_enabled()

    def is_grad_enabled(self) -> int:
        """The same for who asks in the user's code; the exporter itself has switched gradients off."""
        return self.known() if is_users(sys._getframe(1).f_code.co_filename) else self._is_grad_enabled()


class _Instead:
    """An object with others in place of some of its attributes."""

    def __init__(self, of: Any, **others: Any) -> None:
        self._of = of
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _torch(switch: _Switch) -> _Instead:
    """torch, for the context managers that switch gradients, and ask before whether they are enabled."""
    inner = _Instead(torch._C, _set_grad_enabled=switch.set_grad_enabled, _InferenceMode=switch.inference_mode)
    return _Instead(torch, _C=inner, is_grad_enabled=switch.known)
