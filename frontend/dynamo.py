"""Graphs of Dynamo's in which sizes vary: it hands those over as arguments, in front of the tensors that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from ..errors import UnsupportedError

LARGEST = 65535
"""The largest value of a size that varies; Dynamo takes every such size for at least 2."""


class TensorsOnly(nn.Module):
    """A graph as a function of its tensors: the sizes among its arguments are read off them.

    Raises UnsupportedError for a size that is the extent of no tensor.
    """

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph
        values = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"]
        self.tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
        places: dict[str, tuple[int, int]] = {}
        self.shapes: list[dict[int, Any]] = []
        dims: dict[str, Any] = {}
        for position, i in enumerate(self.tensors):
            spec: dict[int, Any] = {}
            for d, n in enumerate(values[i].shape):
                if isinstance(n, torch.SymInt):
                    name = str(n)
                    places.setdefault(name, (position, d))
                    dims.setdefault(name, Dim(f"s{len(dims)}", min=2, max=LARGEST) if name.isidentifier() else Dim.AUTO)
                    spec[d] = dims[name]
            self.shapes.append(spec)
        self.sources: list[int | tuple[int, int]] = []
        for i, v in enumerate(values):
            if i in self.tensors:
                self.sources.append(self.tensors.index(i))
            elif str(v) in places:
                self.sources.append(places[str(v)])
            else:
                raise UnsupportedError(f"an argument {v} that is the size of no tensor is not supported")

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The graph on its tensors."""
        full = [tensors[s] if isinstance(s, int) else tensors[s[0]].shape[s[1]] for s in self.sources]
        return self.graph(*full)

    def chosen(self, arguments: Sequence[Any]) -> list[Any]:
        """The tensors among the arguments of the graph."""
        return [arguments[i] for i in self.tensors]
