"""Cost of kernels that only do elementwise arithmetic, from sets of operations instead of a graph.

A kernel whose values all have the indices of its result computes every operation once per element and loads every
tensor once. Its time then depends on the set of its operations and the set of the tensors that it reads. Both are bit
masks, so the cost of a long chain takes about as long as that of a short one. All other kernels have a graph
(`cost.Kernel`), which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue

from ....dialects import payload
from ....dialects.payload import is_payload, is_tensor, tensor_bytes
from ....dialects.shapes.extents import extents_of, typical
from ....dialects.support.calls import Call
from ....target.model import Target
from ...planning.roofline import SPECIAL, Times


@dataclass(frozen=True)
class Part:
    """Operations of one value down to values in memory.

    `operations`: bit mask of positions in the function, constants included. `read`: bit mask of values in memory.
    """

    operations: int
    read: int


class ElementwiseCosts:
    """Costs of the elementwise kernels of one function.

    Args:
        function: Function that is planned.
        number: Number of every candidate of the search, which its bit in a mask has as well.
        target: Target whose times count.
    """

    def __init__(self, function: func.FuncOp, number: Mapping[SSAValue, int], target: Target) -> None:
        self.target = target
        self.parts: dict[int, Part] = {}
        """Candidate -> its operations, for those that elementwise arithmetic computes."""
        self._in_memory: list[SSAValue] = [*number]
        self._bytes = [tensor_bytes(value.type) for value in number]
        self._casts = self._special = self._constants = self._elementwise = 0
        computed: dict[SSAValue, Part] = {}
        for argument in function.body.block.args:
            self._read(argument, computed)
        for position, op in enumerate(function.body.block.ops):
            if isinstance(op, Call):
                for result in op.results:
                    self._read(result, computed)
                continue
            part = self._part(op, 1 << position, computed)
            for result in op.results:
                candidate = number.get(result)
                if candidate is None:
                    computed |= {} if part is None else {result: part}
                    continue
                computed[result] = Part(0, 1 << candidate)
                if part is not None:
                    self.parts[candidate] = part
                    self._elementwise |= 1 << candidate

    def _read(self, value: SSAValue, computed: dict[SSAValue, Part]) -> None:
        """Notes that `value` is in memory."""
        computed[value] = Part(0, 1 << len(self._in_memory))
        self._in_memory.append(value)
        self._bytes.append(tensor_bytes(value.type) if is_tensor(value.type) else 0)

    def _part(self, op: Operation, bit: int, computed: Mapping[SSAValue, Part]) -> Part | None:
        """Returns the operations of `op` and of its operands, or None if they are not all elementwise."""
        if isinstance(op, payload.ConstantOp):
            self._constants |= bit
            return Part(bit, 0)
        if not is_payload(op) or len(op.results) != 1 or not op.operands or isinstance(op, payload.AssertOp):
            return None
        operations, read, shape = bit, 0, _shape(op.results[0])
        for operand in op.operands:
            part = computed.get(operand)
            if part is None or shape is None or _shape(operand) != shape:
                return None
            operations, read = operations | part.operations, read | part.read
        if not operations & ~self._constants & ~bit and not read:
            return None  # arithmetic on constants alone is done once
        self._casts |= bit if isinstance(op, payload.CastOp) else 0
        self._special |= bit if op.name in SPECIAL else 0
        return Part(operations, read)

    def covers(self, root: int, inlined: int) -> bool:
        """Returns true if the kernel that keeps `root` and computes `inlined` itself is elementwise."""
        return not (inlined | 1 << root) & ~self._elementwise

    def cost(self, root: int, inlined: int) -> tuple[float, int] | None:
        """Returns the seconds of the kernel that keeps `root` and computes `inlined` itself, and how many values it
        computes; None if it is not elementwise."""
        if not self.covers(root, inlined):
            return None
        operations = read = 0
        for candidate in _bits(inlined | 1 << root):
            part = self.parts[candidate]
            operations, read = operations | part.operations, read | part.read
        output, rates, loads = self._in_memory[root].type, self.target.rates, read & ~inlined
        elements = prod(map(typical, extents_of(output)))
        arithmetic = operations & ~self._constants
        count = arithmetic.bit_count() - (arithmetic & self._casts).bit_count() / 2
        compute = elements * count / rates.vector
        compute += elements * (arithmetic & self._special).bit_count() / rates.special
        moved = tensor_bytes(output) + sum(self._bytes[n] for n in _bits(loads))
        cache = moved / rates.cache
        work = compute if self.target.core is None else compute + cache  # a core waits for its loads
        times = Times(rates.launch + rates.ramp, moved / rates.memory, cache, work)
        return float(times.seconds), operations.bit_count() + loads.bit_count()


def _shape(value: SSAValue) -> tuple[object, ...] | None:
    return tuple(extents_of(value.type)) if is_tensor(value.type) else None


def _bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the bits of `mask`, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
