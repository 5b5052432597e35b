"""`host-update-in-place`: writes a result over the argument that it replaces, such as the cache of a language model.

Such a kernel often stores `select(condition, new, old)`, where `old` was loaded from the same address. The store can
then be skipped where the condition is false. This file calls such a store a *put-back*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, ModuleOp, StringAttr, VectorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from ...dialects import kernel, payload
from ...dialects.payload import element_type, shape_of
from ...dialects.support.calls import IN_PLACE, UPDATES, pairs_of, set_pairs
from ...dialects.support.locations import enclosing
from ..analysis.host_memory import parts_of, set_parts
from ..pass_manager import emit_remark
from ..rewriting import erase, insert_after, insert_before, replace, set_fields

# Fields of `kernel.load` and `kernel.store` that, with coordinates and checks, decide the address of an element.
_PLACE = ("regs", "steps", "lower", "upper", "xor")


def same_place(load: kernel.LoadOp, store: kernel.StoreOp) -> bool:
    """Returns true if a load and a store have the same coordinates and checks in every thread and register."""
    loaded, stored = ((*op.coordinates, *op.checks, *(getattr(op, p) for p in _PLACE)) for op in (load, store))
    return loaded == stored


def keep_what_is_there(function: Block, buffers: Sequence[SSAValue]) -> None:
    """Makes put-backs to `buffers` in a kernel conditional: nothing is stored where the old value would be."""
    for store in [op for op in function.walk() if isinstance(op, kernel.StoreOp) and op.memory in buffers]:
        match = put_back(store)
        if match is not None and match.load.memory is store.memory:
            _store_only_new(store, match)
    _skip_if_nothing_stored(function)


@dataclass(frozen=True)
class PutBack:
    """Match of a store that puts the old value back unless a condition holds.

    choice     selection between the new and the old value, which is stored
    load       load of the old value, from the address of the store
    condition  condition of the selection: a scalar, or a vector of which one register counts
    register   number of that register
    alone      true if the old value has no other use
    """

    choice: payload.SelectOp
    load: kernel.LoadOp
    condition: SSAValue
    register: int
    alone: bool


def put_back(store: kernel.StoreOp) -> PutBack | None:
    """Returns the match of a store that puts back the old value where a condition is false, or None."""
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
    producer = condition.owner
    if isinstance(producer, kernel.SplatOp):
        condition = producer.source
    elif isinstance(producer, kernel.ShuffleRegistersOp) and len(set(producer.registers.get_values())) == 1:
        condition, register = producer.source, int(producer.registers.get_values()[0])
    elif shape_of(condition.type) != (1,):
        return None
    alone = all(len(list(value.uses)) == 1 for value in chain)
    return PutBack(choice, load, condition, register, alone)


def _store_only_new(store: kernel.StoreOp, match: PutBack) -> None:
    """Changes a put-back to a store of the new value with the condition as its predicate.

    Stores with the same condition share one `kernel.extract`, directly after the operation that computes the condition.
    """
    producer, holds = match.condition.owner, match.condition
    if not isinstance(producer, Operation):
        return
    if isinstance(holds.type, VectorType):
        after = producer.next_op
        if not isinstance(after, kernel.ExtractOp) or (after.source, after.register.data) != (holds, match.register):
            insert_after(producer, after := kernel.ExtractOp(holds, match.register))
        holds = after.result
    if store.predicate is not None:
        insert_before(store, both := arith.AndIOp(store.predicate, holds))
        holds = both.result
    new, stored = match.choice.lhs, element_type(store.value.type)
    if element_type(new.type) != stored:
        insert_before(store, cast := payload.CastOp(new, stored), source=match.choice)
        new = cast.result
    set_fields(store, value=new, predicate=holds)


def _holds_all(wide: Attribute, narrow: Attribute) -> bool:
    """Returns true if a value of the float type `narrow` is the same after a cast to `wide` and back."""
    return isinstance(narrow, Float16Type | BFloat16Type | Float32Type) and isinstance(wide, Float32Type | Float64Type)


def _skip_if_nothing_stored(block: Block) -> None:
    """Moves all operations after the predicate of the stores into an `scf.if`, if all stores have the same predicate.

    Without a store a thread has nothing to do. The block stays as it is if operations of a whole warp (`_OF_A_WARP`)
    follow and threads may disagree on the predicate.
    """
    stores = [op for op in block.walk() if isinstance(op, kernel.StoreOp)]
    predicates = {store.predicate for store in stores}
    predicate = stores[0].predicate if len(predicates) == 1 else None
    if predicate is None or not isinstance(predicate.owner, Operation) or predicate.owner.parent is not block:
        return
    ops = list(block.ops)
    following = ops[ops.index(predicate.owner) + 1 :]
    if not all(isinstance(op, kernel.LoadOp | kernel.StoreOp) or is_side_effect_free(op) for op in following):
        return
    if any(isinstance(o, _OF_A_WARP) for op in following for o in op.walk()) and _depends_on_thread(predicate):
        return
    inner = Block()
    for op in following:
        op.detach()
        inner.add_op(op)
    for store in [op for op in inner.ops if isinstance(op, kernel.StoreOp)]:
        set_fields(store, predicate=None)
    inner.add_op(scf.YieldOp())
    conditional = scf.IfOp(predicate, [], Region(inner))
    conditional.location = predicate.owner.location
    block.add_op(conditional)


_OF_A_WARP = (kernel.ShuffleOp, kernel.ShuffleXorOp, kernel.MmaOp)
"""Operations without effects that all lanes of a warp execute together."""


def _depends_on_thread(value: SSAValue) -> bool:
    """Returns true if threads of a block may have different values of `value`."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        op = (operand := todo.pop()).owner
        if operand in seen or not isinstance(op, Operation):
            continue
        seen.add(operand)
        if isinstance(op, kernel.IdOp) and op.kind.data in (kernel.Id.THREAD, kernel.Id.LANE) or op.regions:
            return True
        todo.extend(op.operands)
    return False


