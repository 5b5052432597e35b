"""Results that share memory with an argument or with another result, and results with strides of their own.

def f(x):                  # x: [4, 8]
    y = x * 2              # result 0: contiguous
    return y, y.t(), x[0]  # result 1: part of the memory of result 0; result 2: view of argument x

The trace of the program has this information until changes in place are rewritten: tensors that share memory have one
storage there, and the strides that they have in eager PyTorch.
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
from ..aliasing import A_COPY, Place, ResultMemory, Step, place_of, share
from ..arrays import named_arguments
from ..captured_program import CapturedProgram
from ..eager_fallback import Operand
from ..importer import GraphImporter, TracedGraph, is_computed
from ..source_locations import at_node
from ..symbolic_shapes import depends_on_data
from . import Features


def traced(program: ExportedProgram, features: Features) -> Sequence[ResultMemory | None]:
    """Returns the memory of each result of a traced program; None for a result that is not a tensor.

    Raises UnsupportedError for a view of an argument that a call cannot create again.
    """
    inputs = {n.name for n in program.graph.nodes if n.op == "placeholder"}
    output: Any = program.graph.output_node().args[0]
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    results = [n for n, kind in zip(output, kinds, strict=True) if kind == OutputKind.USER_OUTPUT]
    changed_to = [_tensor(n) for n, kind in zip(output, kinds, strict=True) if kind != OutputKind.USER_OUTPUT]
    if any(share(_tensor(n), value) for n in results for value in changed_to):
        reason = "a result that shares memory with a changed argument, in a program with a transform, is not supported"
        raise UnsupportedError(reason)
    memories: list[ResultMemory | None] = []
    for node in results:
        value = _tensor(node)
        memory = None if value is None else ResultMemory(shares=len(memories), place=place_of(value))
        memories.append(memory and (_view_of_input(node, inputs) or memory))
    return memories if len(memories) == 1 else _with_shared_memory(memories, results)


def decomposed(program: ExportedProgram, features: Features) -> None:
    """Returns arguments from the graph in place of their views, and removes operators that only the views need.

    Each call then creates the views from its arguments.
    """
    memories, output = _result_memories(features), program.graph.output_node()
    if any(memory and memory.source for memory in memories):
        inputs = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
        leaves: list[Any] = list(output.args[0])  # pyright: ignore[reportArgumentType]
        others = len(leaves) - len(memories)
        viewed = [
            inputs[memory.source] if memory and memory.source else leaf
            for memory, leaf in zip(memories, leaves[others:], strict=True)
        ]
        output.args = ((*leaves[:others], *viewed),)
        program.graph.eliminate_dead_code()


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Rewrites the graph so that each result's memory is returned as a dense tensor, also for results that share it."""
    memories, leaves, written = _result_memories(features), list(traced.leaves), dict[Node, Node]()
    results = [leaves[i] for i in traced.results]
    for i, (memory, leaf) in enumerate(zip(memories, results, strict=False)):
        if memory and memory.place and memory.shares == i and is_computed(leaf) and leaf not in written:
            written[leaf] = memory.place.written(traced.graph, leaf)
    for number, memory in zip(traced.results, memories, strict=False):
        if memory and not memory.source:
            leaves[number] = written.get(results[memory.shares], results[memory.shares])
    traced.graph.output_node().args = (tuple(leaves),)


def imported(importer: GraphImporter, features: Features) -> Sequence[ResultMemory | None]:
    """Returns the memories with PyTorch's symbolic sizes replaced by sizes of the IR, in the steps of views."""
    return [
        x and replace(x, steps=tuple(s.sized(importer.extent) for s in x.steps)) for x in _result_memories(features)
    ]


def captured(program: CapturedProgram, features: Features) -> None:
    """Adds to each output of the captured program the steps of its view, or its place in a returned tensor's memory."""
    outputs = list(program.outputs)
    for i, memory in enumerate(_result_memories(features)):
        # The graph returns an argument itself for a view of it, and where PyTorch has removed a copy of it.
        if memory is not None and outputs[i].kind == "argument":
            outputs[i] = replace(outputs[i], steps=memory.steps if memory.source else (A_COPY,))
        elif memory is not None:
            outputs[i] = replace(outputs[i], place=memory.place)
    program.outputs = tuple(outputs)


