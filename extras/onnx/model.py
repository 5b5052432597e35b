"""The module of an ONNX model: its call evaluates the graph node by node.

A *rule* is a function of PyTorch tensors that computes one operator (`registry.py`). A *host value* is an array of
sizes or constants that is computed on the host while the model is traced (`values.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from keyword import iskeyword
from math import prod
from typing import Any

import numpy as np
import onnx
import sympy
import torch
from onnx import GraphProto, ModelProto, NodeProto
from torch import nn
from torch.export import Dim

from ...frontend.capture.arrays import to_numpy
from .evaluator import RANDOM, Evaluator, names_of, value_of, versions_of
from .files import DOMAINS
from .limits import FOLDED_BYTES, MEMORY_BYTES, FoldingLimit, TooLargeError, check_memory
from .registry import load_rules
from .values import Env, HostArray, OnnxError, Stored, Value, array_of, dtype_of, to_tensor


@dataclass(frozen=True)
class Input:
    """An input of the model: its name, element type and sizes; a name is a size that may vary, None an unknown one."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str | None, ...]


class OnnxModule(nn.Module):
    """An ONNX model as a PyTorch module. Constants of the model are buffers.

    Attributes:
        inputs: inputs of the model, the arguments of a call in their order.
        outputs: names of the results. A model with one result returns a tensor, another one a tuple.
    """

    def __init__(self, model: ModelProto, file: str = "model.onnx") -> None:
        super().__init__()
        load_rules()
        self.file = file
        self.opsets = versions_of(model)
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.constants: Env = {}
        with _located(file):
            graph = model.graph
            if replaced := [name for domain, name in self.functions if domain in DOMAINS]:
                raise OnnxError(f"expected functions in a domain of their own, but {replaced[0]!r} is in ONNX's")
            for tensor in graph.initializer:
                self.constants[tensor.name] = self._store(array_of(tensor))
            for sparse in graph.sparse_initializer:
                raise OnnxError(f"the constant {sparse.values.name!r} is sparse, which is not supported")
            self.inputs = [_input(i) for i in graph.input if i.name not in self.constants]
            self.outputs = [o.name for o in graph.output]
            if not self.outputs:
                raise OnnxError("expected a graph with results, but it has none")
            self.nodes = self._fold(graph)

    def forward(self, *args: torch.Tensor) -> Any:
        with _located(self.file):
            if len(args) != len(self.inputs):
                raise OnnxError(f"expected {len(self.inputs)} arguments, but got {len(args)}")
            env: Env = dict(self.constants)
            env.update(zip((i.name for i in self.inputs), args, strict=True))
            Evaluator(self).run(self.nodes, env)
            results = tuple(self.tensor(value_of(env, name)) for name in self.outputs)
            for name, result in zip(self.outputs, results, strict=True):
                check_memory(result.shape, result.element_size(), f"the result {name!r}")
        return results[0] if len(results) == 1 else results

    def example_inputs(self, size: int = 4) -> tuple[torch.Tensor, ...]:
        """Returns random inputs: normal floats, and integers 0 or 1.

        The sizes that vary are `size`, `size + 1` and so on, so that no two are equal.
        """
        names = [*dict.fromkeys(s for i in self.inputs for s in i.shape if isinstance(s, str))]
        sizes = {name: size + n for n, name in enumerate(names)}
        shapes = [tuple(s if isinstance(s, int) else sizes.get(str(s), size) for s in i.shape) for i in self.inputs]
        needed = sum(prod(shape) * i.dtype.itemsize for i, shape in zip(self.inputs, shapes, strict=True))
        if needed > MEMORY_BYTES // 4:
            limit = f"expected inputs of at most {MEMORY_BYTES >> 22} MiB, a quarter of the memory of this host"
            raise OnnxError(f"{limit}, but those of the model take {needed >> 20} MiB", location=self.file)
        return tuple(
            torch.randn(shape).to(i.dtype) if i.dtype.is_floating_point else torch.randint(0, 2, shape).to(i.dtype)
            for i, shape in zip(self.inputs, shapes, strict=True)
        )

    def dynamic_shapes(self) -> tuple[dict[int, Any] | None, ...] | None:
        """Returns the argument `dynamic_shapes` of `deplodock.compile`: sizes with a name vary, from 1 to 65535."""
        names = dict.fromkeys(s for i in self.inputs for s in i.shape if isinstance(s, str))
        dims = {name: Dim(word, min=1, max=65535) for name, word in _identifiers(names).items()}
        shapes = tuple({d: dims[s] for d, s in enumerate(i.shape) if isinstance(s, str)} or None for i in self.inputs)
        return (shapes,) if dims else None  # pyright: ignore[reportReturnType]

    def tensor(self, value: Value) -> torch.Tensor:
        """Returns a value of the graph as a tensor."""
        if isinstance(value, Stored):
            return getattr(self, value.buffer)
        return to_tensor(value) if isinstance(value, np.ndarray) else value  # pyright: ignore[reportReturnType]

    def _store(self, array: HostArray) -> Stored:
        buffer = f"constant_{len(self._buffers)}"
        self.register_buffer(buffer, to_tensor(array))
        return Stored(array, buffer)

    def _fold(self, graph: GraphProto) -> list[NodeProto]:
        """Computes the results of nodes without other inputs than constants. Returns the other nodes.

        A node that needs much memory is not computed: its result is often a fill or a repetition, which the compiled
        program need not store.
        """
        remaining: list[NodeProto] = []
        evaluator, limit = Evaluator(self), FoldingLimit(FOLDED_BYTES)
        for node in graph.node:
            names = names_of(node)
            if node.op_type in RANDOM or not all(name in self.constants for name in names):
                remaining.append(node)
                continue
            env = {name: self.constants[name] for name in names}
            try:
                with torch.no_grad(), limit:
                    evaluator.run([node], env)
                    arrays = [to_numpy(v) if isinstance(v := env[n], torch.Tensor) else v for n in node.output if n]
            except TooLargeError:
                remaining.append(node)
                continue
            for name, array in zip(filter(None, node.output), arrays, strict=True):
                self.constants[name] = self._store(array) if isinstance(array, np.ndarray) else array
            limit.remaining -= sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
        self._drop_constants({*self.outputs, *(n for node in remaining for n in names_of(node))})
        return remaining

    def _drop_constants(self, used: set[str]) -> None:
        """Removes the constants that only computed nodes use."""
        self.constants = {name: value for name, value in self.constants.items() if name in used}
        buffers = {value.buffer for value in self.constants.values() if isinstance(value, Stored)}
        for unused in self._buffers.keys() - buffers:
            del self._buffers[unused]


@contextmanager
def _located(file: str) -> Iterator[None]:
    """Adds the file to an OnnxError without a location."""
    try:
        yield
    except OnnxError as error:
        error.location = error.location or file
        raise


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Returns for each name of a size a Python identifier that PyTorch takes for a `Dim`, different for each.

    PyTorch reads these as names of symbols, and a few short words have another meaning there.
    """
    words: dict[str, str] = {}
    for number, name in enumerate(names):
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        usable = plain.isidentifier() and not iskeyword(plain) and not hasattr(sympy, plain)
        words[name] = plain if usable and plain not in words.values() and len(plain) <= 40 else f"size_{number}"
    return words


def _input(value: onnx.ValueInfoProto) -> Input:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "no type"
        raise OnnxError(f"expected a tensor for the input {value.name!r}, but got {kind.removesuffix('_type')}")
    kind = value.type.tensor_type
    if negative := [d.dim_value for d in kind.shape.dim if d.HasField("dim_value") and d.dim_value < 0]:
        remedy = "a size that varies has a name (dim_param)"
        raise OnnxError(f"expected sizes of 0 or more for the input {value.name!r}, but got {negative[0]}; {remedy}")
    sizes = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim)
    return Input(value.name, dtype_of(kind.elem_type), sizes)
