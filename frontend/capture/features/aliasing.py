"""Results that are views of arguments or parts of other results, or that have strides of their own.

PyTorch knows it of the program as it was traced, before what changes tensors in place was rewritten: tensors that share
memory there share their storage, and have the strides that eager PyTorch gives.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ....errors import UnsupportedError
from ..aliasing import A_COPY, Lies, Place, Step, place_of, share
from ..arrays import named_arguments
from ..captured_program import CapturedProgram
from ..eager_fallback import Operand
from ..importer import GraphImporter, TracedGraph, is_computed
from ..source_locations import at_node
from ..symbolic_shapes import depends_on_data
from . import Features


def traced(program: ExportedProgram, features: Features) -> Sequence[Lies | None]:
    """Returns where each of the results of a program lies, as it was traced; None for what is no tensor.

    Raises UnsupportedError for a view of an input that cannot be made again.
    """
    inputs = {n.name for n in program.graph.nodes if n.op == "placeholder"}
    output: Any = program.graph.output_node().args[0]
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    results = [n for n, kind in zip(output, kinds, strict=True) if kind == OutputKind.USER_OUTPUT]
    changed_to = [_tensor(n) for n, kind in zip(output, kinds, strict=True) if kind != OutputKind.USER_OUTPUT]
    if any(share(_tensor(n), value) for n in results for value in changed_to):
        reason = "a result that is what an argument was changed to, in a program with a transform, is not supported"
        raise UnsupportedError(reason)
    found: list[Lies | None] = []
    for node in results:
        value = _tensor(node)
        own = None if value is None else Lies(shares=len(found), place=place_of(value))
        found.append(own and (_view_of_input(node, inputs) or own))
    return found if len(found) == 1 else _sharing(found, results)


def decomposed(program: ExportedProgram, features: Features) -> None:
    """Removes what only results need that are views of arguments: the program returns the arguments."""
    lies, output = _lies(features), program.graph.output_node()
    if any(x and x.source for x in lies):
        inputs = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
        leaves: list[Any] = list(output.args[0])  # pyright: ignore[reportArgumentType]
        others = len(leaves) - len(lies)
        viewed = [inputs[x.source] if x and x.source else leaf for x, leaf in zip(lies, leaves[others:], strict=True)]
        output.args = ((*leaves[:others], *viewed),)
        program.graph.eliminate_dead_code()


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Lets the graph return the memory of each result, in which other results may lie, as a dense tensor."""
    lies, leaves, written = _lies(features), list(traced.leaves), dict[Node, Node]()
    results = [leaves[i] for i in traced.results]
    for i, (x, leaf) in enumerate(zip(lies, results, strict=False)):
        if x and x.place and x.shares == i and is_computed(leaf) and leaf not in written:
            written[leaf] = x.place.written(traced.graph, leaf)
    for number, x in zip(traced.results, lies, strict=False):
        if x and not x.source:
            leaves[number] = written.get(results[x.shares], results[x.shares])
    traced.graph.output_node().args = (tuple(leaves),)


def imported(importer: GraphImporter, features: Features) -> Sequence[Lies | None]:
    """Gives the steps to views of arguments the sizes of the program."""
    return [x and replace(x, steps=tuple(s.sized(importer.extent) for s in x.steps)) for x in _lies(features)]


def captured(program: CapturedProgram, features: Features) -> None:
    """Enters the steps to results that are views of arguments, and the places of the others."""
    outputs = list(program.outputs)
    for i, x in enumerate(_lies(features)):
        if x is not None and outputs[i].kind == "argument":  # PyTorch left out the copy of an argument with a place
            outputs[i] = replace(outputs[i], steps=x.steps if x.source else (A_COPY,))
        elif x is not None:
            outputs[i] = replace(outputs[i], place=x.place)
    program.outputs = tuple(outputs)


