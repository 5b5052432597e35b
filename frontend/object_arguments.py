"""Arguments of a graph that are no plain tensors or numbers: wrappers of tensors, and objects of PyTorch.

A `DTensor` is a wrapper: AOTAutograd replaces it by its local tensor. A `DeviceMesh` is an object: AOTAutograd passes
it through the forward and the backward graph, and no operator reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._library.fake_class_registry import FakeScriptObject
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Returns true for a tensor that AOTAutograd replaces by the tensors that it wraps, such as a `DTensor`."""
    return is_traceable_wrapper_subclass(tensor) and not tensor.is_nested


def is_object(value: Any) -> bool:
    """Returns true for an argument that is an object of PyTorch, such as a `DeviceMesh`."""
    others = (torch.Tensor, int, float, complex, str, torch.SymInt, torch.SymFloat, torch.SymBool)
    return value is not None and not isinstance(value, others)


def object_arguments(graph: Graph) -> list[Node]:
    """Returns the arguments of a graph that are objects of PyTorch, such as a `DeviceMesh`."""
    arguments = graph.find_nodes(op="placeholder")
    return [n for n in arguments if isinstance(n.meta.get("val"), FakeScriptObject) and _only_returned(n)]


def _only_returned(node: Node) -> bool:
    return all(user.op == "output" for user in node.users)


def with_objects(
    compiler: Callable[..., Callable[..., Any]], part: GraphModule, objects: Sequence[Node]
) -> Callable[..., Any]:
    """Compiles a graph without the arguments that are objects.

    Args:
        compiler: compiler of a graph of tensors.
        part: the graph. It is changed.
        objects: its arguments that are objects.

    Returns:
        a function of all arguments that returns all results.
    """
    graph, output = part.graph, part.graph.output_node()
    positions = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    results: Sequence[Any] = output.args[0]  # pyright: ignore[reportAssignmentType]
    passed = {i: positions[r] for i, r in enumerate(results) if r in objects}
    output.args = ([r for i, r in enumerate(results) if i not in passed],)
    removed = {positions[node] for node in objects}
    for node in objects:
        graph.erase_node(node)
    part.recompile()
    program = compiler(part, ())

    def run(*args: Any) -> list[Any]:
        computed = list(program([a for i, a in enumerate(args) if i not in removed]))
        for i, position in sorted(passed.items()):
            computed.insert(i, args[position])
        return computed

    return make_boxed_func(run)
