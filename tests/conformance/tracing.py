"""Fast capture of functions of tensors for the conformance tests, without `torch.export`.

`make_fx` with functionalisation and the same table of decompositions takes milliseconds; an export takes a fraction of
a second. The later steps are those of the real capture. Tests compare the verdicts of both captures on some samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from deplodock.errors import CompileError
from deplodock.frontend.capture.captured_program import CapturedProgram
from deplodock.frontend.capture.decompositions.table import tables
from deplodock.frontend.capture.export import capture
from deplodock.frontend.capture.features import FEATURES
from deplodock.frontend.capture.features.complex import without_rule
from deplodock.frontend.capture.features.known_indices import index_by_tensors
from deplodock.frontend.capture.graph_capture import capture_graph
from deplodock.frontend.capture.refusals import refusal_of
from deplodock.frontend.capture.tracing import quiet, stand_ins


class Tracer:
    """Traces functions with a table of decompositions. Created by `with tracer() as ...:`."""

    def __init__(self, python_table: Mapping[Any, Any]) -> None:
        self._table = python_table

    def trace(self, function: Callable[..., Sequence[Any]], tensors: Sequence[torch.Tensor]) -> CapturedProgram:
        """Traces `function(*tensors)`, which returns a flat list.

        Raises CaptureError if PyTorch raises while it traces, and the errors of `capture_graph`.
        """
        functional = torch.func.functionalize(function, remove="mutations")
        try:
            known_sizes = stand_ins([f for f in FEATURES if f.name == "known_sizes"])
            with torch.no_grad(), quiet(), enable_python_dispatcher(), known_sizes:
                graph = make_fx(functional, decomposition_table=self._table, tracing_mode="fake", **_TAKES_CONSTANTS)(
                    *tensors
                )
                if any(_is_mutable(node) for node in graph.graph.nodes):
                    # A decomposition with in-place operators was inlined after functionalisation.
                    again = torch.func.functionalize(graph, remove="mutations")
                    graph = make_fx(again, decomposition_table=self._table, tracing_mode="fake", **_TAKES_CONSTANTS)(
                        *tensors
                    )
        except CompileError:
            raise
        except Exception as error:  # whatever PyTorch raises
            if "mutating a non-functional tensor" in str(error):  # decompositions do, of constants' views
                return Exporter().trace(function, tensors)
            raise refusal_of(error) from error
        graph.graph.eliminate_dead_code()
        index_by_tensors(graph.graph)
        updated = _take_updates(graph)
        unknown = any(_is_mutable(node) or node.target in _STATEFUL for node in graph.graph.nodes)
        if unknown or without_rule(graph.graph):
            return Exporter().trace(function, tensors)  # which knows how to do without
        return capture_graph(graph, updated=updated)


class Exporter:
    """A tracer that uses the real capture, by `torch.export`."""

    def trace(self, function: Callable[..., Sequence[Any]], tensors: Sequence[torch.Tensor]) -> CapturedProgram:
        """Captures `function(*tensors)`. See `Tracer.trace`."""
        return capture(lambda *args: list(function(*args)), tensors)


Capture = Tracer | Exporter


@contextmanager
def tracer() -> Iterator[Tracer]:
    """Yields a tracer. Its table does not decompose operators that deplodock lowers itself."""
    composite, others = tables()
    with _override_composite_implicit_decomp(dict(composite)):
        yield Tracer(others)


_TAKES_CONSTANTS: dict[str, Any] = {"_allow_non_fake_inputs": True}
"""Option of `make_fx`: a function may close over tensors, which become constants of its program."""

_STATEFUL = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.batch_norm.default)
"""Operators that change their arguments although their schemas do not declare it."""


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _take_updates(graph: torch.fx.GraphModule) -> list[str]:
    """Turns the final `copy_` calls, with which functionalisation updates arguments, into additional results.

    Returns the names of the updated arguments.
    """
    output = graph.graph.output_node()
    values, names = list[Any](output.args[0]), list[str]()
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder" and not node.users:
            names.append(node.args[0].name)
            values.append(node.args[1])
            graph.graph.erase_node(node)
    output.args = (values,)
    return names
