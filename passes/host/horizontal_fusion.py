"""Kernels that do not need each other run in one launch, each on blocks of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, islice, takewhile
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import ArrayAttr, IndexType, MemRefType, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import kernel, payload
from ...dialects.kernel.warp_specialize import launch_registers, register_pool
from ...dialects.support.locations import copy_location
from ..rewriting import erase, insert_before

PARTS = "parts"
"""The attribute of a kernel that names the kernels it stands for, in the order of their blocks."""


def parts_of(function: kernel.FuncOp) -> tuple[str, ...]:
    """The names of the kernels that `function` stands for: its own, unless it was made for several."""
    parts = function.attributes.get(PARTS)
    if not isinstance(parts, ArrayAttr):
        return (function.sym_name.data,)
    names = cast("ArrayAttr[Attribute]", parts).data
    return tuple(name.data for name in names if isinstance(name, StringAttr))


_READS = (kernel.LoadOp, kernel.CopyAsyncOp)
_EFFECTS = (kernel.LoadOp, kernel.StoreOp, kernel.CopyAsyncOp, kernel.TmaLoadOp, scf.ForOp)


@dataclass(frozen=True)
class HorizontalFusionPass(ModulePass):
    """Launch two kernels as one where neither needs what the other does and both read the same.

    What: of two launches with blocks of equally many warps, of which the first can wait for the second, one is made: of
    a kernel with the blocks of both, of which the first so many do what the first kernel does and the others what the
    second does. Kernels differ in what their blocks need; one that multiplies on tensor cores is not put together with
    one that does not, nor one with more than twice the other's shared memory, because the blocks of the lighter one
    would be held back. Kernels with equal partitions get one set of partitions, each doing the one or the other, with
    the registers of the one that wants more; of these there are enough, because no more blocks are asked for at once
    than the kernel wants that asks for fewer.
    Why: a launch less, and the multiprocessors that the last blocks of the first kernel leave idle are used at once:
    the projections to queries and to keys and values have different extents, so they cannot be one nest.
    Why here: after barriers and shared memory were placed in each kernel by itself; nothing but the number of the block
    changes in them. Calls are not inlined yet, so a layer is looked at once; no launch is moved past a call.

    ```mlir
    kernel.func @k0(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {...}
    kernel.func @k1(%x: memref<64xf32>, %z: memref<96xf32>) grid [3] warps 1 {...}
    kernel.launch @k0(%x, %y) : ...    kernel.launch @k1(%x, %z) : ...
    ```
    becomes
    ```mlir
    kernel.func @k0_k1(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<96xf32>) grid [5] warps 1 {
      %block = kernel.id block
      %first = payload.cmp lt %block, %c2 : index
      scf.if %first {...} else {...}
    }
    kernel.launch @k0_k1(%x, %y, %z) : ...
    ```
    """

    name = "host-horizontal-fusion"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sharing = _Sharing({k.sym_name.data: k for k in op.ops if isinstance(k, kernel.FuncOp)})
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                sharing.share(function.body.block)
        launched = {launch.kernel.string_value() for launch in op.walk() if isinstance(launch, kernel.LaunchOp)}
        for name in sorted(sharing.replaced - launched):
            erase(sharing.kernels[name])


@dataclass(frozen=True)
class _Needs:
    """What decides with which other launches a launch can be one: kernels that fit are equal in `kind`, and their
    shared memory (bytes of a block) is alike. `written` are the positions of the arguments that are not only read;
    `partitions` has the threads of each partition and how many registers each of them has."""

    kind: object
    shared: int
    written: frozenset[int]
    resident: int
    partitions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, function: kernel.FuncOp) -> _Needs:
        partitions = function.partitions
        parted = None if partitions is None else (partitions.names, partitions.warps)
        kind = (function.warps, parted, _multiplies(function)) if _plain(function) and _parts_last(function) else None
        written = frozenset(i for i, a in enumerate(function.body.block.args) if not _only_read(a))
        resident = max(1, function.resident)
        shared = function.shared.data if function.shared is not None else 0
        if partitions is None:
            return cls(kind, shared, written, resident, ())
        registers = partitions.partition_registers or [launch_registers(function.threads, resident)] * len(
            partitions.programs
        )
        threads = [32 * n for n in partitions.partition_warps]
        return cls(kind, shared, written, resident, tuple(zip(threads, registers, strict=True)))

    def fits(self, other: _Needs) -> bool:
        """Whether the blocks of two kernels of one kind need about as much shared memory, and one block of both has
        the registers that the partitions of each want."""
        less, more = sorted((self.shared, other.shared))
        return more <= 2 * less and self.registers(other) is not None

    def registers(self, other: _Needs) -> list[int] | None:
        """How many registers the threads of each partition have in one kernel for both: as many as the one wants that
        wants more. Empty where that is what a block starts with; None where a block has not so many."""
        threads, resident = sum(n for n, _ in self.partitions), min(self.resident, other.resident)
        wanted = [max(a, b) for (_, a), (_, b) in zip(self.partitions, other.partitions, strict=True)]
        if not wanted or max(wanted) <= launch_registers(threads, resident):
            return []
        total = sum(n * each for (n, _), each in zip(self.partitions, wanted, strict=True))
        return wanted if total <= register_pool(threads, resident) else None


@dataclass
class _Launches:
    """A list of launches between two other steps, by position, and who uses and writes each buffer, in order."""

    launches: list[kernel.LaunchOp | None]
    users: dict[SSAValue, list[int]] = field(default_factory=dict[SSAValue, list[int]])
    writers: dict[SSAValue, list[int]] = field(default_factory=dict[SSAValue, list[int]])
    alike: dict[tuple[SSAValue, object], list[int]] = field(default_factory=dict[tuple[SSAValue, object], list[int]])

    def add(self, at: int, needs: _Needs) -> None:
        """Note what the launch at a position does."""
        launch = self.launches[at]
        assert launch is not None
        for i, buffer in enumerate(launch.buffers):
            lists = [self.users.setdefault(buffer, [])]
            lists += [self.writers.setdefault(buffer, [])] if i in needs.written else []
            lists += [self.alike.setdefault((buffer, needs.kind), [])] if needs.kind is not None else []
            for positions in lists:
                where = bisect_left(positions, at)
                if where == len(positions) or positions[where] != at:
                    positions.insert(where, at)

    def remove(self, at: int, needs: _Needs) -> None:
        """Forget the launch at a position."""
        launch = self.launches[at]
        assert launch is not None
        self.launches[at] = None
        for buffer in dict.fromkeys(launch.buffers):
            for positions in (self.users[buffer], self.writers.get(buffer), self.alike.get((buffer, needs.kind))):
                if positions and at in positions:
                    del positions[bisect_left(positions, at)]

    def conflict(self, at: int, needs: _Needs) -> int:
        """The position of the first later launch that the one at `at` cannot be moved past."""
        launch = self.launches[at]
        assert launch is not None
        found = len(self.launches)
        for i, buffer in enumerate(launch.buffers):
            positions = (self.users if i in needs.written else self.writers).get(buffer, [])
            where = bisect_right(positions, at)
            found = min(found, positions[where]) if where < len(positions) else found
        return found

    def candidates(self, at: int, needs: _Needs) -> Iterator[int]:
        """The positions of later launches of the same kind that share a buffer with the one at `at`, in order."""
        launch = self.launches[at]
        assert launch is not None
        lists = [self.alike[buffer, needs.kind] for buffer in dict.fromkeys(launch.buffers)]
        return merge(*(islice(positions, bisect_right(positions, at), None) for positions in lists))


@dataclass
class _Sharing:
    """`kernels` by name, with those that were made for two; `replaced` are those that a made one stands for."""

    kernels: dict[str, kernel.FuncOp]
    made: dict[tuple[object, ...], kernel.FuncOp] = field(default_factory=dict[tuple[object, ...], kernel.FuncOp])
    replaced: set[str] = field(default_factory=set[str])
    needs: dict[str, _Needs] = field(default_factory=dict[str, _Needs])

    def share(self, block: Block) -> None:
        """Put together the launches of a block, each with the nearest one behind it that fits."""
        steps = [op for op in block.ops if not isinstance(op, kernel.AllocOp)]
        for between, run in groupby(steps, lambda op: isinstance(op, kernel.LaunchOp)):
            if between:
                self._share([op for op in run if isinstance(op, kernel.LaunchOp)])

    def _share(self, run: list[kernel.LaunchOp]) -> None:
        """Put together the launches of one list, in which nothing else happens."""
        launches = _Launches([*run])
        for at, launch in enumerate(run):
            launches.add(at, self._needs(launch))
        for at, first in enumerate(run):
            needs = self._needs(first)
            if launches.launches[at] is not first or needs.kind is None:
                continue
            last = launches.conflict(at, needs)
            ahead = takewhile(lambda position: position < last, launches.candidates(at, needs))
            behind = next((position for position in ahead if needs.fits(self._needs(run[position]))), None)
            if behind is None:
                continue
            launches.remove(behind, self._needs(run[behind]))
            launches.remove(at, needs)
            launches.launches[behind] = both = self._replace(first, run[behind])
            launches.add(behind, self._needs(both))

    def _kernel(self, launch: kernel.LaunchOp) -> kernel.FuncOp:
        return self.kernels[launch.kernel.string_value()]

    def _needs(self, launch: kernel.LaunchOp) -> _Needs:
        return self._of(self._kernel(launch))

    def _of(self, function: kernel.FuncOp) -> _Needs:
        """What a kernel needs, found out once."""
        name = function.sym_name.data
        if name not in self.needs:
            self.needs[name] = _Needs.of(function)
        return self.needs[name]

    def _replace(self, first: kernel.LaunchOp, second: kernel.LaunchOp) -> kernel.LaunchOp:
        """One launch in place of `second` for both."""
        buffers = list(dict.fromkeys((*first.buffers, *second.buffers)))
        places = tuple(tuple(buffers.index(b) for b in launch.buffers) for launch in (first, second))
        a, b = self._kernel(first), self._kernel(second)
        key = (a.sym_name.data, b.sym_name.data, places)
        if key not in self.made:
            self.made[key] = self._make(a, b, places)
            self.replaced |= {a.sym_name.data, b.sym_name.data}
        launch = kernel.LaunchOp(self.made[key].sym_name.data, buffers)
        insert_before(second, launch, source=first)
        erase(first, second)
        return launch

    def _make(self, a: kernel.FuncOp, b: kernel.FuncOp, places: tuple[tuple[int, ...], ...]) -> kernel.FuncOp:
        """The kernel for both, in front of `a`: its argument `places[i][j]` is argument j of kernel i."""
        arguments: dict[int, SSAValue] = {}
        for function, own in zip((a, b), places, strict=True):
            for argument, place in zip(function.body.block.args, own, strict=True):
                arguments.setdefault(place, argument)
        block = Block(arg_types=[arguments[i].type for i in range(len(arguments))])
        for i, argument in enumerate(block.args):
            argument.name_hint = arguments[i].name_hint
        number, count = kernel.IdOp("block"), arith.ConstantOp.from_int_and_width(a.blocks, IndexType())
        first = payload.CmpOp("lt", number.result, count.result)
        block.add_ops([number, count, first])
        sides = [
            _Side(f, {old: block.args[i] for old, i in zip(f.body.block.args, own, strict=True)})
            for f, own in zip((a, b), places, strict=True)
        ]
        if a.partitions is None:
            bodies = [Block(), Block()]
            for side, inner in zip(sides, bodies, strict=True):
                side.number(inner, number.result, count.result if side is sides[1] else None)
                side.copy(function_ops(side.function), inner)
            block.add_op(_either(first.result, bodies))
        else:
            registers = self._of(a).registers(self._of(b))
            assert registers is not None
            _share_roles(sides, block, number.result, count.result, first.result, registers)
        copy_location(a, block.ops)
        return self._insert(a, b, block)

    def _insert(self, a: kernel.FuncOp, b: kernel.FuncOp, block: Block) -> kernel.FuncOp:
        name = f"{a.sym_name.data}_{b.sym_name.data}"
        while name in self.kernels:
            name += "_"
        shared = max((k.shared.data for k in (a, b) if k.shared is not None), default=None)
        resident = min(a.resident, b.resident)  # each finds the registers that it had alone
        grid, bounds = [a.blocks + b.blocks], {"blocks_per_sm": resident or None, "shared": shared}
        made = kernel.FuncOp(name, grid, a.warps, body=Region(block), **bounds)
        made.attributes[PARTS] = ArrayAttr([StringAttr(k.sym_name.data) for k in (a, b)])
        if all("schedule" in k.attributes for k in (a, b)):
            made.attributes["schedules"] = ArrayAttr([k.attributes["schedule"] for k in (a, b)])
        insert_before(a, made)
        self.kernels[name] = made
        return made


@dataclass
class _Side:
    """One of two kernels on its way into one: what its values are there."""

    function: kernel.FuncOp
    values: dict[SSAValue, SSAValue]

    def number(self, block: Block, number: SSAValue, behind: SSAValue | None) -> None:
        """The number of a block of this kernel: `number`, or where it is the second one, that behind so many."""
        own = number if behind is None else _rest(block, number, behind)
        for op in self.function.body.block.ops:
            if isinstance(op, kernel.IdOp) and op.kind.data == kernel.Id.BLOCK:
                self.values[op.result] = own

    def copy(self, ops: Iterable[Operation], block: Block) -> None:
        """Append copies of `ops` to `block`."""
        for op in ops:
            if op.results and op.results[0] in self.values:
                continue
            block.add_op(op.clone(self.values))


def function_ops(function: kernel.FuncOp) -> Iterable[Operation]:
    """The operations of a kernel's program."""
    return function.body.block.ops


