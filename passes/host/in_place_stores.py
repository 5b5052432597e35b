"""Stores that put back what was there: where a thread writes the old value of a place, it need not write at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, VectorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from ...dialects import kernel, payload
from ...dialects.payload import element_type, shape_of
from ..rewriting import insert_after, insert_before, replace


def same_place(load: kernel.LoadOp, store: kernel.StoreOp) -> bool:
    """Whether a thread's load and store are of the same elements, register by register."""
    return (
        list(load.coordinates) == list(store.coordinates)
        and list(load.checks) == list(store.checks)
        and (load.regs, load.steps, load.lower, load.upper, load.xor)
        == (store.regs, store.steps, store.lower, store.upper, store.xor)
    )


def keep_what_is_there(function: Block, buffers: Sequence[SSAValue]) -> None:
    """In the body of a kernel, store to these buffers only where the value is not what the thread read there."""
    for store in [op for op in function.walk() if isinstance(op, kernel.StoreOp) and op.memory in buffers]:
        found = put_back(store)
        if found is not None:
            _only_what_is_new(store, found)
    _skip_the_rest(function)


@dataclass(frozen=True)
class PutBack:
    """A store of `choice`, which is what `load` found at the same place unless its condition holds.

    The condition is register `register` of `condition`, or `condition` if it is a scalar, for all registers of the
    thread.
    """

    choice: payload.SelectOp
    load: kernel.LoadOp
    condition: SSAValue
    register: int
    alone: bool
    """Whether the loaded value is used for nothing else."""


def put_back(store: kernel.StoreOp) -> PutBack | None:
    """`store` as one that puts back what was there where a condition does not hold, if it is one."""
    stored = element_type(store.value.type)
    chain = [store.value]
    if isinstance(store.value.owner, payload.CastOp):
        chain.append(store.value.owner.operand)
    choice = chain[-1].owner
    if not isinstance(choice, payload.SelectOp):
        return None
    chain.append(choice.rhs)
    if element_type(choice.rhs.type) != stored:
        if not isinstance(choice.rhs.owner, payload.CastOp) or not _holds_all(element_type(choice.rhs.type), stored):
            return None
        chain.append(choice.rhs.owner.operand)
    load = chain[-1].owner
    if not isinstance(load, kernel.LoadOp) or not same_place(load, store):
        return None
    condition, register = choice.cond, 0
    made = condition.owner
    if isinstance(made, kernel.SplatOp):
        condition = made.source
    elif isinstance(made, kernel.ShuffleRegistersOp) and len(set(made.registers.get_values())) == 1:
        condition, register = made.source, int(made.registers.get_values()[0])
    elif shape_of(condition.type) != (1,):
        return None
    alone = all(len(list(value.uses)) == 1 for value in chain)
    return PutBack(choice, load, condition, register, alone)


def _only_what_is_new(store: kernel.StoreOp, found: PutBack) -> None:
    """Store the new value, only where the condition holds."""
    block, made = store.parent, found.condition.owner
    if found.load.memory is not store.memory or block is None or not isinstance(made, Operation):
        return
    holds = _extracted(made, found.condition, found.register)
    if store.predicate is not None:
        both = arith.AndIOp(store.predicate, holds)
        insert_before(store, both)
        holds = both.result
    new, stored = found.choice.lhs, element_type(store.value.type)
    if element_type(new.type) != stored:
        cast = payload.CastOp(new, stored)
        insert_before(store, cast, source=found.choice)
        new = cast.result
    _rebuild(store, new, holds)


def _extracted(made: Operation, source: SSAValue, register: int) -> SSAValue:
    """A register of `source`, which `made` makes, taken out right after that; `source` itself if it is a scalar."""
    if not isinstance(source.type, VectorType):
        return source
    after = made.next_op
    if isinstance(after, kernel.ExtractOp) and after.source is source and after.register.data == register:
        return after.result
    found = kernel.ExtractOp(source, register)
    insert_after(made, found)
    return found.result


def _holds_all(wide: Attribute, narrow: Attribute) -> bool:
    """Whether a value of the float type `narrow` is the same after a cast to `wide` and back."""
    return isinstance(narrow, Float16Type | BFloat16Type | Float32Type) and (
        isinstance(wide, Float64Type) or isinstance(wide, Float32Type)
    )


def _rebuild(store: kernel.StoreOp, value: SSAValue, predicate: SSAValue | None) -> None:
    """`store` with another value and predicate."""
    new = kernel.StoreOp(
        value,
        store.memory,
        list(store.coordinates),
        store.reg_bases,
        vec=store.vec.data,
        checks=list(store.checks),
        steps=store.check_steps,
        bounds=store.bounds,
        predicate=predicate,
        xor=store.xor is not None,
    )
    replace(store, new)


def _skip_the_rest(block: Block) -> None:
    """If all stores have one predicate, put what comes after it into a conditional: there is nothing else to do."""
    stores = [op for op in block.walk() if isinstance(op, kernel.StoreOp)]
    predicates = {store.predicate for store in stores}
    predicate = stores[0].predicate if len(predicates) == 1 else None
    if predicate is None or not isinstance(predicate.owner, Operation) or predicate.owner.parent is not block:
        return
    behind: list[Operation] = []
    op = predicate.owner.next_op
    while op is not None:
        if not isinstance(op, kernel.LoadOp | kernel.StoreOp) and not is_side_effect_free(op):
            return
        behind.append(op)
        op = op.next_op
    inner = Block()
    for op in behind:
        op.detach()
        inner.add_op(op)
    for store in [op for op in inner.ops if isinstance(op, kernel.StoreOp)]:
        _rebuild(store, store.value, None)
    inner.add_op(scf.YieldOp())
    conditional = scf.IfOp(predicate, [], Region(inner))
    conditional.location = predicate.owner.location
    block.add_op(conditional)
