"""Kernels that do not need each other run in one launch, each on blocks of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import ArrayAttr, IndexType, MemRefType, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import kernel, payload
from ...dialects.support.locations import copy_location
from ...target.model import launch_registers
from ..analysis.host_memory import has_parts, set_parts
from ..rewriting import erase, insert_before

_EFFECTS = (kernel.LoadOp, kernel.StoreOp, kernel.CopyAsyncOp, kernel.TmaLoadOp, scf.ForOp)


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
    needs: ClassVar[Mapping[str, int]] = {"kernel.launch": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sharing = _Sharing({k.sym_name.data: k for k in op.ops if isinstance(k, kernel.FuncOp)})
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                steps = [o for o in function.body.block.ops if not isinstance(o, kernel.AllocOp)]
                for _, run in groupby(steps, lambda o: isinstance(o, kernel.LaunchOp)):
                    launches = [o for o in run if isinstance(o, kernel.LaunchOp)]
                    if len(launches) > 1:
                        sharing.share(launches)
        launched = {launch.kernel.string_value() for launch in op.walk() if isinstance(launch, kernel.LaunchOp)}
        for name in sorted(sharing.replaced - launched):
            erase(sharing.kernels[name])


@dataclass(frozen=True)
class _Needs:
    """What decides with which other launches a launch can be one: kernels that fit are equal in `kind`, None for one
    that fits none, and their shared memory (bytes of a block) is alike. `written` are the positions of the arguments
    that are not only read; `partitions` has the threads of each partition and how many registers each of them has."""

    kind: object
    shared: int
    written: frozenset[int]
    resident: int
    partitions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, function: kernel.FuncOp) -> _Needs:
        found = function.partitions
        multiplies = any(isinstance(op, kernel.MmaOp | kernel.WgmmaOp) for op in function.walk())
        kind = (function.warps, function.lanes, None if found is None else (found.names, found.warps), multiplies)
        written = frozenset(i for i, a in enumerate(function.body.block.args) if kernel.is_written(a))
        resident = max(1, function.resident)
        shared = function.shared.data if function.shared is not None else 0
        partitions: tuple[tuple[int, int], ...] = ()
        if found is not None:
            started = [launch_registers(function.threads, resident)] * len(found.programs)
            registers = found.partition_registers or started
            partitions = tuple((32 * n, r) for n, r in zip(found.partition_warps, registers, strict=True))
        return cls(kind if _can_share(function) else None, shared, written, resident, partitions)

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
        return wanted if total <= kernel.register_pool(threads, resident) else None


@dataclass
class _Sharing:
    """`kernels` by name, with those that were made for two; `replaced` are those that a made one stands for."""

    kernels: dict[str, kernel.FuncOp]
    made: dict[tuple[object, ...], kernel.FuncOp] = field(default_factory=dict[tuple[object, ...], kernel.FuncOp])
    replaced: set[str] = field(default_factory=set[str])
    needs: dict[str, _Needs] = field(default_factory=dict[str, _Needs])

    def share(self, run: list[kernel.LaunchOp]) -> None:
        """Put together launches between which nothing else happens, each with the nearest one behind it that fits."""
        launches: list[kernel.LaunchOp | None] = [*run]
        touched = [set(launch.buffers) for launch in run]
        for at, first in enumerate(run):
            needs = self._needs(first)
            if launches[at] is not first or needs.kind is None:
                continue
            for behind in range(at + 1, len(run)):
                second = launches[behind]
                if second is None or touched[at].isdisjoint(touched[behind]):
                    continue
                if self._written(first) & touched[behind] or self._written(second) & touched[at]:
                    break
                if needs.kind == self._needs(second).kind and needs.fits(self._needs(second)):
                    launches[at], launches[behind] = None, self._replace(first, second)
                    touched[behind] |= touched[at]
                    break

    def _kernel(self, launch: kernel.LaunchOp) -> kernel.FuncOp:
        return self.kernels[launch.kernel.string_value()]

    def _needs(self, launch: kernel.LaunchOp) -> _Needs:
        name = launch.kernel.string_value()
        if name not in self.needs:
            self.needs[name] = _Needs.of(self.kernels[name])
        return self.needs[name]

    def _written(self, launch: kernel.LaunchOp) -> set[SSAValue]:
        return {launch.buffers[i] for i in self._needs(launch).written}

    def _replace(self, first: kernel.LaunchOp, second: kernel.LaunchOp) -> kernel.LaunchOp:
        """One launch in place of `second` for both."""
        a, b = self._kernel(first), self._kernel(second)
        seen = [[*zip(o.buffers, k.body.block.arg_types, strict=True)] for o, k in ((first, a), (second, b))]
        every = list(dict.fromkeys((*seen[0], *seen[1])))  # a buffer that the kernels see in two shapes is two of them
        places = tuple(tuple(map(every.index, each)) for each in seen)
        key = (a.sym_name.data, b.sym_name.data, places)
        if key not in self.made:
            registers = self._needs(first).registers(self._needs(second))
            self.made[key] = self._insert(a, b, _joined((a, b), places, registers or ()))
            self.replaced |= {a.sym_name.data, b.sym_name.data}
        launch = kernel.LaunchOp(self.made[key].sym_name.data, [buffer for buffer, _ in every])
        insert_before(second, launch, source=first)
        erase(first, second)
        return launch

    def _insert(self, a: kernel.FuncOp, b: kernel.FuncOp, block: Block) -> kernel.FuncOp:
        """The kernel for both, in front of `a`."""
        name = f"{a.sym_name.data}_{b.sym_name.data}"
        while name in self.kernels:
            name += "_"
        shared = max((k.shared.data for k in (a, b) if k.shared is not None), default=None)
        resident = min(a.resident, b.resident)  # each finds the registers that it had alone
        grid, bounds = [a.blocks + b.blocks], {"blocks_per_sm": resident or None, "shared": shared, "lanes": a.lanes}
        made = kernel.FuncOp(name, grid, a.warps, body=Region(block), **bounds)
        set_parts(made, [k.sym_name.data for k in (a, b)])
        if all("schedule" in k.attributes for k in (a, b)):
            made.attributes["schedules"] = ArrayAttr([k.attributes["schedule"] for k in (a, b)])
        insert_before(a, made)
        self.kernels[name] = made
        return made


Values = dict[SSAValue, SSAValue]
"""What the values of a kernel are in the kernel for two."""


def _joined(both: Sequence[kernel.FuncOp], places: Sequence[Sequence[int]], registers: Sequence[int]) -> Block:
    """The program for two kernels: its argument `places[i][j]` is argument j of kernel i. Where they have partitions,
    each partition does what it does in the one or in the other, with so many `registers`; in front of them, what only
    computes is done for both, and barriers are set up for the one that is meant; then all threads meet."""
    arguments: dict[int, SSAValue] = {}
    for function, own in zip(both, places, strict=True):
        for argument, place in zip(function.body.block.args, own, strict=True):
            arguments.setdefault(place, argument)
    block = Block(arg_types=[arguments[i].type for i in range(len(arguments))])
    for i, argument in enumerate(block.args):
        argument.name_hint = arguments[i].name_hint
    number, count = kernel.IdOp("block"), arith.ConstantOp.from_int_and_width(both[0].blocks, IndexType())
    first = payload.CmpOp("lt", number.result, count.result)
    block.add_ops([number, count, first])
    values: list[Values] = [
        {old: block.args[i] for old, i in zip(f.body.block.args, own, strict=True)}
        for f, own in zip(both, places, strict=True)
    ]
    sides = Block(), Block()
    for i, (function, own, side) in enumerate(zip(both, values, sides, strict=True)):
        ops, parted = list(function.body.block.ops), function.partitions is not None
        target = block if parted else side
        index = _rest(target, number.result, count.result) if i else number.result
        ids = (o for o in ops if isinstance(o, kernel.IdOp) and o.kind.data == kernel.Id.BLOCK)
        own.update((o.result, index) for o in ids)
        ops = [o for o in ops if not parted or not isinstance(o, kernel.WarpSpecializeOp | kernel.BarrierOp)]
        _copy((o for o in ops if not parted or not o.regions), target, own)
        _copy((o for o in ops if parted and o.regions), side, own)
    block.add_op(_either(first.result, sides))
    partitions = [f.partitions for f in both]
    if (a := partitions[0]) is not None:
        programs: list[Region] = []
        for n in range(len(a.programs)):
            body, sides = Block(arg_types=[IndexType()]), (Block(), Block())
            for partition, own, side in zip(partitions, values, sides, strict=True):
                assert partition is not None
                program = partition.programs[n].block
                body.args[0].name_hint = program.args[0].name_hint
                own[program.args[0]] = body.args[0]
                _copy(program.ops, side, own)
            body.add_op(_either(first.result, sides))
            programs.append(Region(body))
        parts = kernel.WarpSpecializeOp(a.partition_names, a.partition_warps, registers, programs)
        block.add_ops([kernel.BarrierOp(), parts])
    copy_location(both[0], block.ops)
    return block


def _copy(ops: Iterable[Operation], block: Block, values: Values) -> None:
    """Append copies of `ops` to `block`, but of those whose results are known."""
    block.add_ops([op.clone(values) for op in ops if not op.results or op.results[0] not in values])


def _either(condition: SSAValue, sides: tuple[Block, Block]) -> scf.IfOp:
    for side in sides:
        side.add_op(scf.YieldOp())
    return scf.IfOp(condition, [], Region(sides[0]), Region(sides[1]))


def _can_share(function: kernel.FuncOp) -> bool:
    """Whether a kernel works on buffers, is no two kernels already, and is of a known number of blocks without
    clusters; and has no partitions, or all that happens in front of them is that barriers are set up."""
    ops = list(function.body.block.ops)
    return (
        not has_parts(function)
        and function.cluster_size == 1
        and all(isinstance(n, int) for n in function.grid_shape)
        and all(isinstance(a.type, MemRefType) for a in function.body.block.args)
        and (
            function.partitions is None
            or isinstance(ops[-1], kernel.WarpSpecializeOp)
            and not any(isinstance(o, _EFFECTS) for o in ops[:-1])
        )
    )


def _rest(block: Block, number: SSAValue, count: SSAValue) -> SSAValue:
    """The number of a block among those behind the first `count`; that it is not negative is said for later passes."""
    zero = arith.ConstantOp.from_int_and_width(0, IndexType())
    behind = arith.SubiOp(number, count)
    rest = arith.MaxSIOp(behind.result, zero.result)
    block.add_ops([zero, behind, rest])
    rest.result.name_hint = "block"
    return rest.result
