"""Compares single ATen overloads with PyTorch: torch dialect, conversion to tensors, reference interpreter.

An overload without an op in the torch dialect is traced first, so capture decomposes it into overloads that have one.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
import torch
import torch._inductor.inductor_prims  # Registers operators.
from conformance.tracing import tracer
from torch.utils import _pytree as pytree
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from deplodock.backend.reference import run
from deplodock.dialects.torch import OPS
from deplodock.extras.operators import of_torchvision  # noqa: F401  # pyright: ignore[reportUnusedImport]
from deplodock.frontend.capture.arrays import element_of, tensor_type, to_numpy, to_torch
from deplodock.passes.convert.torch_to_tensor.conversion import ConvertTorchToTensorPass
from deplodock.passes.pass_manager import verify_module


def overload(name: str) -> Any:
    """Returns PyTorch's overload for an op name of the torch dialect: `add.Tensor`, `relu`, `prims.fma`."""
    library = next((library for library in ("prims", "deplodock") if name.startswith(f"{library}.")), "aten")
    base, _, overload_name = name.removeprefix(f"{library}.").partition(".")
    return getattr(getattr(getattr(torch.ops, library), base), overload_name or "default")


def build(name: str, arguments: dict[str, Any], results: list[torch.Tensor]) -> tuple[ModuleOp, list[torch.Tensor]]:
    """Returns a module with one op of the torch dialect, and the tensors that are the module's arguments.

    Args:
        name: name of the op, such as `add.Tensor`.
        arguments: the op's arguments by name.
        results: tensors with the types and shapes of the results.
    """
    tensors: list[torch.Tensor] = []
    block = Block()

    def value(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            tensors.append(v)
            return block.insert_arg(tensor_type(v), len(block.args))
        if isinstance(v, list | tuple):
            return [value(e) for e in v]
        if isinstance(v, torch.dtype):
            return element_of(v)
        return str(v) if isinstance(v, torch.device) else v

    op = OPS[name]({key: value(v) for key, v in arguments.items()}, [tensor_type(r) for r in results])
    block.add_ops([op, ReturnOp(*op.results)])
    types = [a.type for a in block.args], [r.type for r in op.results]
    return ModuleOp([FuncOp("main", types, Region(block))]), tensors


def capture(name: str, arguments: dict[str, Any], results: list[torch.Tensor]) -> tuple[ModuleOp, list[torch.Tensor]]:
    """Traces the call of an overload that capture decomposes. Returns the module and its argument tensors.

    Args:
        name: name of the overload.
        arguments: its arguments by name.
        results: its results in PyTorch, as for `build`.
    """
    leaves, spec = pytree.tree_flatten(arguments)
    tensors = [v for v in leaves if isinstance(v, torch.Tensor)]

    def call(*inputs: torch.Tensor) -> list[torch.Tensor]:
        remaining = iter(inputs)
        values = [next(remaining) if isinstance(v, torch.Tensor) else v for v in leaves]
        keywords = pytree.tree_unflatten(values, spec)
        schema = overload(name)._schema.arguments
        leading = takewhile(lambda a: not a.kwarg_only and a.name in keywords, schema)
        positional = [keywords.pop(a.name) for a in leading]
        output = overload(name)(*positional, **keywords)
        results = output if isinstance(output, tuple | list) else [output]
        # Results must be dense and must not be views of arguments, which have no op in the torch dialect.
        return [v.clone(memory_format=torch.contiguous_format) for v in results]

    with tracer() as trace:
        return trace.trace(call, tensors).module, tensors


def named(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by their names in the schema.

    Args:
        name: name of the overload.
        args, kwargs: arguments of the call.
    """
    return {**dict(zip((a.name for a in overload(name)._schema.arguments), args, strict=False)), **kwargs}


def evaluate(name: str, *args: Any, **kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Calls an overload. Returns the results of deplodock and those of PyTorch."""
    expected = overload(name)(*args, **kwargs)
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    module, tensors = (build if name in OPS else capture)(name, named(name, args, kwargs), expected)
    verify_module(module)
    ConvertTorchToTensorPass().apply(Context(), module)
    verify_module(module)
    results = run(module, [to_numpy(t) for t in tensors])
    return [to_torch(np.asarray(r)) for r in results], expected


TOLERANCE = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Data type -> relative tolerance. Some ulp, because math libraries differ in the last digits."""


def check(name: str, *args: Any, **kwargs: Any) -> None:
    """Asserts that a call on deplodock returns the types, shapes and, within rounding, the values of PyTorch."""
    actual, expected = evaluate(name, *args, **kwargs)
    for a, e in zip(actual, expected, strict=True):
        assert_same(a, e)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts equal types, shapes, NaN and infinities, and finite values that are equal within `TOLERANCE`."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected)
        return
    rtol = TOLERANCE[expected.dtype]
    finite = expected[torch.isfinite(expected)].double().abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * min(scale, 1.0), equal_nan=True)
