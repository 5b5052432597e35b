"""Results that replace an argument are written where the argument is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import kernel
from ...dialects.support.aliasing import IN_PLACE, UPDATES, pairs_of, set_pairs
from ..remarks import emit_remark
from ..rewriting import erase, insert_before, replace
from .in_place_stores import keep_what_is_there, put_back, same_place


@dataclass(frozen=True)
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
        writers = sorted((use.operation for use in out.uses), key=self.order.__getitem__)
        readers = [use.operation for use in old.uses]
        if not writers:
            return "nothing writes the result"
        first = writers[0]
        assert isinstance(first, kernel.LaunchOp)
        if any(self.order[op] > self.order[first] for op in readers):
            return "its old value is needed after the new one is written"
        if writers.count(first) > 1 or readers.count(first) > 1:
            return "a kernel takes it twice"
        function = self.kernels[first.kernel.string_value()]
        if any(not _reads(self.kernels, op, old) for op in readers):
            return "a kernel writes it"
        if first in readers:
            place = dict(zip(first.buffers, function.body.block.args, strict=True))
            if not _reads_where_it_writes(place[old], place[out]):
                return "a thread may read what another one has written"
        return None

    def _relaunch(self, launch: kernel.LaunchOp, same: dict[SSAValue, SSAValue]) -> None:
        """Launch on the arguments in place of the results."""
        buffers = list(launch.buffers)
        pairs = tuple((i, buffers.index(same[b])) for i, b in enumerate(buffers) if b in same and same[b] in buffers)
        name = launch.kernel.string_value()
        if pairs:
            key = (name, pairs)
            if key not in self.made:
                self.made[key] = self._variant(self.kernels[name], pairs)
            name = self.made[key]
        gone = {i for i, _ in pairs}
        new = kernel.LaunchOp(name, [same.get(b, b) for i, b in enumerate(buffers) if i not in gone])
        replace(launch, new)

    def _variant(self, function: kernel.FuncOp, pairs: Sequence[tuple[int, int]]) -> str:
        """The kernel with argument i at the place of argument j for every pair (i, j); its name."""
        gone = dict(pairs)
        old_arguments = function.body.block.args
        block = Block(arg_types=[a.type for i, a in enumerate(old_arguments) if i not in gone])
        kept = [a for i, a in enumerate(old_arguments) if i not in gone]
        values: dict[SSAValue, SSAValue] = dict(zip(kept, block.args, strict=True))
        for old, new in values.items():
            new.name_hint = old.name_hint
        values |= {old_arguments[i]: values[old_arguments[j]] for i, j in pairs}
        for op in function.body.block.ops:
            block.add_op(op.clone(values))
        keep_what_is_there(block, [values[old_arguments[j]] for _, j in pairs])
        name = f"{function.sym_name.data}_in_place"
        while name in self.kernels:
            name += "_"
        shared = function.shared.data if function.shared is not None else None
        made = kernel.FuncOp(
            *(name, function.factors, function.warps.data, Region(block), shared),
            *(function.cluster_size, function.resident),
        )
        made.attributes.update(function.attributes)
        insert_before(function, made)
        self.kernels[name] = made
        return name


def _reads(kernels: dict[str, kernel.FuncOp], launch: Operation, buffer: SSAValue) -> bool:
    """Whether all that the kernel of a launch does with `buffer` is loading."""
    assert isinstance(launch, kernel.LaunchOp)
    arguments = kernels[launch.kernel.string_value()].body.block.args
    own = [a for a, b in zip(arguments, launch.buffers, strict=True) if b is buffer]
    return all(
        isinstance(use.operation, kernel.LoadOp | kernel.CopyAsyncOp) and use.operation.memory is a
        for a in own
        for use in a.uses
    )


def _reads_where_it_writes(old: SSAValue, out: SSAValue) -> bool:
    """Whether every load of `old` is in front of every store to `out`, and of the elements that the thread stores.

    Different threads store different elements, so then no thread reads what another one writes; threads that hold the
    same elements, of which a predicate lets one store, must not read them at all.
    """
    loads, stores = ([use.operation for use in value.uses] for value in (old, out))
    for load in loads:
        for store in stores:
            if not isinstance(load, kernel.LoadOp) or not isinstance(store, kernel.StoreOp):
                return False
            if load.parent is not store.parent or _is_repeated(store) or not load.is_before_in_block(store):
                return False
            if not same_place(load, store) or store.predicate is not None and not _goes_away(load, store):
                return False
    return True


def _is_repeated(op: Operation) -> bool:
    """Whether `op` is in a loop."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, scf.ForOp):
        parent = parent.parent_op()
    return parent is not None


def _goes_away(load: kernel.LoadOp, store: kernel.StoreOp) -> bool:
    """Whether the load is for nothing but to put the value back, which is not done then."""
    found = put_back(store)
    return found is not None and found.load is load and found.alone
