"""Reads, checks and converts ONNX models. Nothing in a file is executed, and no file outside of its folder is read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto
from onnx.external_data_helper import load_external_data_for_model

from .limits import check_nodes, graphs_of
from .values import OnnxError, reason_of

OLDEST = 13
"""Oldest version of the operator set that rules handle; models of older versions are converted."""

LARGEST_CHECKED_BYTES = 1 << 16
"""Constants up to this size are passed to the checker of onnx, which takes no models of more than 2 GiB."""

DOMAINS = ("", "ai.onnx")
"""Names of the domain of ONNX itself."""


def domain_of(entry: NodeProto | OperatorSetIdProto) -> str:
    """Returns the domain of a node or an operator set. The domain of ONNX itself is empty."""
    return "" if entry.domain in DOMAINS else entry.domain


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """Returns the model in a file, checked and converted to an operator set that rules handle.

    Raises:
        OnnxError: if the file is no valid model.
    """
    file = os.fspath(path)
    try:
        model = onnx.load(file, load_external_data=False)
        check(model)
        load_external_data_for_model(model, os.path.dirname(os.path.abspath(file)))
    except FileNotFoundError as error:
        raise OnnxError("there is no such file", location=error.filename or file) from None
    except OnnxError as error:
        raise OnnxError(error.reason, location=file) from None
    except Exception as error:  # onnx and protobuf raise errors of many kinds for damaged files
        raise OnnxError(f"is no valid ONNX model: {reason_of(error)}", location=file) from None
    return prepared(model, file)


def check(model: ModelProto) -> None:
    """Raises an error of onnx if a model is not valid. Results of unknown shape are allowed, and data in other files.

    Data in other files is read later, and that checks where they are. Large constants are checked when they are read.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()
    without_data = list[tuple[TensorProto, list[int]]]()
    for tensor in _constants(copy.graph):
        if tensor.data_location == TensorProto.EXTERNAL or len(tensor.raw_data) > LARGEST_CHECKED_BYTES:
            without_data.append((tensor, [*tensor.dims]))
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b""))
    onnx.checker.check_model(copy)
    _check_versions(copy)
    check_nodes(copy)
    for tensor, sizes in without_data:
        tensor.dims[:] = sizes
    onnx.shape_inference.infer_shapes(copy, check_type=True)


def _check_versions(model: ModelProto) -> None:
    domains = [domain_of(o) for o in model.opset_import]
    if twice := [d for d in domains if domains.count(d) > 1]:
        raise OnnxError(f"expected one operator set for each domain, but got several for {twice[0] or 'ai.onnx'!r}")


def _constants(graph: GraphProto) -> Iterator[TensorProto]:
    """Yields the tensors that a graph and its subgraphs have as constants or attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
            for inner in graphs_of(attribute):
                yield from _constants(inner)


def prepared(model: ModelProto, file: str) -> ModelProto:
    """Returns a model of an operator set that rules handle."""
    version = next((o.version for o in model.opset_import if o.domain in DOMAINS), OLDEST)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise OnnxError(f"expected an operator set up to {newest}, but got {version}; update onnx", location=file)
    if version >= OLDEST:
        return model
    if version < 9 and any(node.op_type == "Scan" for node in model.graph.node):
        raise OnnxError(f"expected operator set 9 or later for Scan, but got {version}", location=file)
    try:
        from onnx.version_converter import convert_version

        return convert_version(model, OLDEST)
    except Exception as error:  # the converter raises RuntimeError and its own errors
        reason = f"of operator set {version} cannot be converted to {OLDEST}: {reason_of(error)}"
        raise OnnxError(reason, location=file) from None
