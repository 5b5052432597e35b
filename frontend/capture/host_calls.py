"""Import of eager calls: a node of a graph becomes a call of a declared function, which PyTorch computes.

`eager_fallback.py` explains the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, SSAValue

from ...dialects.support.calls import EAGER, EAGER_ARGUMENTS
from ...errors import CompileError, UnsupportedError
from ...passes.convert.torch_to_tensor.registry import STRIDES, why_refused
from .arrays import FLOAT8
from .eager_fallback import EagerCall, Operand, has_effects
from .source_locations import place_text, users_call

if TYPE_CHECKING:
    from .importer import GraphImporter

_FUNCTIONALIZED: Any = (torch.ops.higher_order.auto_functionalized_v2, torch.ops.higher_order.auto_functionalized)
"""Operators that call an operator of the user that changes tensors, on copies, and return the copies."""


@dataclass(frozen=True)
class MutableCall(EagerCall):
    """Call of an operator that changes some of its arguments. Its results include the new values of these tensors.

    An argument that is changed may be a view of another tensor, its base. The call gets the base, and the place of the
    view in the memory of the base.

    Attributes:
        wrapper: operator of PyTorch that copies the bases, and calls the operator on views of the copies.
        layouts: size, strides and offset of each base in the trace, to which the places refer.
    """

    wrapper: Any = None
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = ()

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of the operator and the changed bases. Raises any error of PyTorch."""
        if self.layouts:
            bases = zip(kwargs["_all_bases"], self.layouts, strict=True)
            kwargs["_all_bases"] = [_placed(base, *layout) for base, layout in bases]
        return self.wrapper(*args, **kwargs)


@dataclass(frozen=True)
class GraphCall(EagerCall):
    """Call of an operator that takes graphs, such as a loop whose condition depends on the values of tensors."""

    @property
    def key(self) -> object:
        """Key that is equal only for calls with the same graphs."""
        return self.overload, tuple(id(v) if isinstance(v, GraphModule) else repr(v) for v in self.leaves), self.spec

    @property
    def stem(self) -> str:
        """Beginning of the symbol name of the call's function: `eager_while_loop`."""
        return f"eager_{self.operator}"


def _placed(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """Returns a copy of a tensor with other strides and another offset in its memory."""
    length = 1 + offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if tensor.numel() else offset
    return tensor.new_zeros(length).as_strided(size, stride, offset).copy_(tensor)


def import_host_call(importer: GraphImporter, node: Node, reason: str = "", kind: type[EagerCall] = EagerCall) -> None:
    """Imports a node as a call that PyTorch computes, and declares its function if there is none.

    Args:
        importer: importer of the graph.
        node: call of an operator.
        reason: why the operator is not compiled; empty if PyTorch computes it by design.
        kind: class of the eager call.

    Raises:
        UnsupportedError: PyTorch cannot compute the node either. The operator changes a tensor in place, depends on
            strides (operands are passed as dense tensors), or has a result that is not a tensor of a known shape. Or an
            operand or a result is not a tensor of a supported type.
    """
    location = place_text(importer.place_of(node))
    call, operands, types = _with_operands(importer, *_eager_call(node, reason, location, kind))
    key = call.key, tuple(v.type for v in operands), tuple(types)
    if key not in importer.declared:
        name = call.stem + (f"_{len(importer.eager)}" if call.stem in importer.eager else "")
        function = importer.declared[key] = FuncOp.external(name, list(key[1]), types)
        function.attributes[EAGER] = StringAttr(call.operator)
        if len(operands) < len(call.leaves):
            function.attributes[EAGER_ARGUMENTS] = StringAttr(call.arguments)
        importer.eager[name] = call
    op = CallOp(importer.declared[key].sym_name.data, operands, types)
    importer.add_located(op, node)
    importer.values[node.name] = _results_of(importer, node, op.results)


def _results_of(
    importer: GraphImporter, node: Node, results: Sequence[SSAValue]
) -> SSAValue | Sequence[SSAValue | None]:
    """Returns the values of a node: the results of its call, and None for results that the operator does not have."""
    value, computed = node.meta["val"], iter(results)
    if has_effects(node):
        # The first result is the token that orders effects. The call does not change it.
        token = node.args[0]
        assert isinstance(token, Node)
        return importer.values.get(token.name), *results  # pyright: ignore[reportReturnType]
    if isinstance(value, tuple | list):
        return tuple(None if v is None else next(computed) for v in value)
    return results[0]


def _eager_call(
    node: Node, reason: str, location: str | None, kind: type[EagerCall]
) -> tuple[EagerCall, Sequence[Any]]:
    """Returns the eager call for a node, with the node's arguments as its leaves, and the traced values of its results.

    Args:
        node: call of an operator.
        reason: why the operator is not compiled; empty if PyTorch computes it by design.
        location: `file:line` of the call in the user's source, or None.
        kind: class of the eager call.
    """
    target, args = node.target, (node.args, node.kwargs)
    value: Any = node.meta.get("val")
    prefix = f"{reason}; " if reason else ""
    if has_effects(node):
        reason = "an operator with effects is not supported"
        target, args, value = node.args[1], (node.args[2:], node.kwargs), [v for v in value[1:] if v is not None]
    if target in _FUNCTIONALIZED:
        return _mutable_call(node, reason, location)
    if isinstance(target, torch._ops.HigherOrderOperator) and isinstance(value, tuple | list):
        return _graph_call(node, reason, location)
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
    return kind(target, tuple(leaves), spec, reason, location, users_call(node)), values


def _mutable_call(node: Node, reason: str, location: str | None) -> tuple[EagerCall, Sequence[Any]]:
    bases: Any = node.kwargs.get("_all_bases", ())
    values = [base.meta["val"] for base in bases]
    if any(isinstance(n, torch.SymInt) for v in values for n in (*v.shape, *v.stride(), v.storage_offset())):
        raise UnsupportedError(f"{reason}; a tensor of a size that varies is changed in place")
    layouts = tuple((tuple(v.shape), v.stride(), v.storage_offset()) for v in values)
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    arguments: Any = node.args[0], tuple(leaves), spec, reason, location, users_call(node)
    results = [v for v in pytree.tree_leaves(node.meta["val"]) if v is not None]
    return MutableCall(*arguments, wrapper=node.target, layouts=layouts), results


def _graph_call(node: Node, reason: str, location: str | None) -> tuple[EagerCall, Sequence[Any]]:
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    owner: Any = node.graph.owning_module
    leaves = [getattr(owner, str(v.target)) if isinstance(v, Node) and v.op == "get_attr" else v for v in leaves]
    call = GraphCall(node.target, tuple(leaves), spec, reason, location, users_call(node))  # pyright: ignore[reportArgumentType]
    return call, pytree.tree_leaves(node.meta["val"])


def _with_operands(
    importer: GraphImporter, call: EagerCall, values: Sequence[Any]
) -> tuple[EagerCall, list[SSAValue], list[Attribute]]:
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
