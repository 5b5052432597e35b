"""Compares kernels, and estimates elementwise ones, from their sets of operations alone, without building a graph.

A kernel of the fusion search is a pair (`root`, `inlined`): the number of the candidate whose tensor it stores, and the
bit mask of the candidates that it computes itself instead of loading them.
"""

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
"""Masks of values that are no candidates. `NEVER`: the value is in memory, and no kernel computes it. `ALWAYS`: it is
not, and every kernel that uses it computes it."""

Cone = tuple[int, int]
"""Elementwise computation of a value, as two bit masks of values: (operations, loads). The operations are those that
compute the value from its loads, and constants. The loads are the nearest values in memory or candidates."""


class Structure:
    """Structural keys of the kernels of one function, and the costs of elementwise kernels.

    Two kernels with equal keys apply the same operations in the same order to tensors of equal types. Their graphs
    differ only in names and in the offsets of slices: all slices of a tensor may be shifted by the same distance. So
    equal layers, and equal steps of a recurrence, are estimated once.

    An *elementwise* kernel computes every operation once per element and loads every tensor once. Its time follows from
    the set of its operations and the set of its loads, so a long chain is estimated about as fast as a short one.
    `cost.Kernel` computes the same numbers from the graph.

    Args:
        function: Function that is planned.
        number: Candidate -> its number, which is also its bit in masks of candidates.
        target: Target whose rates are used for the estimates.
    """

    def __init__(self, function: func.FuncOp, number: Mapping[SSAValue, int], target: Target) -> None:
        block, kinds = function.body.block, dict[object, int]()
        values: list[SSAValue] = [*block.args, *(result for op in block.ops for result in op.results)]
        position: dict[SSAValue, int] = {value: i for i, value in enumerate(values)}
        self.target, self._values = target, values
        self._bytes = [tensor_bytes(value.type) if is_tensor(value.type) else 0 for value in values]
        self._candidates = [position[value] for value in number]
        self._loaded = [kinds.setdefault(value.type, len(kinds)) for value in values]
        """Value -> number of its type. Loads are equal if these are equal."""
        self._computed = [0] * len(values)
        """Value -> number of its operation, properties and types. Operations are equal if these are equal."""
        self._operands: list[list[int]] = [[] for _ in values]
        self._masks = [NEVER] * len(values)
        """Value -> mask of its candidate bit, or `NEVER` or `ALWAYS`. A kernel computes the value if the mask and the
        kernel's candidates intersect."""
        self._slices: dict[int, tuple[int, list[int]]] = {}
        """Slice, a view without division -> number of its map without the offsets, and the offset of each
        coordinate."""
        self._guarding = set[int]()
        """Views with padding and gathers: their sources are read under a condition on the indices."""
        self._cones: dict[int, Cone] = {}
        """Candidate that elementwise arithmetic computes -> its operations and loads, with other candidates as
        loads."""
        self._casts = self._special = self._constants = self._elementwise = 0
        cones: dict[SSAValue, Cone] = {}
        for i, value in enumerate(values):
            if in_memory(value) or not isinstance(value, OpResult):
                cones[value] = 0, 1 << i
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
            cone = self._cone(op, 1 << i, cones)
            if cone is not None and candidate is not None:
                self._cones[candidate] = cone
                self._elementwise |= 1 << candidate
            if cone is not None or candidate is not None:
                cones[value] = cone if candidate is None and cone is not None else (0, 1 << i)

    def _cone(self, op: Operation, bit: int, cones: Mapping[SSAValue, Cone]) -> Cone | None:
        """Returns the cone of the result of `op`, or None if `op` or an operation that computes its operands is not
        elementwise. `bit` is the bit of the result of `op`, and `cones` has the cones of earlier values."""
        if isinstance(op, payload.ConstantOp):
            self._constants |= bit
            return bit, 0
        if not is_payload(op) or len(op.results) != 1 or not op.operands or isinstance(op, payload.AssertOp):
            return None
        operations, read, shape = bit, 0, _shape(op.results[0])
        for operand in op.operands:
            cone = cones.get(operand)
            if cone is None or shape is None or _shape(operand) != shape:
                return None
            operations, read = operations | cone[0], read | cone[1]
        if not operations & ~self._constants & ~bit and not read:
            # Arithmetic on constants alone is done once, not per element.
            return None
        self._casts |= bit if isinstance(op, payload.CastOp) else 0
        self._special |= bit if op.name in SPECIAL else 0
        return operations, read

    def key(self, root: int, inlined: int) -> bytes:
        """Returns a key of the kernel (`root`, `inlined`). Kernels with equal keys have equal costs."""
        inlined |= 1 << root
        reached, order = {self._candidates[root]: 0}, [self._candidates[root]]
        key, first_offsets, unsliced = list[int](), dict[int, list[int]](), set[int]()
        for value in order:
            if not inlined & self._masks[value]:
                key.append(self._loaded[value])
                continue
            operands = self._operands[value]
            if value in self._slices and not inlined & self._masks[operands[0]]:
                kind, offsets = self._slices[value]
                begin = first_offsets.setdefault(operands[0], offsets)
                key.append(kind)
                key += [offset - first for offset, first in zip(offsets, begin, strict=True)]
            else:
                key.append(self._computed[value])
                unsliced.update(operands)
            for operand in operands:
                number = reached.get(operand)
                if number is None:
                    number = reached[operand] = len(order)
                    order.append(operand)
                key.append(number)
        # The key has the offsets of slices relative to the first slice of the same tensor. The first offset matters
        # only if a condition compares the indices, or if another operation reads the tensor too.
        guarded = not self._guarding.isdisjoint(order)
        for source, begin in first_offsets.items():
            if guarded or source in unsliced:
                key += begin
        return array("q", key).tobytes()

    def is_elementwise(self, root: int, inlined: int) -> bool:
        """Returns true if all candidates of the kernel (`root`, `inlined`) are elementwise."""
        return not (inlined | 1 << root) & ~self._elementwise

    def elementwise_cost(self, root: int, inlined: int) -> tuple[float, int]:
        """Returns the estimated seconds of an elementwise kernel, and the number of values that it computes or
        loads."""
        operations = read = computed = 0
        for candidate in _bits(inlined | 1 << root):
            cone = self._cones[candidate]
            operations, read = operations | cone[0], read | cone[1]
            computed |= 1 << self._candidates[candidate]
        output, rates, loads = self._values[self._candidates[root]].type, self.target.rates, read & ~computed
        elements = prod(map(typical, extents_of(output)))
        arithmetic = operations & ~self._constants
        # GPUs convert two halves in one instruction.
        count = arithmetic.bit_count() - (arithmetic & self._casts).bit_count() / 2
        compute = elements * count / rates.vector
        compute += elements * (arithmetic & self._special).bit_count() / rates.special
        moved = tensor_bytes(output) + sum(self._bytes[n] for n in _bits(loads))
        cache = moved / rates.cache
        work = compute + self.target.exposed * cache
        times = Times(rates.launch + rates.ramp, moved / rates.memory, cache, work)
        return float(times.seconds), operations.bit_count() + loads.bit_count()


def _linear(view: tensor.IndexMapOp) -> list[Form]:
    """Returns the coordinates at which a view reads its source, or an empty list if they contain divisions."""
    forms = Simplifier().read_map(view.map.data)
    return [] if any(True for form in forms for _ in form.quotients()) else forms


def _shape(value: SSAValue) -> tuple[object, ...] | None:
    return tuple(extents_of(value.type)) if is_tensor(value.type) else None


def _bits(mask: int) -> Iterator[int]:
    """Yields the numbers of the set bits of `mask` in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
