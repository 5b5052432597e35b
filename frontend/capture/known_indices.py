"""Indices that a captured program knows: one that PyTorch would not take is refused before anything runs.

What operators ask of their indices are assertions of their decompositions (`payload.assert`). Those that follow from
constants alone are computed here, by the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...backend import reference
from ...backend.interpreter.running import main_function
from ...dialects.payload import AssertOp, ExtentOp, is_float
from ...dialects.shapes.binding import symbols_of
from ...dialects.shapes.extents import SymbolAttr
from ...dialects.torch import AtenOp
from ...errors import CompileError, ExecutionError
from ...passes.convert.torch_to_tensor.conversion import decompose
from .arrays import to_numpy


def check_known_indices(module: ModuleOp, constants: Mapping[int, torch.Tensor]) -> None:
    """Raise CompileError for an index that is known, from the `constants` among the arguments of `@main`, and illegal.
    The message names operator, place, legal range and index."""
    known = _Known(main_function(module), constants)
    for op in known.users():
        known.assert_about(op)
    if known.asserted:
        known.block.add_op(ReturnOp())
        types = [a.type for a in known.block.args]
        found = ModuleOp([FuncOp("main", (types, []), Region(known.block))])
        try:
            reference.run(found, [to_numpy(t) for t in known.tensors])
        except ExecutionError as error:
            raise CompileError(error.reason, operator=error.operator, location=error.location) from None


class _Known:
    """What follows from constants in a function, and a block in which some of it is computed from `tensors`."""

    def __init__(self, function: FuncOp, constants: Mapping[int, torch.Tensor]) -> None:
        self.operations = [op for op in function.body.block.ops if isinstance(op, AtenOp)]
        self.constants = {function.body.block.args[i]: t for i, t in constants.items()}
        self.values = set[SSAValue](self.constants)
        for op in self.operations:
            if self.values.issuperset(op.operands) and not symbols_of(op.result_types) and not _names_size(op):
                self.values.update(op.results)
        self.block, self.tensors, self.asserted = Block(), list[torch.Tensor](), False
        self._computed: dict[SSAValue, SSAValue] = {}

    def users(self) -> list[AtenOp]:
        """The operators that read integers which are known."""
        return [op for op in self.operations if any(v in self.values and not is_float(v.type) for v in op.operands)]

    def assert_about(self, op: AtenOp) -> None:
        """Compute what `op` asserts, as far as it is known. What has no decomposition is refused elsewhere."""
        try:
            self._assert_about(op)
        except (CompileError, VerifyException):
            return

    def _assert_about(self, op: AtenOp) -> None:
        made, _ = _decomposed(op)
        for assertion in made:
            needed = _slice(made, assertion) if isinstance(assertion, AssertOp) else []
            own = {r for o in needed for r in o.results}
            if any(isinstance(o, ExtentOp) for o in needed):
                continue
            if needed and all(v in own or v in self.values for o in needed for v in o.operands):
                self._emit(needed)
                self.asserted = True

    def _emit(self, ops: Sequence[Operation]) -> None:
        for op in ops:
            for operand in op.operands:
                self._compute(operand)
            self.block.add_op(op.clone(self._computed))

    def _compute(self, value: SSAValue) -> None:
        """Make sure that the block has `value`."""
        if value in self._computed:
            return
        if isinstance(value, BlockArgument):
            self.tensors.append(self.constants[value])
            self._computed[value] = self.block.insert_arg(value.type, len(self.block.args))
            return
        owner = value.owner
        assert isinstance(owner, AtenOp)
        made, results = _decomposed(owner)
        self._emit(made)
        for result, computed in zip(owner.results, results, strict=True):
            self._compute(computed)
            self._computed[result] = self._computed[computed]


def _names_size(op: AtenOp) -> bool:
    """Whether an argument of `op` is a size that varies."""
    given = [a for p in op.properties.values() for a in (p if isinstance(p, ArrayAttr) else [p])]
    return any(isinstance(a, SymbolAttr) for a in given)


def _decomposed(op: AtenOp) -> tuple[list[Operation], list[SSAValue]]:
    """The ops that compute `op`, and its results."""
    made, results, _ = decompose(op, checked=True)
    return made, results


def _slice(ops: Sequence[Operation], last: Operation) -> list[Operation]:
    """Those of `ops` from which `last` is computed, and itself."""
    needed = {last}
    for op in reversed(ops):
        if any(r.uses and any(u.operation in needed for u in r.uses) for r in op.results):
            needed.add(op)
    return [op for op in ops if op in needed]
