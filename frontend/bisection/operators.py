"""Execution of the torch level operator by operator: by PyTorch, and by the reference on the same operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...dialects.host import BindSizeOp
from ...dialects.payload import element_type
from ...dialects.shapes.binding import Sizes, bind_sizes
from ...dialects.shapes.extents import SymbolAttr
from ...dialects.support.calls import main_function
from ...dialects.support.locations import location_text
from ...dialects.torch import AtenOp
from ...errors import CompileError, ExecutionError, one_line
from ..capture.arrays import FLOAT8, dtype_of
from ..capture.decompositions.operators import operator_named
from ..comparison import tolerances
from ..compilation import Compilation
from ..executors import make_executor
from .mismatch import Mismatch, first_mismatch


@dataclass(frozen=True)
class OperatorResult:
    """An operator of the torch level after its execution.

    Attributes:
        op: the operator.
        values: its results as PyTorch computes them; as the reference computes them if PyTorch has no such operator.
        mismatch: the difference of the reference to PyTorch on the same operands, or None.
        error: why the reference did not execute the operator, or empty.
    """

    op: Operation
    values: list[torch.Tensor]
    mismatch: Mismatch | None = None
    error: str = ""

    @property
    def name(self) -> str:
        """The name of the operator in the IR: `torch.add.Tensor`."""
        return self.op.name

    @property
    def location(self) -> str | None:
        return location_text(self.op)


class TorchLevel:
    """A program at the torch level that is executed operator by operator.

    Args:
        compilation: the program, which begins at the torch level.
        arguments: the arguments of `@main`.
    """

    def __init__(self, compilation: Compilation, arguments: Sequence[torch.Tensor]) -> None:
        self.compilation = compilation
        self.main = main_function(compilation.at("torch"))
        self.sizes = bind_sizes(self.main, [a.shape for a in arguments])
        self.values: dict[SSAValue, torch.Tensor] = dict(zip(self.main.body.block.args, arguments, strict=True))

    @property
    def results(self) -> list[torch.Tensor]:
        """The results of `@main`, after all operators were executed."""
        end = self.main.body.block.last_op
        assert end is not None
        return [self.values[v] for v in end.operands]

    def execute(self) -> Iterator[OperatorResult]:
        """Executes the operators of `@main` in order, and yields each with its results."""
        for op in self.main.body.block.ops:
            operands = [self.values[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                continue
            if isinstance(op, BindSizeOp):
                self.sizes.bind(op.symbol, int(operands[0].item()), location_text(op))
                continue
            outcome = self._execute(op, operands)
            self.values.update(zip(op.results, outcome.values, strict=True))
            yield outcome

    def _execute(self, op: Operation, operands: Sequence[torch.Tensor]) -> OperatorResult:
        if isinstance(op, CallOp) and (call := self.compilation.eager.get(op.callee.string_value())) is not None:
            return OperatorResult(op, call(operands))
        if not isinstance(op, AtenOp):
            return OperatorResult(op, self._by_reference(op, operands)[0])
        expected = compute(op, operands, self.sizes)
        try:
            actual, allowed = self._by_reference(op, operands)
        except CompileError as error:
            return OperatorResult(op, expected, None, error.reason)
        return OperatorResult(op, expected, first_mismatch(actual, expected, allowed))

    def _by_reference(self, op: Operation, operands: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[float]]:
        """Returns the results of an operator alone at the tensor level, and their tolerances."""
        alone = replace(self.compilation.of(alone_in_module(op)), calls=self.compilation.calls)
        results = make_executor("reference", alone).run(operands)
        lowered = alone.at("tensor")
        return results, tolerances(lowered, bind_sizes(main_function(lowered), [t.shape for t in operands]))


def alone_in_module(op: Operation) -> ModuleOp:
    """Returns a module whose `@main` computes one operator of a program from arguments.

    The other functions of the program, which the operator may call, are part of the module.
    """
    program = op.get_toplevel_object()
    assert isinstance(program, ModuleOp)
    functions = [f.clone() for f in program.ops if isinstance(f, FuncOp) and f.sym_name.data != "main"]
    block = Block(arg_types=[v.type for v in op.operands])
    clone = op.clone(dict(zip(op.operands, block.args, strict=True)))
    for operand, argument in enumerate(block.args):
        clone.operands[operand] = argument
    block.add_ops([clone, ReturnOp(*clone.results)])
    types = [a.type for a in block.args], [r.type for r in clone.results]
    return ModuleOp([FuncOp("main", types, Region(block)), *functions])


def compute(op: AtenOp, operands: Sequence[torch.Tensor], sizes: Sizes) -> list[torch.Tensor]:
    """Returns the results of an operator as PyTorch computes them.

    Args:
        op: the operator.
        operands: its tensors.
        sizes: values of the symbols.

    Raises:
        ExecutionError: PyTorch has no such operator, or refuses the operands.
    """
    overload = overload_of(op.SCHEMA.name)
    tensors = {v: _typed(t, v.type) for v, t in zip(op.operands, operands, strict=True)}
    arguments = {a.name: a for a in op.SCHEMA.arguments}
    values = {n: _python(v, arguments[n].base, tensors, sizes) for n, v in op.values.items()}
    named = {a.name for a in overload._schema.arguments if a.kwarg_only}
    try:
        with torch.no_grad():
            results = overload(
                *[v for n, v in values.items() if n not in named], **{n: v for n, v in values.items() if n in named}
            )
    except Exception as error:
        raise ExecutionError(one_line(error), operator=op.name, location=location_text(op)) from error
    results = [*results] if isinstance(results, tuple | list) else [results]
    return [_stored(r) for r in results[: len(op.results)]]


def overload_of(name: str) -> Any:
    """Returns the operator of PyTorch for an overload of the torch dialect: `add.Tensor`, `relu`, `library.name`.

    Raises:
        ExecutionError: PyTorch has no such operator.
    """
    library, _, member = name.partition(".")
    operator = operator_named(name) or (operator_named(member, library) if member else None)
    if operator is None:
        raise ExecutionError(f"PyTorch has no operator {name}")
    return operator.default if isinstance(operator, torch._ops.OpOverloadPacket) else operator


def _python(value: Any, base: str, tensors: Mapping[SSAValue, torch.Tensor], sizes: Sizes) -> Any:
    """Returns an argument of an operator as a value of Python. `base`: its type in the schema."""
    if isinstance(value, SSAValue):
        return tensors[value]
    if isinstance(value, SymbolAttr):
        return sizes.number(value)
    if isinstance(value, Attribute):
        return dtype_of(value)
    if isinstance(value, str) and base in ("Layout", "MemoryFormat"):
        return getattr(torch, value)
    if isinstance(value, list):
        return [_python(v, base, tensors, sizes) for v in value]
    return value


def _typed(tensor: torch.Tensor, type: Attribute) -> torch.Tensor:
    """Returns a tensor in the data type of an IR type. Executors hold float8 as bytes."""
    dtype = dtype_of(element_type(type))
    return tensor.view(dtype) if dtype in FLOAT8 and tensor.dtype == torch.uint8 else tensor


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8 else tensor
