"""Float8 arguments and results, which executors pass as bytes because their arrays have no such type."""

from __future__ import annotations

import torch

from ..arrays import FLOAT8
from ..importer import TracedGraph
from . import Features


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Sets `node.meta["viewed"]`, the data type of the caller's tensor, for every node of a float8 type."""
    for node in traced.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype in FLOAT8:
            node.meta["viewed"] = value.dtype