def _either(condition: SSAValue, sides: Sequence[Block]) -> scf.IfOp:
    for side in sides:
        side.add_op(scf.YieldOp())
    return scf.IfOp(condition, [], Region(sides[0]), Region(sides[1]))


def _share_roles(
    sides: Sequence[_Side],
    block: Block,
    number: SSAValue,
    count: SSAValue,
    first: SSAValue,
    registers: Sequence[int],
) -> None:
    """Two kernels of equal partitions: each partition does what it does in the one or in the other. In front of the
    partitions, what only computes is done for both, and barriers are set up for the one that is meant; then all threads
    meet."""
    ahead, programs = (Block(), Block()), [(Block(), Block()) for _ in _roles(sides[0].function).programs]
    for i, side in enumerate(sides):
        side.number(block, number, count if i else None)
        before = [
            op for op in function_ops(side.function) if not isinstance(op, kernel.WarpSpecializeOp | kernel.BarrierOp)
        ]
        side.copy((op for op in before if not op.regions), block)
        side.copy((op for op in before if op.regions), ahead[i])
    partitions = _roles(sides[0].function)
    merged: list[Region] = []
    for n, own in enumerate(programs):
        body = Block(arg_types=[IndexType()])
        for i, side in enumerate(sides):
            program = _roles(side.function).programs[n].block
            body.args[0].name_hint = program.args[0].name_hint
            side.values[program.args[0]] = body.args[0]
            side.copy(program.ops, own[i])
        body.add_op(_either(first, own))
        merged.append(Region(body))
    parts = kernel.WarpSpecializeOp(partitions.partition_names, partitions.partition_warps, registers, merged)
    block.add_ops([_either(first, ahead), kernel.BarrierOp(), parts])