class UpdateInPlacePass(ModulePass):
    """Writes a result over the argument that it replaces, if no launch needs the old value afterwards.

    ```mlir
    func.func @main(%cache: memref<64xf32>, %new: memref<1xf32>, %out: memref<64xf32>)
        attributes {updates = array<i64: 2, 0>} {
      kernel.launch @k0(%cache, %new, %out) : memref<64xf32>, memref<1xf32>, memref<64xf32>
    ```
    becomes
    ```mlir
    func.func @main(%cache: memref<64xf32>, %new: memref<1xf32>, %out: memref<64xf32>)
        attributes {updates = array<i64: 2, 0>, in_place = array<i64: 2, 0>} {
      kernel.launch @k0_in_place(%cache, %new) : memref<64xf32>, memref<1xf32>
    ```

    The attribute `updates` of `@main` pairs results with the arguments that they replace. Such a pair becomes one
    buffer (`in_place`) if all other launches that read the argument are before the one that writes the result, and if
    each thread of that kernel reads only elements that it stores afterwards. Otherwise the two buffers stay, and the
    caller copies the result to the argument. If a kernel stores the old value where a condition is false, it no longer
    stores there.

    **Rationale**: a step of a language model adds one token to a long cache. Copying the cache would take longer than
    the step.

    **Pipeline position**: after `host-inline-calls`, when one list of launches shows all readers of the old value.
    """

    name = "host-update-in-place"
    needs: ClassVar[Mapping[str, int]] = {"func.func{updates}": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = {k.sym_name.data: k for k in op.ops if isinstance(k, kernel.FuncOp)}
        for main in [f for f in op.ops if isinstance(f, func.FuncOp) and UPDATES in f.attributes]:
            if not main.is_declaration:
                _Updates(main, kernels).run()
        launched = {launch.kernel.string_value() for launch in op.walk() if isinstance(launch, kernel.LaunchOp)}
        for name, unused in kernels.items():
            if name not in launched and f"{name}_in_place" in kernels:
                erase(unused)


@dataclass
class _Updates:
    """Updates of one host program.

    main      the host program
    kernels   name -> kernel
    variants  name of a kernel and its (result, argument) pairs -> name of its in-place variant
    order     operation of `main` -> its position (set by `run`)
    """

    main: func.FuncOp
    kernels: dict[str, kernel.FuncOp]
    variants: dict[tuple[str, tuple[tuple[int, int], ...]], str] = field(
        default_factory=dict[tuple[str, tuple[tuple[int, int], ...]], str]
    )

    def run(self) -> None:
        arguments = self.main.body.block.args
        self.order = {op: i for i, op in enumerate(self.main.body.block.ops)}
        done: list[tuple[int, int]] = []
        for out, old in pairs_of(self.main, UPDATES):
            reason = self._refusal(arguments[out], arguments[old])
            if reason is None:
                done.append((out, old))
            else:
                hint = arguments[old].name_hint or str(old)
                emit_remark(self.main, UpdateInPlacePass.name, f"{hint} is not updated in place: {reason}")
        same: dict[SSAValue, SSAValue] = {arguments[out]: arguments[old] for out, old in done}
        for launch in [op for op in self.main.body.block.ops if isinstance(op, kernel.LaunchOp)]:
            if any(b in same for b in launch.buffers):
                self._relaunch(launch, same)
        set_pairs(self.main, IN_PLACE, done)

    def _refusal(self, out: SSAValue, old: SSAValue) -> str | None:
        """Returns the reason why the result `out` cannot be written over the argument `old`, or None if it can."""
        if out.type != old.type:
            return "the result has another type"
        users = {use.operation for value in (out, old) for use in value.uses}
        if any(not isinstance(op, kernel.LaunchOp) or op not in self.order for op in users):
            return "a loop of launches, or something else than a kernel, uses it"
        writers, readers = (
            [use.operation for use in value.uses if isinstance(use.operation, kernel.LaunchOp)] for value in (out, old)
        )
        if not writers:
            return "nothing writes the result"
        first = min(writers, key=self.order.__getitem__)
        if any(self.order[op] > self.order[first] for op in readers):
            return "its old value is needed after the new one is written"
        if writers.count(first) > 1 or readers.count(first) > 1:
            return "a kernel takes it twice"
        if any(kernel.is_written(self._arguments(op)[old]) for op in readers):
            return "a kernel writes it"
        if first in readers:
            arguments = self._arguments(first)
            if not _reads_where_it_writes(arguments[old], arguments[out]):
                return "a thread may read what another one has written"
        return None

    def _arguments(self, launch: kernel.LaunchOp) -> dict[SSAValue, SSAValue]:
        """Maps the buffers that a launch passes to the parameters of its kernel."""
        function = self.kernels[launch.kernel.string_value()]
        return dict(zip(launch.buffers, function.body.block.args, strict=True))

    def _relaunch(self, launch: kernel.LaunchOp, same: dict[SSAValue, SSAValue]) -> None:
        """Replaces a launch by one on the arguments of `same`: result -> argument that it is written over."""
        old = list(launch.buffers)
        pairs = {i: old.index(same[b]) for i, b in enumerate(old) if b in same and same[b] in old}
        name = launch.kernel.string_value()
        if pairs:
            key = (name, tuple(pairs.items()))
            if key not in self.variants:
                self.variants[key] = self._variant(self.kernels[name], pairs)
            name = self.variants[key]
        replace(launch, kernel.LaunchOp(name, [same.get(b, b) for i, b in enumerate(old) if i not in pairs]))

    def _variant(self, function: kernel.FuncOp, pairs: Mapping[int, int]) -> str:
        """Inserts a copy of a kernel in which argument j takes the place of argument i, for `pairs` i -> j.

        Returns the name of the copy.
        """
        name = f"{function.sym_name.data}_in_place"
        while name in self.kernels:
            name += "_"
        variant = function.clone()
        variant.sym_name = StringAttr(name)
        set_parts(variant, parts_of(function))
        block = variant.body.block
        arguments = list(block.args)
        for i, j in pairs.items():
            arguments[i].replace_all_uses_with(arguments[j])
            block.erase_arg(arguments[i])
        keep_what_is_there(block, [arguments[j] for j in pairs.values()])
        insert_before(function, variant)
        self.kernels[name] = variant
        return name


def _reads_where_it_writes(old: SSAValue, out: SSAValue) -> bool:
    """Returns true if each thread loads from `old` only elements that the same thread stores to `out` afterwards.

    Different threads store different elements, so no thread then reads an element that another thread writes. If a
    predicate chooses one of several threads to store an element, the load must be one that a put-back removes.
    """
    if old.type != out.type:
        return False
    loads, stores = ([use.operation for use in value.uses] for value in (old, out))
    for load in loads:
        for store in stores:
            if not isinstance(load, kernel.LoadOp) or not isinstance(store, kernel.StoreOp):
                return False
            if enclosing(store, scf.ForOp) is not None:
                return False
            if load.parent is not store.parent or not load.is_before_in_block(store):
                return False
            if not same_place(load, store) or store.predicate is not None and not _is_put_back(load, store):
                return False
    return True


def _is_put_back(load: kernel.LoadOp, store: kernel.StoreOp) -> bool:
    """Returns true if `store` puts back the value of `load`, which has no other use: then the load is removed."""
    match = put_back(store)
    return match is not None and match.load is load and match.alone
