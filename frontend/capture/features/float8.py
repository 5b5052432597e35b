"""Floats of eight bits, which executors know as bytes."""

from __future__ import annotations

import torch

from ..arrays import FLOAT8
from ..importer import TracedGraph
from . import Features


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Marks the arguments and results whose bytes executors know."""
    for node in traced.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype in FLOAT8:
            node.meta["viewed"] = value.dtype
