"""`host-horizontal-fusion`: merges two independent kernels into one launch, each on its own blocks.

The fused kernel has the blocks of both: the first N block numbers run the first kernel, the others run the second. A
*partition* is a group of warps with a program of its own (`kernel.warp_specialize`).
"""

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

# Operations that must not precede `kernel.warp_specialize` in a kernel that is fused.
_EFFECTS = (kernel.LoadOp, kernel.StoreOp, kernel.CopyAsyncOp, kernel.TmaLoadOp, scf.ForOp)


class HorizontalFusionPass(ModulePass):
    """Merges two launches into one if their kernels are independent and read a common buffer.

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

    The first launch moves down to the second one. Two kernels are merged if

    - no launch between them conflicts, and neither kernel writes a buffer that the other one uses;
    - their blocks have the same number of warps, and the same partitions;
    - both use tensor cores, or neither does;
    - the shared memory of one is at most twice that of the other, because a heavy block would hold back the light ones.

    If the kernels have partitions, each partition of the fused kernel runs that of the first or of the second kernel.
    Its threads get the larger number of registers of the two. To have enough registers, the fused kernel wants the
    smaller number of resident blocks of the two.

    **Rationale**: saves a launch, and blocks of the second kernel fill the multiprocessors that the last blocks of the
    first one leave idle. The projections to queries and to keys of attention have different extents, so they cannot be
    one nest.

    **Pipeline position**: after barriers and shared memory are assigned in each kernel, because only block numbers
    change. Before `host-inline-calls`, so that a repeated layer is merged once; no launch moves past a call.
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
class _Signature:
    """Properties of a kernel that decide with which other kernels it can be merged.

    kind        must be equal for both kernels; None if the kernel cannot be merged at all
    shared      shared memory of a block, in bytes
    written     positions of the arguments that the kernel writes
    resident    blocks that the kernel wants on a multiprocessor at the same time
    partitions  (threads, registers of a thread) of each partition
    """

    kind: object
    shared: int
    written: frozenset[int]
    resident: int
    partitions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, function: kernel.FuncOp) -> _Signature:
        """Returns the signature of a kernel."""
        specialized = function.partitions
        multiplies = any(isinstance(op, kernel.MmaOp | kernel.WgmmaOp) for op in function.walk())
        kind = (
            function.warps,
            function.lanes,
            None if specialized is None else (specialized.names, specialized.warps),
            multiplies,
        )
        written = frozenset(i for i, a in enumerate(function.body.block.args) if kernel.is_written(a))
        resident = max(1, function.resident)
        shared = function.shared.data if function.shared is not None else 0
        partitions: tuple[tuple[int, int], ...] = ()
        if specialized is not None:
            at_launch = [launch_registers(function.threads, resident)] * len(specialized.programs)
            registers = specialized.partition_registers or at_launch
            partitions = tuple((32 * n, r) for n, r in zip(specialized.partition_warps, registers, strict=True))
        return cls(kind if _can_share(function) else None, shared, written, resident, partitions)

    def fits(self, other: _Signature) -> bool:
        """Returns true if two kernels of equal `kind` can be merged: similar shared memory, and enough registers."""
        less, more = sorted((self.shared, other.shared))
        return more <= 2 * less and self.registers(other) is not None

    def registers(self, other: _Signature) -> list[int] | None:
        """Returns the registers of a thread in each partition of the merged kernel, or None if a block has too few.

        Each partition has the larger number of the two kernels. The list is empty if the registers that threads have at
        the launch are enough.
        """
        threads, resident = sum(n for n, _ in self.partitions), min(self.resident, other.resident)
        registers = [max(a, b) for (_, a), (_, b) in zip(self.partitions, other.partitions, strict=True)]
        if not registers or max(registers) <= launch_registers(threads, resident):
            return []
        total = sum(n * per_thread for (n, _), per_thread in zip(self.partitions, registers, strict=True))
        return registers if total <= kernel.register_pool(threads, resident) else None


@dataclass
class _Sharing:
    """State of the pass.

    kernels   name -> kernel, merged kernels included
    merged    names of two kernels and positions of their arguments -> the merged kernel
    replaced  names of kernels that are part of a merged kernel
    needs     name of a kernel -> its signature
    """

    kernels: dict[str, kernel.FuncOp]
    merged: dict[tuple[object, ...], kernel.FuncOp] = field(default_factory=dict[tuple[object, ...], kernel.FuncOp])
    replaced: set[str] = field(default_factory=set[str])
    needs: dict[str, _Signature] = field(default_factory=dict[str, _Signature])

    def share(self, run: list[kernel.LaunchOp]) -> None:
        """Merges launches of `run`, between which nothing else happens, each with the nearest later match."""
        launches: list[kernel.LaunchOp | None] = [*run]
        touched = [set(launch.buffers) for launch in run]
        for at, first in enumerate(run):
            needs = self._needs(first)
            if launches[at] is not first or needs.kind is None:
                continue
            for later in range(at + 1, len(run)):
                second = launches[later]
                if second is None or touched[at].isdisjoint(touched[later]):
                    continue
                if self._written(first) & touched[later] or self._written(second) & touched[at]:
                    break
                if needs.kind == self._needs(second).kind and needs.fits(self._needs(second)):
                    launches[at], launches[later] = None, self._replace(first, second)
                    touched[later] |= touched[at]
                    break

    def _kernel(self, launch: kernel.LaunchOp) -> kernel.FuncOp:
        return self.kernels[launch.kernel.string_value()]

    def _needs(self, launch: kernel.LaunchOp) -> _Signature:
        name = launch.kernel.string_value()
        if name not in self.needs:
            self.needs[name] = _Signature.of(self.kernels[name])
        return self.needs[name]

    def _written(self, launch: kernel.LaunchOp) -> set[SSAValue]:
        return {launch.buffers[i] for i in self._needs(launch).written}

    def _replace(self, first: kernel.LaunchOp, second: kernel.LaunchOp) -> kernel.LaunchOp:
        """Inserts one launch of the merged kernel at the position of `second`, and erases both launches."""
        a, b = self._kernel(first), self._kernel(second)
        seen = [[*zip(o.buffers, k.body.block.arg_types, strict=True)] for o, k in ((first, a), (second, b))]
        # A buffer that the kernels read in two shapes is two arguments.
        every = list(dict.fromkeys((*seen[0], *seen[1])))
        positions = tuple(tuple(map(every.index, arguments)) for arguments in seen)
        key = (a.sym_name.data, b.sym_name.data, positions)
        if key not in self.merged:
            registers = self._needs(first).registers(self._needs(second))
            self.merged[key] = self._insert(a, b, _joined((a, b), positions, registers or ()))
            self.replaced |= {a.sym_name.data, b.sym_name.data}
        launch = kernel.LaunchOp(self.merged[key].sym_name.data, [buffer for buffer, _ in every])
        insert_before(second, launch, source=first)
        erase(first, second)
        return launch

    def _insert(self, a: kernel.FuncOp, b: kernel.FuncOp, block: Block) -> kernel.FuncOp:
        """Inserts the merged kernel before `a` and returns it. `block`: its body."""
        name = f"{a.sym_name.data}_{b.sym_name.data}"
        while name in self.kernels:
            name += "_"
        shared = max((k.shared.data for k in (a, b) if k.shared is not None), default=None)
        # With the smaller number of blocks, each kernel has at least the registers that it had before.
        resident = min(a.resident, b.resident)
        grid, bounds = [a.blocks + b.blocks], {"blocks_per_sm": resident or None, "shared": shared, "lanes": a.lanes}
        merged = kernel.FuncOp(name, grid, a.warps, body=Region(block), **bounds)
        set_parts(merged, [k.sym_name.data for k in (a, b)])
        if all("schedule" in k.attributes for k in (a, b)):
            merged.attributes["schedules"] = ArrayAttr([k.attributes["schedule"] for k in (a, b)])
        insert_before(a, merged)
        self.kernels[name] = merged
        return merged


Values = dict[SSAValue, SSAValue]
"""Value of a kernel -> its copy in the merged kernel."""


def _joined(both: Sequence[kernel.FuncOp], positions: Sequence[Sequence[int]], registers: Sequence[int]) -> Block:
    """Returns the body of the merged kernel, which runs the one kernel or the other, depending on the block number.

    If the kernels have partitions, the choice is inside each partition. Before the partitions, operations without
    regions are executed for both kernels, and conditional ones (mbarrier initialisation) for the kernel of the block; a
    barrier follows.

    Args:
        both: the two kernels.
        positions: `positions[i][j]` is the argument of the merged kernel that is argument j of kernel i.
        registers: registers of a thread in each partition; empty to leave them as they are.
    """
    arguments: dict[int, SSAValue] = {}
    for function, its_positions in zip(both, positions, strict=True):
        for argument, position in zip(function.body.block.args, its_positions, strict=True):
            arguments.setdefault(position, argument)
    block = Block(arg_types=[arguments[i].type for i in range(len(arguments))])
    for i, argument in enumerate(block.args):
        argument.name_hint = arguments[i].name_hint
    number, count = kernel.IdOp("block"), arith.ConstantOp.from_int_and_width(both[0].blocks, IndexType())
    first = payload.CmpOp("lt", number.result, count.result)
    block.add_ops([number, count, first])
    values: list[Values] = [
        {old: block.args[i] for old, i in zip(f.body.block.args, its_positions, strict=True)}
        for f, its_positions in zip(both, positions, strict=True)
    ]
    sides = Block(), Block()
    for i, (function, copies, side) in enumerate(zip(both, values, sides, strict=True)):
        ops, parted = list(function.body.block.ops), function.partitions is not None
        target = block if parted else side
        index = _second_block_number(target, number.result, count.result) if i else number.result
        ids = (o for o in ops if isinstance(o, kernel.IdOp) and o.kind.data == kernel.Id.BLOCK)
        copies.update((o.result, index) for o in ids)
        ops = [o for o in ops if not parted or not isinstance(o, kernel.WarpSpecializeOp | kernel.BarrierOp)]
        _copy((o for o in ops if not parted or not o.regions), target, copies)
        _copy((o for o in ops if parted and o.regions), side, copies)
    block.add_op(_either(first.result, sides))
    partitions = [f.partitions for f in both]
    if (a := partitions[0]) is not None:
        programs: list[Region] = []
        for n in range(len(a.programs)):
            body, sides = Block(arg_types=[IndexType()]), (Block(), Block())
            for partition, copies, side in zip(partitions, values, sides, strict=True):
                assert partition is not None
                program = partition.programs[n].block
                body.args[0].name_hint = program.args[0].name_hint
                copies[program.args[0]] = body.args[0]
                _copy(program.ops, side, copies)
            body.add_op(_either(first.result, sides))
            programs.append(Region(body))
        parts = kernel.WarpSpecializeOp(a.partition_names, a.partition_warps, registers, programs)
        block.add_ops([kernel.BarrierOp(), parts])
    copy_location(both[0], block.ops)
    return block


def _copy(ops: Iterable[Operation], block: Block, values: Values) -> None:
    """Appends copies of `ops` to `block`, except for operations whose results are in `values` already."""
    block.add_ops([op.clone(values) for op in ops if not op.results or op.results[0] not in values])


def _either(condition: SSAValue, sides: tuple[Block, Block]) -> scf.IfOp:
    for side in sides:
        side.add_op(scf.YieldOp())
    return scf.IfOp(condition, [], Region(sides[0]), Region(sides[1]))


def _can_share(function: kernel.FuncOp) -> bool:
    """Returns true if a kernel can be merged with another one.

    It takes only buffers, is not a merged kernel, and has a static grid without clusters. Before its partitions, if it
    has any, are only operations without effects and the initialisation of mbarriers.
    """
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


def _second_block_number(block: Block, number: SSAValue, count: SSAValue) -> SSAValue:
    """Appends the block number of the second kernel, max(`number` - `count`, 0), and returns it.

    In blocks of the first kernel the number is unused. The maximum shows range analysis that it is not negative.
    """
    zero = arith.ConstantOp.from_int_and_width(0, IndexType())
    difference = arith.SubiOp(number, count)
    second_number = arith.MaxSIOp(difference.result, zero.result)
    block.add_ops([zero, difference, second_number])
    second_number.result.name_hint = "block"
    return second_number.result
