"""Operators that are left to PyTorch, on request: opaque calls inside of a compiled program.

With `fallback="eager"` an operator that would be refused becomes a call of a function that is only declared; the launch
plan has it as a step between launches, and PyTorch computes it on the same tensors. Nothing is left to PyTorch without
being asked for, and what was is listed with the reason.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ComplexType, TensorType, f32, f64
from xdsl.ir import Attribute

from ...errors import CompileError, ExecutionError, UnsupportedError, one_line
from ...passes.convert.torch_to_tensor.registry import STRIDES, why_refused
from .arrays import tensor_type
from .source_locations import users_call

Fallback = Literal["eager"] | None
"""What happens to operators that cannot be compiled: None refuses them, `"eager"` leaves them to PyTorch."""

COMPLEX: dict[torch.dtype, Attribute] = {torch.complex64: ComplexType(f32), torch.complex128: ComplexType(f64)}
"""Data types that nothing of ours computes on, but that PyTorch may pass on to itself."""


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class FallbackWarning(UserWarning):
    """Some operators of a program are left to PyTorch."""


@dataclass(frozen=True)
class Operand:
    """Stands for the tensor operand `index` among the arguments of an operator."""

    index: int


@dataclass(frozen=True)
class EagerCall:
    """An operator with all of its arguments but the tensors; calling it with those gives the list of its results.

    `reason` says why it was not compiled, `location` where it was written, `call` what the user wrote.
    """

    overload: torch._ops.OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    reason: str
    location: str | None
    call: str | None = None

    @property
    def operator(self) -> str:
        """The operator's name: `aten.linalg_inv_ex`."""
        return str(self.overload).removesuffix(".default")

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute it. Raises ExecutionError for whatever PyTorch raises."""
        given = [tensors[leaf.index] if isinstance(leaf, Operand) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(given, self.spec)
        try:
            with torch.no_grad():
                results = pytree.tree_leaves(self.overload(*args, **kwargs))
        except Exception as error:  # whatever the operator raises
            place = {"operator": self.operator, "call": self.call, "location": self.location}
            raise ExecutionError(one_line(error), **place, kind="wrong-program") from error
        return [r for r in results if r is not None]

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}{self.call or self.operator} is left to PyTorch: {self.reason}"

    @property
    def key(self) -> object:
        """Equal for calls that do the same, wherever they are."""
        return self.overload, repr(self.leaves), self.spec

    @property
    def stem(self) -> str:
        """The operator's name as part of a symbol's."""
        return "eager_" + re.sub(r"[^a-z0-9_]", "_", self.overload._schema.name.partition("::")[2].lower())


def eager_call(node: Node, reason: str, location: str | None) -> tuple[EagerCall, list[Node], list[Attribute]]:
    """The call of `node`, the nodes of its operands, and the types of its results.

    Raises UnsupportedError for what cannot be left to PyTorch either: what changes a tensor in place, what depends on
    strides (operands are handed over dense), results that are no tensors of a known shape.
    """
    target, args = node.target, (node.args, node.kwargs)
    value: Any = node.meta.get("val")
    if has_effects(node):
        reason = "an operator with effects is not supported"
        target, args, value = node.args[1], (node.args[2:], node.kwargs), [v for v in value[1:] if v is not None]
    if not isinstance(target, torch._ops.OpOverload):
        raise UnsupportedError(f"{reason}; it cannot be left to PyTorch")
    if target._schema.is_mutable:
        raise UnsupportedError(f"{reason}; what changes a tensor in place cannot be left to PyTorch")
    if target.namespace == "aten" and why_refused(target._schema.name.partition("::")[2]) == STRIDES:
        raise UnsupportedError(f"{reason}; nor is it known to PyTorch, which gets dense tensors")
    leaves, spec = pytree.tree_flatten(args)
    operands: list[Node] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Node):
            if not isinstance(leaf.meta.get("val"), torch.Tensor):
                raise UnsupportedError(f"{reason}; an argument is a number that is computed")
            leaves[i] = Operand(len(operands))
            operands.append(leaf)
    values = list(value) if isinstance(value, tuple | list) else [value]
    if not values and target._schema.returns or not all(isinstance(v, torch.Tensor) for v in values):
        raise UnsupportedError(f"{reason}; the result is not a tensor")
    try:
        types: list[Attribute] = []
        types += [type_of(v) for v in values]
    except CompileError as error:
        raise UnsupportedError(f"{reason}; it cannot be left to PyTorch: {error.reason}") from None
    if any(t.dtype in FLOAT8 for t in (*(n.meta["val"] for n in operands), *values)):
        raise UnsupportedError(f"{reason}; PyTorch would get bytes for floats of eight bits")
    return EagerCall(target, tuple(leaves), spec, reason, location, users_call(node)), operands, types


def has_effects(node: Node) -> bool:
    """Whether `node` is a call that PyTorch keeps in order: (token, operator, arguments) -> (token, results)."""
    return node.target is torch.ops.higher_order.with_effects


def type_of(tensor: torch.Tensor) -> TensorType[Attribute]:
    """The type of a tensor, complex numbers included. Raises UnsupportedError."""
    if tensor.dtype in COMPLEX:
        return TensorType(COMPLEX[tensor.dtype], tensor_type(tensor.real).get_shape())
    return tensor_type(tensor)


def is_complex(node: Node) -> bool:
    """Whether a value of `node` is a complex tensor."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def touches_complex(node: Node) -> bool:
    """Whether an operand or a result of `node` is complex."""
    return any(map(is_complex, (node, *node.all_input_nodes)))


def warn(calls: Sequence[EagerCall]) -> None:
    """Say once what a program leaves to PyTorch."""
    if calls:
        listed = "; ".join(dict.fromkeys(map(str, calls)))
        warnings.warn(f"left to PyTorch: {listed}", FallbackWarning, stacklevel=3)
