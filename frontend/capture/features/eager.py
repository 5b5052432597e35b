"""Eager fallback during import: an operator that would be refused becomes a call that PyTorch computes.

`eager_fallback.py` explains the calls. The feature applies if the request has `fallback="eager"`.
"""

from __future__ import annotations

import warnings

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation

from ....dialects.torch import AtenOp
from ....errors import CompileError, UnsupportedError
from ....passes.convert.torch_to_tensor.registry import COMPLEX
from ..arrays import tensor_type
from ..captured_program import CapturedProgram
from ..eager_fallback import COMPLEX_TYPES, FallbackWarning
from ..host_calls import import_host_call
from ..importer import GraphImporter, TracedGraph, try_to_decompose
from . import Features


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Raises CompileError if the option `fallback` has another value than "eager"."""
    if features.request.fallback != "eager":
        reason = f"expected 'eager' or None, but got {features.request.fallback!r}"
        raise CompileError(reason, argument="fallback")


def captured(program: CapturedProgram, features: Features) -> None:
    """Emits one FallbackWarning that lists all operators of the program that PyTorch computes."""
    if refused := [str(call) for call in program.eager.values() if call.reason]:
        listed = "; ".join(dict.fromkeys(refused))
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
            CompileError: PyTorch cannot compute the node either (`import_host_call`).
        """
        try:
            super().import_node(node, place)
        except UnsupportedError as error:
            if node.op != "call_function":
                raise
            argument = f"{error.argument}: " if error.argument else ""
            import_host_call(self, node, argument + error.reason)

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


def _type_of(tensor: torch.Tensor) -> TensorType[Attribute]:
    if tensor.dtype in COMPLEX_TYPES:
        return TensorType(COMPLEX_TYPES[tensor.dtype], tensor_type(tensor.real).get_shape())
    return tensor_type(tensor)
