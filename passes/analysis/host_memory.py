"""Bytes of the values between kernels, how many are left for a kernel, and which kernels are in a launch.

`memory_limit` of `@main` is how many bytes a call may take in addition to its arguments; where there are sums, the
workspace of PyTorch is added (`Target.workspace`). `scratch_limit` of a nest is the part of it for memory between the
kernels of the nest."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.hints import isa

from ...dialects import kernel, loop
from ...dialects.kernel import aligned
from ...dialects.payload import is_tensor, tensor_bytes
from ...dialects.support.calls import UPDATES, pairs_of
from ...dialects.tensor import ScanOp
from ...errors import CompileError
from ...target.model import Target

MEMORY_LIMIT, SCRATCH_LIMIT = "memory_limit", "scratch_limit"


def limit_of(op: Operation, name: str) -> int | None:
    """Returns a limit of `op` in bytes, or None. Raises CompileError for an attribute that is no number of bytes."""
    limit = op.attributes.get(name)
    if limit is not None and (not isinstance(limit, IntegerAttr) or limit.value.data < 0):
        raise CompileError(f"is {limit}, no number of bytes", argument=name)
    return None if limit is None else limit.value.data


def result_bytes(function: FuncOp) -> int:
    """Returns the bytes of the results of `function`, except for those that replace an argument of `@main`."""
    end = function.body.block.last_op
    assert isinstance(end, ReturnOp)
    replaced = {result for result, _ in pairs_of(function, UPDATES)} if function.sym_name.data == "main" else ()
    return sum(tensor_bytes(v.type) for i, v in enumerate(end.operands) if i not in replaced)


class HostMemory:
    """The bytes that `@main` of a module at the loop level keeps in addition to its arguments."""

    def __init__(self, module: ModuleOp, target: Target) -> None:
        functions = [f for f in module.ops if isinstance(f, FuncOp) and not f.is_declaration]
        self._of = {f.sym_name.data: _Lifetimes(f) for f in functions}
        self._around: dict[str, int] = {}
        """Function -> the bytes that are kept around a call of it, in addition to the results of `@main`."""
        self.limit = None
        """Bytes that a call may take, if they are limited."""
        if "main" in self._of:
            sums = any(isinstance(op, loop.ReduceOp) for op in module.walk())
            self.limit = limit_of(self._of["main"].function, MEMORY_LIMIT)
            self.limit = None if self.limit is None else self.limit + target.workspace * sums
            self._enter("main", 0)

    def _enter(self, name: str, around: int) -> None:
        """Notes the bytes that are kept around a call of a function, and around its calls of others."""
        if around <= self._around.get(name, -1):
            return
        self._around[name], lives = around, self._of[name]
        for op in lives.function.body.block.ops:
            if isinstance(op, CallOp | ScanOp):
                callee = (op.callee if isinstance(op, CallOp) else op.step).string_value()
                if callee in self._of:
                    self._enter(callee, around + lives.before[op] + lives.made[op])

    def room(self, nest: loop.NestOp) -> int | None:
        """Returns the bytes that may be between two kernels of `nest`, or None without a limit. The first kernel reads
        what the nest does, the second yields its results and reads what the nest reads outside of sums."""
        function = nest.parent_op()
        if self.limit is None or not isinstance(function, FuncOp):
            return None
        lives = self._of[function.sym_name.data]
        taken = max(lives.before[nest], lives.after[nest] + lives.made[nest] + lives.read_last(nest))
        around = result_bytes(self._of["main"].function) + self._around[function.sym_name.data]
        return max(0, self.limit - around - taken)


class _Lifetimes:
    """Bytes in memory before and after every operation of a function, of values that it does not return."""

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        ops = [*function.body.block.ops]
        last = {loop.unreshaped(v): op for op in ops for inner in op.walk() for v in inner.operands}
        returned = {loop.unreshaped(v) for v in ops[-1].operands}
        between: list[SSAValue] = [r for op in ops for r in op.results if r in last and r not in returned]
        self._kept = {v: aligned(tensor_bytes(v.type)) for v in between if is_tensor(v.type)}
        self._ends: dict[Operation, list[SSAValue]] = {op: [] for op in ops}
        for value in self._kept:
            self._ends[last[value]].append(value)
        self.before: dict[Operation, int] = {}
        self.made: dict[Operation, int] = {}
        self.after: dict[Operation, int] = {}
        """Bytes before an operation, of its results, and of those before that are needed after it."""
        live = 0
        for op in ops:
            self.before[op] = live
            self.made[op] = sum(self._kept.get(r, 0) for r in op.results)
            self.after[op] = live - sum(self._kept[v] for v in self._ends[op])
            live = self.after[op] + self.made[op]

    def read_last(self, nest: loop.NestOp) -> int:
        """Returns the bytes whose last use is in `nest`, outside of its sums."""
        outside = {loop.unreshaped(op.source) for op in nest.body.block.ops if isinstance(op, loop.LoadOp)}
        return sum(self._kept[v] for v in self._ends[nest] if v in outside)


_PARTS = "parts"
"""The attribute of a kernel that names the kernels it stands for, in the order of their blocks."""


def parts_of(function: kernel.FuncOp) -> tuple[str, ...]:
    """The names of the kernels that `function` stands for: its own, unless it was made of others."""
    parts = function.attributes.get(_PARTS)
    return tuple(p.data for p in parts) if isa(parts, ArrayAttr[StringAttr]) else (function.sym_name.data,)


def set_parts(function: kernel.FuncOp, parts: Sequence[str]) -> None:
    """`function` stands for the kernels of these names."""
    function.attributes[_PARTS] = ArrayAttr([StringAttr(part) for part in parts])


def has_parts(function: kernel.FuncOp) -> bool:
    """Whether `function` was made of other kernels."""
    return _PARTS in function.attributes
