"""Memory that the host program takes for values between kernels, and the memory that is available to each nest.

The attribute `memory_limit` of `@main` is the number of bytes that a call may take in addition to its arguments. If the
program has reductions, the workspace that PyTorch would take is added to it (`Target.workspace`). The attribute
`scratch_limit` of a nest is the number of bytes that may be stored between the kernels of the nest (packed operands,
parts of a split-K reduction). The file also has the attribute that lists the kernels of a merged kernel.
"""

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
"""Names of the attributes that limit memory, in bytes, of `@main` and of a nest."""


def limit_of(op: Operation, name: str) -> int | None:
    """Returns the limit in attribute `name` of `op`, in bytes, or None if there is no such attribute.

    Raises:
        CompileError: if the attribute is not a number of bytes.
    """
    limit = op.attributes.get(name)
    if limit is not None and (not isinstance(limit, IntegerAttr) or limit.value.data < 0):
        raise CompileError(f"expected a number of bytes, but got {limit}", argument=name)
    return None if limit is None else limit.value.data


def result_bytes(function: FuncOp) -> int:
    """Returns the bytes of the results of `function`, except for those that replace an argument of `@main`."""
    end = function.body.block.last_op
    assert isinstance(end, ReturnOp)
    replaced = {result for result, _ in pairs_of(function, UPDATES)} if function.sym_name.data == "main" else ()
    return sum(tensor_bytes(v.type) for i, v in enumerate(end.operands) if i not in replaced)


class HostMemory:
    """Memory that `@main` of a module at the loop level takes in addition to its arguments.

    Attributes:
        limit: bytes that a call may take, or None if they are not limited.
    """

    def __init__(self, module: ModuleOp, target: Target) -> None:
        functions = [f for f in module.ops if isinstance(f, FuncOp) and not f.is_declaration]
        self._of = {f.sym_name.data: _Lifetimes(f) for f in functions}
        self._live_in_callers: dict[str, int] = {}
        """Function -> most bytes that are live in its callers during a call, without the results of `@main`."""
        self.limit = None
        if "main" in self._of:
            sums = any(isinstance(op, loop.ReduceOp) for op in module.walk())
            self.limit = limit_of(self._of["main"].function, MEMORY_LIMIT)
            self.limit = None if self.limit is None else self.limit + target.workspace * sums
            self._enter("main", 0)

    def _enter(self, name: str, live: int) -> None:
        """Records that `live` bytes of callers are live during a call of function `name`, and visits its callees."""
        if live <= self._live_in_callers.get(name, -1):
            return
        self._live_in_callers[name], lives = live, self._of[name]
        for op in lives.function.body.block.ops:
            if isinstance(op, CallOp | ScanOp):
                callee = (op.callee if isinstance(op, CallOp) else op.step).string_value()
                if callee in self._of:
                    self._enter(callee, live + lives.before[op] + lives.results[op])

    def room(self, nest: loop.NestOp) -> int | None:
        """Returns the bytes that may be stored between two kernels of `nest`, or None if there is no limit.

        The first kernel packs operands or computes the parts of a split-K reduction; the inputs of the nest are live.
        The second one computes the results. During this kernel the results are live, and the tensors that the nest
        reads outside of reductions.
        """
        function = nest.parent_op()
        if self.limit is None or not isinstance(function, FuncOp):
            return None
        lives = self._of[function.sym_name.data]
        taken = max(lives.before[nest], lives.after[nest] + lives.results[nest] + lives.read_last(nest))
        outer = result_bytes(self._of["main"].function) + self._live_in_callers[function.sym_name.data]
        return max(0, self.limit - outer - taken)


class _Lifetimes:
    """Live bytes before and after every operation of a function, without the values that the function returns.

    Attributes:
        function: the function.
        before: operation -> bytes that are live before it.
        results: operation -> bytes of its results.
        after: operation -> bytes of values from before it that are still live after it.
    """

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        ops = [*function.body.block.ops]
        last = {loop.unreshaped(v): op for op in ops for inner in op.walk() for v in inner.operands}
        returned = {loop.unreshaped(v) for v in ops[-1].operands}
        between: list[SSAValue] = [r for op in ops for r in op.results if r in last and r not in returned]
        self._bytes = {v: aligned(tensor_bytes(v.type)) for v in between if is_tensor(v.type)}
        self._ends: dict[Operation, list[SSAValue]] = {op: [] for op in ops}
        for value in self._bytes:
            self._ends[last[value]].append(value)
        self.before: dict[Operation, int] = {}
        self.results: dict[Operation, int] = {}
        self.after: dict[Operation, int] = {}
        live = 0
        for op in ops:
            self.before[op] = live
            self.results[op] = sum(self._bytes.get(r, 0) for r in op.results)
            self.after[op] = live - sum(self._bytes[v] for v in self._ends[op])
            live = self.after[op] + self.results[op]

    def read_last(self, nest: loop.NestOp) -> int:
        """Returns the bytes of tensors whose last use is in `nest`, and that it loads outside of reductions."""
        outside = {loop.unreshaped(op.source) for op in nest.body.block.ops if isinstance(op, loop.LoadOp)}
        return sum(self._bytes[v] for v in self._ends[nest] if v in outside)


_PARTS = "parts"
"""Attribute of a merged kernel (`host-horizontal-fusion`): the names of its kernels, in the order of their blocks."""


def parts_of(function: kernel.FuncOp) -> tuple[str, ...]:
    """Returns the names of the kernels that a kernel was merged from, or its own name."""
    parts = function.attributes.get(_PARTS)
    return tuple(p.data for p in parts) if isa(parts, ArrayAttr[StringAttr]) else (function.sym_name.data,)


def set_parts(function: kernel.FuncOp, parts: Sequence[str]) -> None:
    """Sets the names of the kernels that `function` was merged from."""
    function.attributes[_PARTS] = ArrayAttr([StringAttr(part) for part in parts])


def has_parts(function: kernel.FuncOp) -> bool:
    """Returns true if `function` was merged from other kernels."""
    return _PARTS in function.attributes
