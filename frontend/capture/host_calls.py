"""Import of eager calls: a node of a graph becomes a call of a declared function, which PyTorch computes.

`eager_fallback.py` explains the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.ir import Attribute, SSAValue

from ...errors import CompileError, UnsupportedError
from ...passes.convert.torch_to_tensor.registry import STRIDES, why_refused
from .arrays import FLOAT8
from .eager_fallback import EagerCall, Operand, has_effects
from .source_locations import users_call

if TYPE_CHECKING:
    from .importer import GraphImporter

HostCall = tuple[EagerCall, list[SSAValue], list[Attribute]]
"""Eager call, its tensor operands, and the IR types of its results."""


def host_call(
    importer: GraphImporter, node: Node, reason: str, location: str | None, kind: type[EagerCall] = EagerCall
) -> HostCall:
    """Returns the eager call for a node, with its operands and the types of its results.

    Args:
        importer: importer of the graph.
        node: call of an operator.
        reason: why the operator is not compiled; empty if PyTorch computes it by design.
        location: `file:line` of the call in the user's source, or None.
        kind: class of the eager call.

    Raises:
        UnsupportedError: PyTorch cannot compute the node either. The operator changes a tensor in place, depends on
            strides (operands are passed as dense tensors), or has a result that is not a tensor of a known shape.
    """
    target, args = node.target, (node.args, node.kwargs)
    value: Any = node.meta.get("val")
    prefix = f"{reason}; " if reason else ""
    if has_effects(node):
        reason = "an operator with effects is not supported"
        target, args, value = node.args[1], (node.args[2:], node.kwargs), [v for v in value[1:] if v is not None]
    if not isinstance(target, torch._ops.OpOverload):
        raise UnsupportedError(f"{prefix}it cannot be left to PyTorch")
    if target._schema.is_mutable:
        raise UnsupportedError(f"{prefix}what changes a tensor in place cannot be left to PyTorch")
    if target.namespace == "aten" and why_refused(target._schema.name.partition("::")[2]) == STRIDES:
        raise UnsupportedError(f"{prefix}nor is it known to PyTorch, which gets dense tensors")
    values = list(value) if isinstance(value, tuple | list) else [value]
    if not values and target._schema.returns:
        raise UnsupportedError(f"{prefix}the result is not a tensor")
    leaves, spec = pytree.tree_flatten(args)
    return with_operands(importer, kind(target, tuple(leaves), spec, reason, location, users_call(node)), values)


def with_operands(importer: GraphImporter, call: EagerCall, values: Sequence[Any]) -> HostCall:
    """Replaces the nodes among the arguments of an eager call by placeholders.

    Args:
        importer: importer of the graph.
        call: eager call, with the arguments of a node as its leaves.
        values: values of the results in the trace.

    Returns:
        the eager call, its operands, and the types of its results.

    Raises:
        UnsupportedError: an operand or a result is not a tensor of a supported type.
    """
    prefix = f"{call.reason}; " if call.reason else ""
    nodes = [leaf for leaf in call.leaves if isinstance(leaf, Node)]
    if not all(isinstance(n.meta.get("val"), torch.Tensor) for n in nodes):
        raise UnsupportedError(f"{prefix}an argument is a number that is computed")
    if not all(isinstance(v, torch.Tensor) for v in values):
        raise UnsupportedError(f"{prefix}the result is not a tensor")
    if any(t.dtype in FLOAT8 for t in (*(n.meta["val"] for n in nodes), *values)):
        raise UnsupportedError(f"{prefix}PyTorch would get bytes for floats of eight bits")
    try:
        types = [importer.type_of(v) for v in values]
    except CompileError as error:
        raise UnsupportedError(f"{prefix}it cannot be left to PyTorch: {error.reason}") from None
    numbers = count()
    leaves = tuple(Operand(next(numbers)) if isinstance(leaf, Node) else leaf for leaf in call.leaves)
    return replace(call, leaves=leaves), [importer.operand(n) for n in nodes], types
