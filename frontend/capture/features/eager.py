"""Eager fallback during import: an operator that would be refused becomes a call that PyTorch computes.

`eager_fallback.py` explains the calls. The feature applies if the request has `fallback="eager"`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import StringAttr, TensorType, UnknownLoc
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects.support.calls import EAGER
from ....dialects.support.locations import file_location
from ....dialects.torch import AtenOp
from ....errors import CompileError, UnsupportedError
from ....passes.convert.torch_to_tensor.registry import COMPLEX, STRIDES, why_refused
from ..arrays import FLOAT8, tensor_type
from ..captured_program import CapturedProgram
from ..eager_fallback import COMPLEX_TYPES, EagerCall, FallbackWarning, Operand, has_effects
from ..importer import GraphImporter, TracedGraph, try_to_decompose
from ..source_locations import users_call
from . import Features


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Raises CompileError if the option `fallback` has another value than "eager"."""
    if features.request.fallback != "eager":
        reason = f"expected 'eager' or None, but got {features.request.fallback!r}"
        raise CompileError(reason, argument="fallback")


def captured(program: CapturedProgram, features: Features) -> None:
    """Emits one FallbackWarning that lists all operators of the program that PyTorch computes."""
    if program.eager:
        listed = "; ".join(dict.fromkeys(map(str, program.eager.values())))
        warnings.warn(f"left to PyTorch: {listed}", FallbackWarning, stacklevel=3)


class Importer(GraphImporter):
    """Importer that replaces a refused operator by the call of a declared function, which PyTorch computes."""

    def type_of(self, value: torch.Tensor) -> Attribute:
        """Returns the IR type of an argument, which may be complex. Raises UnsupportedError."""
        varies = any(isinstance(n, torch.SymInt) for n in value.shape)
        return super().type_of(value) if varies else _type_of(value)

    def import_node(self, node: Node, place: tuple[str, int] | None) -> None:
        """Imports a node; one that is refused becomes a call that PyTorch computes.

        Args:
            node: the node.
            place: (file, line) of the node in the user's source, or None.

        Raises:
            CompileError: PyTorch cannot compute the node either (`_eager_call`).
        """
        try:
            super().import_node(node, place)
        except UnsupportedError as error:
            if node.op != "call_function":
                raise
            self._leave_to_pytorch(node, error, place)

    def import_operator(self, node: Node, target: torch._ops.OpOverload, place: tuple[str, int] | None) -> None:
        """Imports a call of an operator. An operator on complex numbers is refused, so that PyTorch computes it.

        Args:
            node: the call.
            target: the operator.
            place: (file, line) of the node in the user's source, or None.

        Raises:
            CompileError: the operator is not supported.
        """
        values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
        if any(isinstance(v, torch.Tensor) and v.is_complex() for v in pytree.tree_leaves(values)):
            raise UnsupportedError(COMPLEX)
        super().import_operator(node, target, place)

    def add(self, op: Operation, node: Node) -> None:
        """Adds the operation for a node. Raises UnsupportedError if the operation cannot be decomposed to the tensor
        level."""
        if isinstance(op, AtenOp):
            try_to_decompose(op, self.algebra)
        super().add(op, node)

    def _leave_to_pytorch(self, node: Node, error: UnsupportedError, place: tuple[str, int] | None) -> None:
        argument = f"{error.argument}: " if error.argument else ""
        location = f"{place[0]}:{place[1]}" if place else None
        call, nodes, types = _eager_call(node, argument + error.reason, location)
        operands = [self.values[n.name] for n in nodes]
        key = call.key, tuple(v.type for v in operands if isinstance(v, SSAValue)), tuple(types)
        if key not in self.declared:
            name = call.stem + (f"_{len(self.eager)}" if call.stem in self.eager else "")
            self.declared[key] = FuncOp.external(name, list(key[1]), types)
            self.declared[key].attributes[EAGER] = StringAttr(call.operator)
            self.eager[name] = call
        op = CallOp(self.declared[key].sym_name.data, operands, types)  # pyright: ignore[reportArgumentType]
        op.location = file_location(*place) if place else UnknownLoc()
        self.add(op, node)
        results = tuple(op.results) if isinstance(node.meta["val"], tuple | list) else op.results[0]
        if has_effects(node):
            # The first result is the token that orders effects. The call does not change it.
            token = node.args[0]
            assert isinstance(token, Node)
            results = (self.values.get(token.name), *op.results)
        self.values[node.name] = results


def _eager_call(node: Node, reason: str, location: str | None) -> tuple[EagerCall, list[Node], list[Attribute]]:
    """Returns the eager call for a node, the nodes of its tensor operands, and the IR types of its results.

    Args:
        node: a call of an operator.
        reason: why the operator is not compiled.
        location: `file:line` of the call in the user's source, or None.

    Raises:
        UnsupportedError: PyTorch cannot compute the node either. The operator changes a tensor in place, depends on
            strides (operands are passed as dense tensors), or has a result that is not a tensor of a known shape.
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
        types += [_type_of(v) for v in values]
    except CompileError as error:
        raise UnsupportedError(f"{reason}; it cannot be left to PyTorch: {error.reason}") from None
    if any(t.dtype in FLOAT8 for t in (*(n.meta["val"] for n in operands), *values)):
        raise UnsupportedError(f"{reason}; PyTorch would get bytes for floats of eight bits")
    return EagerCall(target, tuple(leaves), spec, reason, location, users_call(node)), operands, types


def _type_of(tensor: torch.Tensor) -> TensorType[Attribute]:
    if tensor.dtype in COMPLEX_TYPES:
        return TensorType(COMPLEX_TYPES[tensor.dtype], tensor_type(tensor.real).get_shape())
    return tensor_type(tensor)