def _lies(features: Features) -> Sequence[Lies | None]:
    """Returns where the results lie; empty if that does not matter, or is not known."""
    return features.facts.get("aliasing", ()) if features.request.in_memory else ()


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _view_of_input(node: Node, inputs: Collection[str]) -> Lies | None:
    """The way from an input to `node`, if they share memory."""
    result, view = node, _tensor(node)
    way: list[tuple[Node, torch._ops.OpOverload, Node, int | None]] = []
    part = None
    while node.name not in inputs:
        if node.target is operator.getitem:
            part, node = int(node.args[1]), node.all_input_nodes[0]  # pyright: ignore[reportArgumentType]
            continue
        parents = [p for p in node.all_input_nodes if share(_tensor(p), view)]
        target = node.target
        if not parents or not isinstance(target, torch._ops.OpOverload) or target is _FRESH:
            return None
        if _gives_itself(target):
            parents.sort(key=lambda p, view=view: _geometry(_tensor(p)) != _geometry(view))
        else:
            way.append((node, target, parents[0], part))
        node, part, view = parents[0], None, _tensor(parents[0])
    with at_node(result):
        steps = [
            Step(target, pytree.tree_map(lambda a, p=parent: _argument(a, p), _all_arguments(viewed, target)), part)
            for viewed, target, parent, part in reversed(way)
        ]
    return Lies(node.name, tuple(steps))


def _geometry(value: torch.Tensor | None) -> str:
    return "" if value is None else str((value.shape, value.stride(), value.storage_offset()))


def _gives_itself(target: torch._ops.OpOverload) -> bool:
    """Whether an operator whose result shares memory with an argument gives that argument: it changed it in place, or
    had nothing to do, as `type_as` does for a tensor of that type."""
    schema = target._schema
    return schema.is_mutable or schema.name == "aten::to" or not any(a.alias_info for a in schema.arguments)


_FRESH = torch.ops.aten.lift_fresh_copy.default
"""Makes a tensor of a constant in the program; traced, both share memory."""


def _all_arguments(node: Node, target: torch._ops.OpOverload) -> tuple[Any, ...]:
    """All arguments that can be given by position; those that cannot have to be the defaults."""
    given = named_arguments(node)
    if any(a.kwarg_only and given.get(a.name) not in (None, a.default_value) for a in target._schema.arguments):
        reason = "a result that is a view made with such arguments is not supported"
        raise UnsupportedError(reason, operator=str(target))
    return tuple(given.get(a.name, a.default_value) for a in target._schema.arguments if not a.kwarg_only)


def _argument(value: Any, tensor: Node) -> Any:
    if value is tensor:
        return Operand(0)
    found = value.meta.get("val") if isinstance(value, Node) else value
    if isinstance(found, torch.Tensor) or isinstance(found, torch.SymInt) and depends_on_data(found):
        raise UnsupportedError("a result is a view of an argument at a place that is computed, which is not supported")
    return found


def _sharing(found: list[Lies | None], nodes: Sequence[Any]) -> list[Lies | None]:
    """Results that share memory with another one that has all of it are parts of that one's."""
    values = [_tensor(n) for n in nodes]
    for i, (lies, value) in enumerate(zip(found, values, strict=True)):
        if lies is None or lies.source or value is None or not _is_static(value):
            continue
        same = [j for j, w in enumerate(values) if found[j] and w is not None and share(value, w) and _is_static(w)]
        owner = next((j for j in same if _is_all(values[j])), i)
        whole = values[owner]
        if owner != i and whole is not None and whole.dtype == value.dtype and nodes[owner] is not nodes[i]:
            offset = int(value.storage_offset() - whole.storage_offset())
            place = Place((), (), (tuple(value.shape), tuple(value.stride()), offset))
            found[i] = replace(lies, shares=owner, place=place)
    return found


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _is_all(value: torch.Tensor | None) -> bool:
    """Whether a traced tensor has every element of its storage once."""
    if value is None:
        return False
    place = place_of(value)
    full = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return full and (value.is_contiguous() or place is not None and not place.gaps and not place.once)
