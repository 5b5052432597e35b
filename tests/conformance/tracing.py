"""Fast capture for the conformance run: a function of tensors as a program, without `torch.export`.

`make_fx` over functionalised PyTorch with the same selective table of decompositions takes milliseconds where an
export takes a fraction of a second. A slice of the samples goes through the real capture as well, and both must give
the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.export import default_decompositions, exported_program as export_internals
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

from deplodock.errors import CaptureError, UnsupportedError
from deplodock.frontend import capture as capturing
from deplodock.frontend.importing import GraphImporter
from deplodock.frontend.known_sizes import known_sizes


@dataclass(frozen=True)
class Traced:
    """A program at the torch level; `sources` says what every leaf of the result is.

    A leaf is ("result", i), ("argument", i), or ("constant", value); `leading` and `constants` are further arguments of
    `@main`, in front of the function's and behind, and `updates` pairs (argument, result) of arguments that the program
    changes in place. A program that `draws` random numbers draws others than PyTorch. `checks` are pairs (result,
    message) of results that have to be true: otherwise the program stops with that message.
    """

    module: ModuleOp
    sources: tuple[tuple[str, Any], ...]
    constants: tuple[torch.Tensor, ...]
    updates: tuple[tuple[int, int], ...] = ()
    draws: bool = False
    leading: tuple[torch.Tensor, ...] = ()
    checks: tuple[tuple[int, str], ...] = ()


class Tracer:
    """Traces functions under one table of decompositions; use it inside `with tracer():`."""

    def __init__(self, python_table: dict[Any, Any]) -> None:
        self._table = python_table

    def trace(self, function: Callable[..., Sequence[Any]], tensors: Sequence[torch.Tensor]) -> Traced:
        """Trace `function(*tensors)`, which returns a flat list.

        Raises CaptureError for whatever PyTorch raises while tracing, and the errors of the importer.
        """
        functional = torch.func.functionalize(function, remove="mutations")
        try:
            with torch.no_grad(), capturing._quiet(), enable_python_dispatcher(), known_sizes():
                graph = make_fx(functional, decomposition_table=self._table, tracing_mode="fake", **_TAKES_CONSTANTS)(
                    *tensors
                )
                if any(_is_mutable(node) for node in graph.graph.nodes):
                    # A decomposition written with in-place operators came in behind functionalisation.
                    again = torch.func.functionalize(graph, remove="mutations")
                    graph = make_fx(again, decomposition_table=self._table, tracing_mode="fake", **_TAKES_CONSTANTS)(
                        *tensors
                    )
        except Exception as error:  # whatever PyTorch raises
            if "mutating a non-functional tensor" in str(error):  # decompositions do, of constants' views
                return Exporter().trace(function, tensors)
            raise CaptureError(capturing._reason(error)) from error
        graph.graph.eliminate_dead_code()
        if any(_is_mutable(node) or node.target in _STATEFUL for node in graph.graph.nodes):
            return Exporter().trace(function, tensors)  # which knows how to do without
        return _import(graph)


class Exporter:
    """The same by the real capture, through `torch.export`."""

    def trace(self, function: Callable[..., Sequence[Any]], tensors: Sequence[torch.Tensor]) -> Traced:
        """As `Tracer.trace`."""
        program = capturing.capture(lambda *args: tuple(function(*args)), tensors)
        sources = tuple((o.kind, o.value if o.kind == "constant" else o.index) for o in program.outputs)
        bound = program.bindings
        first = next((i for i, b in enumerate(bound) if b.kind == "input"), 0)
        inputs = bound[first : first + len(tensors)]
        if [b.leaf for b in inputs] != list(range(len(tensors))):
            raise CaptureError("the arguments are not the function's, in their order")
        leading, constants = (
            tuple(_generator(b.leaf) if b.kind == "generator" else b.tensor for b in part)
            for part in (bound[:first], bound[first + len(tensors) :])
        )
        updates = tuple((argument, result) for result, argument in program.updates)
        return Traced(program.module, sources, constants, updates, program.draws, leading, program.checks)


Capture = Tracer | Exporter


@contextmanager
def tracer() -> Iterator[Tracer]:
    """A tracer whose table leaves alone what deplodock decomposes by itself."""
    table = default_decompositions()
    for target in [t for t in table if capturing.is_ours(t)]:
        del table[target]
    composite, python_table = export_internals._split_decomp_table_to_cia_and_python_decomp(table)
    with export_internals._override_composite_implicit_decomp(composite):
        yield Tracer(python_table)


_TAKES_CONSTANTS: dict[str, Any] = {"_allow_non_fake_inputs": True}
"""A function may close over tensors, which become constants of its program."""

_STATEFUL = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.batch_norm.default)
"""Operators that change their arguments without their schema saying so."""


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _take_updates(graph: torch.fx.GraphModule) -> list[tuple[Node, Node]]:
    """Remove the final `copy_` into arguments that functionalisation leaves, as pairs (argument, new value)."""
    found: list[tuple[Node, Node]] = []
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder" and not node.users:
            found.append((node.args[0], node.args[1]))
            graph.graph.erase_node(node)
    return found


def _import(graph: torch.fx.GraphModule) -> Traced:
    updates = _take_updates(graph)
    nodes = list(graph.graph.nodes)
    arguments = [(node.name, node) for node in nodes if node.op == "placeholder"]
    constants: list[torch.Tensor] = []
    importer = GraphImporter()
    for node in [n for n in nodes if n.op == "get_attr"]:
        value = getattr(graph, str(node.target))
        node.op, node.meta["val"] = "placeholder", value
        constants.append(value)
        arguments.append((node.name, node))
    importer.declare(arguments)
    importer.run(nodes)
    sources: list[tuple[str, Any]] = []
    for leaf in nodes[-1].args[0]:
        if not isinstance(leaf, Node):
            sources.append(("constant", leaf))
        elif importer.argument_index(leaf.name) is not None:
            sources.append(("argument", importer.argument_index(leaf.name)))
        elif isinstance(leaf.meta.get("val"), torch.Tensor):
            sources.append(("result", importer.result_index(leaf.name)))
        else:
            raise UnsupportedError("the result is not a tensor", operator=str(leaf.target))
    changed = tuple((importer.argument_index(a.name) or 0, importer.result_index(v.name)) for a, v in updates)
    drawing = importer.generators
    constants += [_generator(i) for i in range(drawing)]
    checks = tuple((importer.result_index(name), message) for name, message in importer.checks)
    module = importer.finish()
    return Traced(module, tuple(sources), tuple(constants), changed, drawing > 0, checks=checks)


def _generator(number: int) -> torch.Tensor:
    return torch.tensor([1234567, number])