def _result_memories(features: Features) -> Sequence[ResultMemory | None]:
    """Returns the memory of each result; empty if the request does not ask for it, or it is not known."""
    return features.facts.get("aliasing", ()) if features.request.in_memory else ()


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _view_of_input(node: Node, inputs: Collection[str]) -> ResultMemory | None:
    """Returns the argument that `node` is a view of, with the steps of the view, or None if it is no view of an
    argument."""
    result, view = node, _tensor(node)
    view_operators: list[tuple[Node, torch._ops.OpOverload, Node, int | None]] = []
    part = None
    while node.name not in inputs:
        if node.target is operator.getitem:
            part, node = int(node.args[1]), node.all_input_nodes[0]  # pyright: ignore[reportArgumentType]
            continue
        parents = [p for p in node.all_input_nodes if share(_tensor(p), view)]
        target = node.target
        if not parents or not isinstance(target, torch._ops.OpOverload) or target is _FRESH:
            return None
        parents.sort(key=lambda p, view=view: _geometry(_tensor(p)) != _geometry(view))
        if not _returns_argument(target):
            view_operators.append((node, target, parents[0], part))
        elif not target._schema.is_mutable and _geometry(_tensor(parents[0])) != _geometry(view):
            # An operator that is a view inside, such as `einsum("ij->ji", x)`. Its schema names no alias.
            if len(node.all_input_nodes) > 1:
                return None
            view_operators.append((node, target, parents[0], part))
        node, part, view = parents[0], None, _tensor(parents[0])
    with at_node(result):
        steps = [
            Step(target, pytree.tree_map(lambda a, p=parent: _argument(a, p), _all_arguments(viewed, target)), part)
            for viewed, target, parent, part in reversed(view_operators)
        ]
    return ResultMemory(node.name, tuple(steps))


def _geometry(value: torch.Tensor | None) -> str:
    return "" if value is None else str((value.shape, value.stride(), value.storage_offset()))


def _returns_argument(target: torch._ops.OpOverload) -> bool:
    """Returns true if an operator whose result shares memory with an argument returned that argument itself.

    This is the case after a change in place, and for operators that had nothing to do, such as `type_as` for a tensor
    of that type.
    """
    schema = target._schema
    return schema.is_mutable or schema.name == "aten::to" or not any(a.alias_info for a in schema.arguments)


_FRESH = torch.ops.aten.lift_fresh_copy.default
"""Operator that copies a constant of the program to a new tensor. In the trace, both share memory."""


def _all_arguments(node: Node, target: torch._ops.OpOverload) -> tuple[Any, ...]:
    """Returns the positional arguments of a call, with defaults.

    Raises UnsupportedError if an argument that is keyword-only differs from its default.
    """
    named = named_arguments(node)
    if any(a.kwarg_only and named.get(a.name) not in (None, a.default_value) for a in target._schema.arguments):
        reason = "a result that is a view made with such arguments is not supported"
        raise UnsupportedError(reason, operator=str(target))
    return tuple(named.get(a.name, a.default_value) for a in target._schema.arguments if not a.kwarg_only)


def _argument(value: Any, tensor: Node) -> Any:
    if value is tensor:
        return Operand(0)
    number = value.meta.get("val") if isinstance(value, Node) else value
    if isinstance(number, torch.Tensor) or depends_on_data(number):
        reason = "a result is a view of an argument at a place that is computed, which is not supported"
        raise UnsupportedError(reason, remedy="return a copy (x[:n].clone())")
    return number


def _with_shared_memory(memories: list[ResultMemory | None], nodes: Sequence[Any]) -> list[ResultMemory | None]:
    """Returns the memories with `shares` set for results in the memory of another result.

    That other result must have every element of the storage, and the same data type.
    """
    values = [_tensor(n) for n in nodes]
    for i, (memory, value) in enumerate(zip(memories, values, strict=True)):
        if memory is None or memory.source or value is None or not _is_static(value):
            continue
        same = [j for j, w in enumerate(values) if memories[j] and w is not None and share(value, w) and _is_static(w)]
        owner = next((j for j in same if _is_all(values[j])), i)
        whole = values[owner]
        if owner != i and whole is not None and whole.dtype == value.dtype and nodes[owner] is not nodes[i]:
            offset = int(value.storage_offset() - whole.storage_offset())
            place = Place((), (), (tuple(value.shape), tuple(value.stride()), offset))
            memories[i] = replace(memory, shares=owner, place=place)
    return memories


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _is_all(value: torch.Tensor | None) -> bool:
    """Returns true if a traced tensor has every element of its storage exactly once."""
    if value is None:
        return False
    place = place_of(value)
    full = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return full and (value.is_contiguous() or place is not None and not place.gaps and not place.once)
