"""Indices: refuses illegal constant indices at compile time, and indexes with integer tensors without reading them.

A decomposition asserts that indices are in range (`payload.assert`). An assertion on constants alone is computed here
by the reference interpreter, so that an illegal index is refused before anything runs.

PyTorch traces `x[t]`, with an integer tensor `t` of no dimensions, as `x.select(0, t.item())`, which needs the value of
`t`. This module replaces it by `index(x, [t])`, and a write to `x[t]` by `index_put(x, [t], values)`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph
from xdsl.dialects.builtin import ArrayAttr, FunctionType
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ....dialects.payload import AssertOp, is_float
from ....dialects.shapes.binding import SIZES, Algebra, symbols_of
from ....dialects.shapes.extents import SymbolAttr
from ....dialects.support.calls import main_function
from ....errors import CompileError, ExecutionError, UnsupportedError
from ....passes.convert.torch_to_tensor.conversion import decompose_all
from ....passes.rewriting import erase
from ..arrays import to_numpy
from ..captured_program import CapturedProgram
from ..emitter import Emitter
from ..source_locations import blame
from . import Features

aten: Any = torch.ops.aten

NUMBER_OF = aten._local_scalar_dense.default
"""Operator of `Tensor.item`."""


def captured(program: CapturedProgram, features: Features) -> None:
    """Raises CompileError for an illegal index that depends on constants of the program only.

    The message has the operator, the line, the legal range and the index.
    """
    constants = {i: b.tensor for i, b in enumerate(program.bindings) if b.kind == "constant" and b.tensor is not None}
    module = program.module.clone()
    function = main_function(module)
    block = function.body.block
    tensors: dict[SSAValue, torch.Tensor] = {block.args[i]: t for i, t in constants.items() if not t.is_meta}
    known_values = _known_values(block, tensors)
    selected = [
        op
        for op in block.ops
        if not isinstance(op, CallOp | ReturnOp) and _is_known_or_reads_integers(op, known_values)
    ]
    if not any(not known_values.issuperset(op.results) for op in selected):
        return
    for op in list(block.ops):
        if op not in selected:
            for result in op.results:
                result.replace_all_uses_with(block.insert_arg(result.type, len(block.args)))
            erase(op)
    try:
        decompose_all(module, Algebra(), checked=True)
    except (CompileError, VerifyException):
        # An operator without a decomposition is refused by the conversion itself.
        return
    _keep_known_assertions(block, _known_values(block, tensors))
    if block.is_empty:
        return
    block.add_op(ReturnOp())
    for arg in [a for a in block.args if not a.uses]:
        block.erase_arg(arg)
    function.attributes.pop(SIZES, None)
    function.function_type = FunctionType.from_lists([a.type for a in block.args], [])
    # This imports all interpreters of xDSL, which few programs need.
    from ....backend import reference

    try:
        reference.run(module, [to_numpy(tensors[a]) for a in block.args])
    except ExecutionError as error:
        raise CompileError(error.reason, operator=error.operator, location=error.location) from None


def _known_values(block: Block, constants: Collection[SSAValue]) -> set[SSAValue]:
    known_values = set(constants)
    for op in block.ops:
        if known_values.issuperset(op.operands) and not symbols_of(op.result_types) and not _names_size(op):
            known_values.update(() if isinstance(op, CallOp) else op.results)
    return known_values


def _is_known_or_reads_integers(op: Operation, known_values: Collection[SSAValue]) -> bool:
    return all(r in known_values for r in op.results) or any(
        v in known_values and not is_float(v.type) for v in op.operands
    )


def _names_size(op: Operation) -> bool:
    attributes = [a for p in op.properties.values() for a in (p if isinstance(p, ArrayAttr) else [p])]
    return any(isinstance(a, SymbolAttr) for a in attributes)


def _keep_known_assertions(block: Block, known_values: Collection[SSAValue]) -> None:
    for op in reversed(list(block.ops)):
        used = isinstance(op, AssertOp) or any(r.uses for r in op.results)
        if not used or not all(r in known_values for r in op.results):
            erase(op)


def decomposed(program: ExportedProgram, features: Features) -> None:
    """Rewrites the graph of a program, in which nothing is changed in place any more, by `index_by_tensors`."""
    index_by_tensors(program.graph)


def index_by_tensors(graph: Graph) -> None:
    """Replaces each read or write of a slice at a number from a tensor by an index with that tensor.

    Other uses of the number remain. Raises UnsupportedError for an index of type uint8.
    """
    for number in graph.find_nodes(op="call_function", target=NUMBER_OF):
        if not isinstance(number.meta["val"], torch.SymInt):
            continue
        is_byte = number.args[0].meta["val"].dtype == torch.uint8
        for user in list(number.users):
            if user.target is aten.select.int and user.args[2] is number:
                x, dim, values = user.args[0], user.args[1], ()
            elif user.target is aten.select_scatter.default and user.args[3] is number:
                x, dim, values = user.args[0], user.args[2], (user.args[1],)
            else:
                continue
            if is_byte:
                # PyTorch indexes with a uint8 tensor as with a mask, but the exporter reads it as a number.
                reason = "an index of type uint8, which is a mask to PyTorch and depends on data, is not supported"
                raise blame(UnsupportedError(reason, remedy="convert it (t.long(), or t.bool() for a mask)"), user)
            place = Emitter(graph).inline(user, _without_dimensions, number.args[0])
            user.target = aten.index_put.default if values else aten.index.Tensor
            user.args = (x, [*[None] * (dim % x.meta["val"].dim()), place], *values)
        if not number.users:
            graph.erase_node(number)


def _without_dimensions(place: torch.Tensor) -> torch.Tensor:
    """Converts an index of one element to an i64 tensor of rank 0."""
    place = aten.view.default(place, []) if place.dim() else place
    return place if place.dtype == torch.int64 else aten._to_copy.default(place, dtype=torch.int64)
