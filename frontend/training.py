"""Graphs with their gradients: AOTAutograd makes a forward and a backward graph, and both are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from .api import CompiledFunction
from .capture.decompositions.table import decomposition_table
from .capture.graph_capture import capture_graph
from .capture.known_sizes import known_sizes


def compile_with_gradients(graph: nn.Module, examples: Sequence[Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """The graph, compiled for tensors of these shapes, such that results can be differentiated.

    What the backward graph needs is saved by the forward graph, or computed again (PyTorch's partitioner decides).
    Attention is differentiated as the products and the softmax that it is made of. Raises CompileError for an operator
    of either graph that is not supported; with `fallback="eager"` it is left to PyTorch and listed.
    """

    def compiler(part: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        how = {name: value for name, value in options.items() if name != "fallback"}
        program = CompiledFunction(capture_graph(part, options.get("fallback")), **how)
        program.check()

        def run(*args: Any) -> list[Any]:
            with torch.no_grad():
                return list(program(*args))

        return make_boxed_func(run)

    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=dict(decomposition_table()),
    )
    with sdpa_kernel(SDPBackend.MATH), known_sizes():
        return backend(graph, examples)  # pyright: ignore[reportArgumentType]
