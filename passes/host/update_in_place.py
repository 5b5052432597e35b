"""Results that replace an argument are written where the argument is."""

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

_PLACE = ("regs", "steps", "lower", "upper", "xor")


def same_place(load: kernel.LoadOp, store: kernel.StoreOp) -> bool:
    where, wanted = ((*op.coordinates, *op.checks, *(getattr(op, p) for p in _PLACE)) for op in (load, store))
    return where == wanted


def keep_what_is_there(function: Block, buffers: Sequence[SSAValue]) -> None:
    """In the body of a kernel, store to these buffers only where the value is not what the thread read there."""
    for store in [op for op in function.walk() if isinstance(op, kernel.StoreOp) and op.memory in buffers]:
        found = put_back(store)
        if found is not None and found.load.memory is store.memory:
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
    """Store the new value, only where the condition holds: a register, taken out right after what makes it."""
    made, holds = found.condition.owner, found.condition
    if not isinstance(made, Operation):
        return
    if isinstance(holds.type, VectorType):
        after = made.next_op
        if not isinstance(after, kernel.ExtractOp) or (after.source, after.register.data) != (holds, found.register):
            insert_after(made, after := kernel.ExtractOp(holds, found.register))
        holds = after.result
    if store.predicate is not None:
        insert_before(store, both := arith.AndIOp(store.predicate, holds))
        holds = both.result
    new, stored = found.choice.lhs, element_type(store.value.type)
    if element_type(new.type) != stored:
        insert_before(store, cast := payload.CastOp(new, stored), source=found.choice)
        new = cast.result
    set_fields(store, value=new, predicate=holds)


def _holds_all(wide: Attribute, narrow: Attribute) -> bool:
    """Whether a value of the float type `narrow` is the same after a cast to `wide` and back."""
    return isinstance(narrow, Float16Type | BFloat16Type | Float32Type) and isinstance(wide, Float32Type | Float64Type)


def _skip_the_rest(block: Block) -> None:
    """If all stores have one predicate, put what comes after it into a conditional: there is nothing else to do. What
    the lanes of a warp do together stays outside, unless the predicate is the same for all of them."""
    stores = [op for op in block.walk() if isinstance(op, kernel.StoreOp)]
    predicates = {store.predicate for store in stores}
    predicate = stores[0].predicate if len(predicates) == 1 else None
    if predicate is None or not isinstance(predicate.owner, Operation) or predicate.owner.parent is not block:
        return
    ops = list(block.ops)
    behind = ops[ops.index(predicate.owner) + 1 :]
    if not all(isinstance(op, kernel.LoadOp | kernel.StoreOp) or is_side_effect_free(op) for op in behind):
        return
    if any(isinstance(o, _OF_A_WARP) for op in behind for o in op.walk()) and _depends_on_thread(predicate):
        return
    inner = Block()
    for op in behind:
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
    """Whether threads of a block may have different values of it."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        op = (found := todo.pop()).owner
        if found in seen or not isinstance(op, Operation):
            continue
        seen.add(found)
        if isinstance(op, kernel.IdOp) and op.kind.data in (kernel.Id.THREAD, kernel.Id.LANE) or op.regions:
            return True
        todo.extend(op.operands)
    return False


class UpdateInPlacePass(ModulePass):
    """Let a kernel write its result over the argument that the result replaces, where nobody needs the old value.

    What: `updates` of `@main` pairs results with arguments that they replace. If every other launch that reads the
    argument comes before the one that writes the result, and that kernel itself reads, in each thread, just the places
    that it writes afterwards, the two become one buffer, which `in_place` says. Otherwise there are still two, and
    whoever calls the program copies one to the other. In a kernel that writes back what it has read where a condition
    does not hold, only the threads for which it holds are left to do something.
    Why: the cache of a language model is long and a step adds a token to it; copying it would cost more than all else.
    Why here: the host program is one list of launches, so what is read before and after is seen.

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
    """The updates of one host program."""

    main: func.FuncOp
    kernels: dict[str, kernel.FuncOp]
    made: dict[tuple[str, tuple[tuple[int, int], ...]], str] = field(
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
        """Why `out` cannot be written over `old`; None if it can."""
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
        function = self.kernels[launch.kernel.string_value()]
        return dict(zip(launch.buffers, function.body.block.args, strict=True))

    def _relaunch(self, launch: kernel.LaunchOp, same: dict[SSAValue, SSAValue]) -> None:
        old = list(launch.buffers)
        pairs = {i: old.index(same[b]) for i, b in enumerate(old) if b in same and same[b] in old}
        name = launch.kernel.string_value()
        if pairs:
            key = (name, tuple(pairs.items()))
            if key not in self.made:
                self.made[key] = self._variant(self.kernels[name], pairs)
            name = self.made[key]
        replace(launch, kernel.LaunchOp(name, [same.get(b, b) for i, b in enumerate(old) if i not in pairs]))

    def _variant(self, function: kernel.FuncOp, pairs: Mapping[int, int]) -> str:
        """The kernel with argument i at the place of argument j for every pair (i, j); its name."""
        name = f"{function.sym_name.data}_in_place"
        while name in self.kernels:
            name += "_"
        made = function.clone()
        made.sym_name = StringAttr(name)
        set_parts(made, parts_of(function))
        block = made.body.block
        arguments = list(block.args)
        for i, j in pairs.items():
            arguments[i].replace_all_uses_with(arguments[j])
            block.erase_arg(arguments[i])
        keep_what_is_there(block, [arguments[j] for j in pairs.values()])
        insert_before(function, made)
        self.kernels[name] = made
        return name


def _reads_where_it_writes(old: SSAValue, out: SSAValue) -> bool:
    """Whether every load of `old` is in front of every store to `out`, and of the elements that the thread stores.

    Different threads store different elements, so then no thread reads what another one writes; threads that hold the
    same elements, of which a predicate lets one store, must not read them at all.
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
            if not same_place(load, store) or store.predicate is not None and not _goes_away(load, store):
                return False
    return True


def _goes_away(load: kernel.LoadOp, store: kernel.StoreOp) -> bool:
    """Whether the load is for nothing but to put the value back, which is not done then."""
    found = put_back(store)
    return found is not None and found.load is load and found.alone
