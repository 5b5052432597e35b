"""Builds small ONNX models: from nodes, and an MLP whose batch varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Any],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 18,
    **options: Any,
) -> Any:
    """Returns a model of nodes.

    Args:
        nodes: the nodes in their order.
        inputs: name -> shape of f32, or (type, shape).
        outputs: names of the results.
        constants: name -> elements.
        opset: version of ONNX's operator set.
        options: further arguments of `make_model`; `opsets` is a list of further operator sets.
    """
    kinds = {n: v if isinstance(v, tuple) else (FLOAT, v) for n, v in inputs.items()}
    graph = helper.make_graph(
        [*nodes],
        "test",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in kinds.items()],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *options.pop("opsets", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(
        op, inputs.split(","), outputs.split(","), name=f"the_{outputs.split(',')[0]}", **attributes
    )


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


MLP = model(
    [
        node("Gemm", "x,w,b", "h", transB=1),
        node("Relu", "h", "r"),
        node("Shape", "r", "s"),
        node("Gather", "s,zero", "n", axis=0),
        node("Concat", "n,rest", "to", axis=0),
        node("Reshape", "r,to", "y"),
        node("Softmax", "y", "z", axis=-1),
    ],
    {"x": ["batch", 8]},
    ["z"],
    {"w": f32(12, 8), "b": f32(12), "zero": np.array([0]), "rest": np.array([3, 4])},
)


def copied() -> Any:
    """Returns a copy of `MLP`. Saving external data changes a model."""
    m = onnx.ModelProto()
    m.CopyFrom(MLP)
    return m
