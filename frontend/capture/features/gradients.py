"""Arguments on which results depend as autograd sees it, where that is not simply all of them.

y = x * w               # as called: {x, w} where gradients are enabled in the call, else nothing
with torch.no_grad():
    z = y.sin()         # nothing
    y.mul_(v)           # y as before
with torch.enable_grad():
    u = y.sin()         # what y depends on; with a `w` for `y`: {w} in every call
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ..aliasing import share
from ..captured_program import CapturedProgram
from ..gradients import grad_enabled, may_require_grad


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


def traced(exported: ExportedProgram) -> tuple[Needs, Needs]:
    """The dependences in calls where gradients are disabled, and in those where they are enabled."""
    off, on = (_needs(exported, as_called) for as_called in (False, True))
    return off, on


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
            known[node] = _called(module, node, known, grad_enabled(node, as_called), as_called)
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
    """The arguments that an operator changes in place."""
    names = [a.name for a in target._schema.arguments if a.alias_info and a.alias_info.is_write]
    given = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs
    return [n for name in names for n in pytree.tree_leaves(given.get(name)) if isinstance(n, Node)]


def _alias(node: Node, read: Collection[Node]) -> Node | None:
    """The argument that a result shares memory with."""
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


def captured(program: CapturedProgram, facts: tuple[Needs, Needs] | None, names: Sequence[str]) -> CapturedProgram:
    """Returns the program with the arguments that its results depend on."""
    changed = [names[argument] for _, argument in program.updates]
    return program if facts is None else replace(program, needs=tuple(n.numbered(names, changed) for n in facts))
