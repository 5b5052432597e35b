"""Structure of kernels as sets of operations, without graphs: equality of kernels, and cost of elementwise ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from math import prod

from xdsl.dialects import func
from xdsl.ir import Operation, OpResult, SSAValue

from ....dialects import payload, tensor
from ....dialects.payload import is_payload, is_tensor, tensor_bytes
from ....dialects.shapes.affine import Form, Simplifier
from ....dialects.shapes.extents import extents_of, typical
from ....dialects.support.equivalence import structure
from ....dialects.tensor import ROOT
from ....target.model import Target
from ...planning.model import SPECIAL, Times
from .inline import in_memory

NEVER, ALWAYS = 0, -1
"""Masks of the values that are in memory, and of those that are no candidates."""

Part = tuple[int, int]
"""Operations of a value down to values in memory, constants included, and these values: bit masks of positions."""


class Structure:
    """Structure of the kernels of one function.

    Two kernels with equal keys apply the same operations in the same order to tensors of equal types, so that their
    graphs differ in names only, and in offsets: slices of a tensor in memory that begin elsewhere by the same distance
    are equal. So equal layers, and equal steps of a recurrence, are looked at once.

    A kernel whose values all have the indices of its result computes every operation once per element and loads every
    tensor once. Its time follows from the sets of both, so that a long chain takes about as long as a short one.
    `cost.Kernel` computes the same numbers from the graph.

    Args:
        function: Function that is planned.
        number: Number of every candidate of the search, which its bit in a mask has as well.
        target: Target whose times count.
    """

    def __init__(self, function: func.FuncOp, number: Mapping[SSAValue, int], target: Target) -> None:
        block, kinds = function.body.block, dict[object, int]()
        values: list[SSAValue] = [*block.args, *(result for op in block.ops for result in op.results)]
        position: dict[SSAValue, int] = {value: i for i, value in enumerate(values)}
        self.target, self._values = target, values
        self._bytes = [tensor_bytes(value.type) if is_tensor(value.type) else 0 for value in values]
        self._candidates = [position[value] for value in number]
        self._loaded = [kinds.setdefault(value.type, len(kinds)) for value in values]
        """Kind of each value as a tensor in memory."""
        self._computed = [0] * len(values)
        """Kind of each value as the result of its operation."""
        self._operands: list[list[int]] = [[] for _ in values]
        self._masks = [NEVER] * len(values)
        """Bit of each candidate; `NEVER` or `ALWAYS` of all other values: whether a kernel computes them."""
        self._slices: dict[int, tuple[int, list[int]]] = {}
        """Slice -> its kind without the offsets, and these."""
        self._guarding = set[int]()
        """Values that are computed under a condition on the indices."""
        self._parts: dict[int, Part] = {}
        """Candidate -> its operations, for those that elementwise arithmetic computes."""
        self._casts = self._special = self._constants = self._elementwise = 0
        parts: dict[SSAValue, Part] = {}
        for i, value in enumerate(values):
            if in_memory(value) or not isinstance(value, OpResult):
                parts[value] = 0, 1 << i
                continue
            op, candidate = value.op, number.get(value)
            if isinstance(op, tensor.GatherOp) or (isinstance(op, tensor.IndexMapOp) and op.domain is not None):
                self._guarding.add(i)
            elif isinstance(op, tensor.IndexMapOp) and (forms := _linear(op)):
                key = (tuple(f.terms for f in forms), value.type)
                self._slices[i] = kinds.setdefault(key, len(kinds)), [f.constant for f in forms]
            self._computed[i] = kinds.setdefault((structure(op, {}, (ROOT,)), value.index), len(kinds))
            self._operands[i] = [position[v] for v in op.operands]
            self._masks[i] = ALWAYS if candidate is None else 1 << candidate
            part = self._part(op, 1 << i, parts)
            if part is not None and candidate is not None:
                self._parts[candidate] = part
                self._elementwise |= 1 << candidate
            if part is not None or candidate is not None:
                parts[value] = part if candidate is None and part is not None else (0, 1 << i)

    def _part(self, op: Operation, bit: int, parts: Mapping[SSAValue, Part]) -> Part | None:
        """Returns the operations of `op` and of its operands, or None if they are not all elementwise."""
        if isinstance(op, payload.ConstantOp):
            self._constants |= bit
            return bit, 0
        if not is_payload(op) or len(op.results) != 1 or not op.operands or isinstance(op, payload.AssertOp):
            return None
        operations, read, shape = bit, 0, _shape(op.results[0])
        for operand in op.operands:
            part = parts.get(operand)
            if part is None or shape is None or _shape(operand) != shape:
                return None
            operations, read = operations | part[0], read | part[1]
        if not operations & ~self._constants & ~bit and not read:
            return None  # arithmetic on constants alone is done once
        self._casts |= bit if isinstance(op, payload.CastOp) else 0
        self._special |= bit if op.name in SPECIAL else 0
        return operations, read

    def key(self, root: int, inlined: int) -> bytes:
        """Returns the key of the kernel that keeps `root` and computes `inlined` itself."""
        inlined |= 1 << root
        reached, order = {self._candidates[root]: 0}, [self._candidates[root]]
        key, begins, whole = list[int](), dict[int, list[int]](), set[int]()
        for value in order:
            if not inlined & self._masks[value]:
                key.append(self._loaded[value])
                continue
            operands = self._operands[value]
            if value in self._slices and not inlined & self._masks[operands[0]]:
                kind, offsets = self._slices[value]
                begin = begins.setdefault(operands[0], offsets)
                key.append(kind)
                key += [offset - first for offset, first in zip(offsets, begin, strict=True)]
            else:
                key.append(self._computed[value])
                whole.update(operands)
            for operand in operands:
                number = reached.get(operand)
                if number is None:
                    number = reached[operand] = len(order)
                    order.append(operand)
                key.append(number)
        guarded = not self._guarding.isdisjoint(order)
        for source, begin in begins.items():
            if guarded or source in whole:
                key += begin
        return array("q", key).tobytes()

    def is_elementwise(self, root: int, inlined: int) -> bool:
        """Returns true if the kernel that keeps `root` and computes `inlined` itself is elementwise."""
        return not (inlined | 1 << root) & ~self._elementwise

    def elementwise_cost(self, root: int, inlined: int) -> tuple[float, int]:
        """Returns the seconds of an elementwise kernel, and how many values it computes."""
        operations = read = own = 0
        for candidate in _bits(inlined | 1 << root):
            part = self._parts[candidate]
            operations, read, own = operations | part[0], read | part[1], own | 1 << self._candidates[candidate]
        output, rates, loads = self._values[self._candidates[root]].type, self.target.rates, read & ~own
        elements = prod(map(typical, extents_of(output)))
        arithmetic = operations & ~self._constants
        count = arithmetic.bit_count() - (arithmetic & self._casts).bit_count() / 2
        compute = elements * count / rates.vector
        compute += elements * (arithmetic & self._special).bit_count() / rates.special
        moved = tensor_bytes(output) + sum(self._bytes[n] for n in _bits(loads))
        cache = moved / rates.cache
        work = compute + self.target.exposed * cache
        times = Times(rates.launch + rates.ramp, moved / rates.memory, cache, work)
        return float(times.seconds), operations.bit_count() + loads.bit_count()


def _linear(view: tensor.IndexMapOp) -> list[Form]:
    """Returns the coordinates that a view reads at, or nothing if there is a division in them."""
    forms = Simplifier().read_map(view.map.data)
    return [] if any(True for form in forms for _ in form.quotients()) else forms


def _shape(value: SSAValue) -> tuple[object, ...] | None:
    return tuple(extents_of(value.type)) if is_tensor(value.type) else None


def _bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the bits of `mask`, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