def _roles(function: kernel.FuncOp) -> kernel.WarpSpecializeOp:
    partitions = function.partitions
    assert partitions is not None
    return partitions


def _parts_last(function: kernel.FuncOp) -> bool:
    """Whether a kernel has no partitions, or all that happens in front of them is that barriers are set up."""
    *before, last = function_ops(function)
    return (
        function.partitions is None
        or isinstance(last, kernel.WarpSpecializeOp)
        and not any(isinstance(o, _EFFECTS) for o in before)
    )


def _only_read(argument: SSAValue) -> bool:
    return all(_reads(use.operation, argument) for use in argument.uses)


def _reads(op: Operation, memory: SSAValue) -> bool:
    if isinstance(op, kernel.TensorMapOp):
        return all(isinstance(use.operation, kernel.TmaLoadOp) for use in op.result.uses)
    return isinstance(op, _READS) and op.memory is memory


def _plain(function: kernel.FuncOp) -> bool:
    """Whether a kernel works on buffers, is no two kernels already, and is of a known number of blocks without
    clusters."""
    return (
        PARTS not in function.attributes
        and function.cluster_size == 1
        and all(isinstance(n, int) for n in function.factors)
        and all(isinstance(a.type, MemRefType) for a in function.body.block.args)
    )


def _multiplies(function: kernel.FuncOp) -> bool:
    return any(isinstance(op, kernel.MmaOp | kernel.WgmmaOp) for op in function.walk())


def _rest(block: Block, number: SSAValue, count: SSAValue) -> SSAValue:
    """The number of a block among those behind the first `count`; that it is not negative is said for later passes."""
    zero = arith.ConstantOp.from_int_and_width(0, IndexType())
    behind = arith.SubiOp(number, count)
    rest = arith.MaxSIOp(behind.result, zero.result)
    for op in (zero, behind, rest):
        block.add_op(op)
    rest.result.name_hint = "block"
    return rest.result
