"""Warp specialisation, mbarriers, barriers of groups of warps, and clusters of blocks.

**Partitions** (`kernel.warp_specialize`) are groups of warps of a block that run different programs at the same time.

**An mbarrier** is a counter in shared memory. It counts *phases*: phase n is complete when `arrivals` threads have
arrived and asynchronous copies have written all bytes announced with `kernel.mbar_expect`. Then phase n + 1 begins. A
wait names the parity of a phase: `parity p` returns as soon as the last complete phase has parity p. A new barrier is
in phase 0, and waiting for parity 1 returns at once, as if an earlier phase had completed. An arrival publishes the
earlier accesses of its thread; a wait makes them visible.

**A circular buffer** of S stages, between a producer and consumers, has two buffers of S mbarriers: `full` (one
arrival, by the producer's `kernel.mbar_expect`, and the bytes of a stage) and `empty` (one arrival for every consumer).
All partitions step through the stages with `kernel.advance`, from stage 0 and phase 0:

```
producer:  wait empty[slot] parity phase ^ 1;  expect full[slot];  start copies that signal full[slot];  advance
consumer:  wait full[slot] parity phase;  use the stage;  arrive at empty[slot];  advance
```

**A cluster** is a group of blocks, with consecutive numbers, that run at the same time and access each other's shared
memory (sm_90 and newer; PTX ISA, "Cluster of Cooperative Thread Arrays"). `kernel.func` specifies its size. The *rank*
of a block is its number in the cluster (`kernel.id rank`). All blocks run the same kernel, so each has an instance of
every shared buffer, at the same offset; `kernel.mapa` returns the instance of another block. Only
`kernel.cluster_barrier` and mbarriers that other blocks arrive at order accesses between blocks.

The shared memory of a block exists from the block's start until its last thread ends. So the blocks need a
`kernel.cluster_barrier` before the first access to another block's memory (setting up an mbarrier counts as one), and
after the last. `kernel-insert-barriers` inserts it for `kernel.load`. For circular buffers with multicast loads, the
pass that creates them does.
"""

from __future__ import annotations

from xdsl import irdl
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntAttr, MemRefType, StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, NoTerminator
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from ...target.model import launch_registers
from ..payload import element_type
from ..support.assembly import NUMBERS, FormattedOp, OrderedOp, PureOp
from ..support.locations import ancestors, enclosing
from .memory import CLUSTER, is_shared, is_shared_line

WARPGROUP = 4
"""Warps of a warpgroup. The number of its first warp is a multiple of this (PTX ISA, wgmma)."""

PRODUCER_REGISTERS = 24
"""Registers of a thread of a producer, which computes only a few indices. 24 is the hardware minimum (PTX ISA,
setmaxnreg)."""

MOST_REGISTERS = 240
"""Maximum number of registers that a thread of a consumer requests."""


def register_pool(threads: int, blocks_per_sm: int = 1) -> int:
    """Returns the number of registers of a block of `threads` threads, which its partitions share."""
    return threads * launch_registers(threads, blocks_per_sm)


def consumer_registers(warps: int, blocks_per_sm: int = 1) -> int:
    """Returns the registers of each thread of `warps` consumer warps, if a producer warpgroup keeps
    `PRODUCER_REGISTERS`."""
    available = register_pool(32 * (warps + WARPGROUP), blocks_per_sm) - 32 * WARPGROUP * PRODUCER_REGISTERS
    return min(available // (32 * warps) // 8 * 8, MOST_REGISTERS)


@irdl.irdl_op_definition
class WarpSpecializeOp(FormattedOp):
    """Divides the warps of the block into partitions that run different programs.

    ```
    kernel.warp_specialize {
      partition "producer"(%w) warps 4 registers 40 {
        kernel.mbar_expect %full[%slot] bytes 16384 : memref<3x!kernel.mbarrier, "shared">
      }
      partition "consumer"(%v) warps 8 registers 232 {
        kernel.mbar_wait %full[%slot] parity %phase : memref<3x!kernel.mbarrier, "shared">
      }
    }
    ```

    The first partition has the first warps of the block, and so on; together they have all warps. The argument of a
    program is the number of the warp within its partition; `kernel.id` still counts within the block. Only mbarriers
    and cluster barriers order the partitions.

    Attributes:
        names: names of the partitions.
        warps: warps of each partition.
        registers: registers per thread of each partition, which the threads release or acquire at the start; empty to
            leave them unchanged.

    Regions:
        programs: program of each partition.

    Constraints:
    - The op is at the top of a kernel, once. Only constants, ids and index arithmetic precede it.
    - There is no `kernel.barrier` inside, and no two partitions use the same hardware barrier (`kernel.group_barrier`).
    - All partitions have the same number of `kernel.cluster_barrier`, outside of loops and conditions, because each
      waits for all threads of the cluster.
    - With `registers`, partitions are whole warpgroups, and the numbers are multiples of 8 from 24 to 240.
    - All partitions together have at most the registers of the block at its launch (`register_pool`). Otherwise a
      thread would wait for registers forever.
    """

    name = "kernel.warp_specialize"
    names = irdl.prop_def(ArrayAttr[StringAttr])
    warps = irdl.prop_def(NUMBERS)
    registers = irdl.prop_def(NUMBERS)
    programs = irdl.var_region_def("single_block")
    traits = irdl.traits_def(NoTerminator(), MemoryReadEffect(), MemoryWriteEffect())

    @property
    def partition_names(self) -> list[str]:
        return [n.data for n in self.names]

    @property
    def partition_warps(self) -> list[int]:
        return [int(n) for n in self.warps.get_values()]

    @property
    def partition_registers(self) -> list[int]:
        """Returns the registers per thread of each partition, or an empty list if they are unchanged."""
        return [int(n) for n in self.registers.get_values()]

    def first_warp(self, partition: int) -> int:
        """Returns the number of the first warp of a partition."""
        return sum(self.partition_warps[:partition])

    def verify_(self) -> None:
        count, warps, registers = len(self.programs), self.partition_warps, self.partition_registers
        if count < 1 or len(self.names) != count or len(warps) != count or len(registers) not in (0, count):
            raise VerifyException(
                f"expected a name, a number of warps and perhaps a number of registers for each of {count}"
                f" partitions, but got {len(self.names)}, {len(warps)} and {len(registers)}"
            )
        if len(set(self.partition_names)) != count:
            raise VerifyException(f"expected distinct names of partitions, but got {self.partition_names}")
        if min(warps) < 1:
            raise VerifyException(f"expected at least one warp in a partition, but got {min(warps)}")
        for p in self.programs:
            if (types := [a.type for a in p.block.args]) != [IndexType()]:
                raise VerifyException(
                    "expected one argument of type index, the number of the warp in the partition, but got"
                    f" ({', '.join(map(str, types))})"
                )
        parent = self.parent_op()
        if parent is not None and parent.name != "kernel.func":
            raise VerifyException(f"expected partitions at the top of a kernel, but got them in {parent.name}")
        if any(op.name == "kernel.barrier" for op in self.walk()):
            raise VerifyException(
                "expected kernel.group_barrier in a partition, but got kernel.barrier, which waits for the other"
                " partitions too"
            )
        barriers = [[op for op in p.walk() if op.name == "kernel.cluster_barrier"] for p in self.programs]
        if any(
            op.parent is not p.block
            for p, cluster_barriers in zip(self.programs, barriers, strict=True)
            for op in cluster_barriers
        ):
            raise VerifyException(
                "expected kernel.cluster_barrier outside of loops and conditions of a partition, but got it inside"
            )
        if len({len(cluster_barriers) for cluster_barriers in barriers}) > 1:
            counts = [len(cluster_barriers) for cluster_barriers in barriers]
            raise VerifyException(f"expected as many kernel.cluster_barrier in every partition, but got {counts}")
        if registers:
            self._verify_registers(warps, registers)

    @property
    def blocks_per_sm(self) -> int:
        """Returns the minimum number of resident blocks of a multiprocessor, which share its registers; at least 1."""
        kernel = self.parent_op()
        attribute: Attribute | None = None if kernel is None else kernel.properties.get("blocks_per_sm")
        return max(1, attribute.data) if isa(attribute, IntAttr) else 1

    def _verify_registers(self, warps: list[int], registers: list[int]) -> None:
        if any(n % WARPGROUP for n in warps):
            raise VerifyException(f"expected partitions of whole warpgroups to change registers, but got {warps} warps")
        if any(n % 8 or not 24 <= n <= 240 for n in registers):
            raise VerifyException(f"expected 24 to 240 registers of a thread, a multiple of 8, but got {registers}")
        threads, blocks = 32 * sum(warps), self.blocks_per_sm
        total = sum(32 * w * r for w, r in zip(warps, registers, strict=True))
        if total > register_pool(threads, blocks):
            raise VerifyException(
                f"expected at most {register_pool(threads, blocks)} registers in all partitions, {threads} threads with"
                f" {launch_registers(threads, blocks)} each at the launch, but got {total}"
            )

    @classmethod
    def parse(cls, parser: Parser) -> WarpSpecializeOp:
        names: list[str] = []
        warps: list[int] = []
        registers: list[int] = []
        programs: list[Region] = []
        attributes = parser.parse_optional_attr_dict_with_keyword()
        parser.parse_punctuation("{")
        while parser.parse_optional_punctuation("}") is None:
            parser.parse_keyword("partition")
            names.append(parser.parse_str_literal())
            with parser.in_parens():
                argument = parser.parse_argument(expect_type=False).resolve(IndexType())
            parser.parse_keyword("warps")
            warps.append(parser.parse_integer())
            if parser.parse_optional_keyword("registers"):
                registers.append(parser.parse_integer())
            programs.append(parser.parse_region([argument]))
        op = cls(names, warps, registers, programs)
        op.attributes.update(attributes.data if attributes else {})
        return op

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" {")
        registers = self.partition_registers or [0] * len(self.programs)
        with printer.indented():
            partitions = zip(self.partition_names, self.partition_warps, registers, self.programs, strict=True)
            for name, warps, budget, program in partitions:
                printer._print_new_line()  # pyright: ignore[reportPrivateUsage]
                printer.print_string("partition ")
                printer.print_string_literal(name)
                with printer.in_parens():
                    printer.print_ssa_value(program.block.args[0])
                printer.print_string(f" warps {warps} {f'registers {budget} ' if budget else ''}")
                printer.print_region(program, print_entry_block_args=False, print_empty_block=False)
        printer._print_new_line()  # pyright: ignore[reportPrivateUsage]
        printer.print_string("}")


def partition_of(op: Operation) -> tuple[WarpSpecializeOp, int] | None:
    """Returns the `kernel.warp_specialize` around `op` and the number of its partition, or None outside of
    partitions."""
    op_partitions = enclosing(op, WarpSpecializeOp)
    return (
        None
        if op_partitions is None
        else (op_partitions, next(i for i, r in enumerate(op_partitions.programs) if r.is_ancestor(op)))
    )


CLUSTERS = (1, 2, 4, 8)
"""Legal numbers of blocks of a cluster, on every GPU that supports clusters."""


def cluster_of(op: Operation) -> int | None:
    """Returns the cluster size of the kernel around `op`, or None outside of kernels."""
    func = next((o for o in ancestors(op) if o.name == "kernel.func"), None)
    size = None if func is None else func.properties.get("cluster", IntAttr(1))
    return size.data if isa(size, IntAttr) else None


def require_cluster(op: Operation, feature: str) -> None:
    """Raises VerifyException if `op` is in a kernel without clusters. `feature` names the op's purpose in the
    message."""
    if cluster_of(op) == 1:
        raise VerifyException(f"expected a kernel with clusters, because of {feature}, but got one without")


@irdl.irdl_op_definition
class ClusterBarrierOp(OrderedOp):
    """Synchronises all threads of all blocks of the cluster.

    ```
    kernel.cluster_barrier
    ```

    Earlier accesses to global memory and to the shared memory of any block are visible after it (PTX
    `barrier.cluster.arrive.release`, `.wait.acquire`). Threads that have ended count as arrived. All partitions have
    the same number of them, outside of loops and conditions: the n-th of each partition is the same barrier.

    Constraints: the kernel has clusters.
    """

    name = "kernel.cluster_barrier"

    def verify_(self) -> None:
        require_cluster(self, "a barrier of the cluster")


@irdl.irdl_op_definition
class MapaOp(PureOp):
    """Returns the instance of a shared buffer in the block with the given rank (PTX `mapa`), for `kernel.load`.

    ```
    %p = kernel.mapa %s of %rank : memref<256xf32, "shared"> -> memref<256xf32, "cluster">
    ```

    Operands:
        shared: buffer in the shared memory of this block.
        rank: rank of the block whose instance is returned (`of`).

    Constraints: the kernel has clusters; the operand is in shared memory; the result has the same shape in space
    "cluster".
    """

    name = "kernel.mapa"
    shared = irdl.operand_def(irdl.base(MemRefType))
    rank = irdl.operand_def(IndexType())
    result = irdl.result_def(irdl.base(MemRefType))
    assembly_format = "$shared `of` $rank attr-dict `:` type($shared) `->` type($result)"

    def __init__(self, shared: SSAValue, rank: SSAValue):
        super().__init__(shared, rank, _of_cluster(shared.type))

    def verify_(self) -> None:
        require_cluster(self, "another block's memory")
        if not is_shared(self.shared.type):
            raise VerifyException(f"expected a shared buffer, but got {self.shared.type}")
        expected = _of_cluster(self.shared.type)
        if self.result.type != expected:
            raise VerifyException(f"expected the result type {expected}, but got {self.result.type}")


def _of_cluster(t: Attribute) -> Attribute:
    return CLUSTER.buffer(element_type(t), t.get_shape()) if isinstance(t, MemRefType) else t  # pyright: ignore


MOST_ARRIVALS = (1 << 20) - 1
"""Maximum number of arrivals, and of bytes, of one phase of an mbarrier (PTX ISA, mbarrier)."""

MOST_NAMED = 16
"""Hardware barriers of a block (PTX ISA, bar); `kernel.barrier` uses number 0."""


@irdl.irdl_attr_definition
class MbarrierType(ParametrizedAttribute, TypeAttribute):
    """Element type of a buffer of mbarriers, eight bytes each: `memref<3x!kernel.mbarrier, "shared">`."""

    name = "kernel.mbarrier"


def is_mbarriers(t: Attribute) -> bool:
    """Returns true if `t` is a one-dimensional buffer of mbarriers in shared memory."""
    return is_shared_line(t) and isinstance(element_type(t), MbarrierType)


class MbarrierOp(OrderedOp):
    """Base class of operations on one mbarrier.

    barriers: buffer of mbarriers in shared memory.
    index: number of the mbarrier in the buffer.
    """

    barriers = irdl.operand_def(irdl.base(MemRefType))
    index = irdl.operand_def(IndexType())

    def verify_(self) -> None:
        if not is_mbarriers(self.barriers.type):
            raise VerifyException(f"expected a shared buffer of mbarriers, but got {self.barriers.type}")


@irdl.irdl_op_definition
class MbarInitOp(MbarrierOp):
    """Initialises an mbarrier for `arrivals` arrivals per phase.

    ```
    kernel.mbar_init %full[%i] arrivals 1 : memref<3x!kernel.mbarrier, "shared">
    ```

    One thread does this. Before the first use of the barrier, that thread must execute `kernel.fence_mbar_init`, and
    all threads must meet at a `kernel.barrier`.

    Attributes:
        arrivals: number of arrivals that complete a phase.

    Constraints: `arrivals` is 1 to 2^20 - 1.
    """

    name = "kernel.mbar_init"
    arrivals = irdl.prop_def(IntAttr)
    assembly_format = "$barriers `` `[` $index `]` `arrivals` custom<Int>($arrivals) attr-dict `:` type($barriers)"

    def verify_(self) -> None:
        super().verify_()
        if not 1 <= self.arrivals.data <= MOST_ARRIVALS:
            raise VerifyException(f"expected 1 to {MOST_ARRIVALS} arrivals, but got {self.arrivals.data}")


@irdl.irdl_op_definition
class MbarExpectOp(MbarrierOp):
    """Arrives at an mbarrier and announces `bytes` bytes of copies in this phase, for every thread that executes it.

    ```
    kernel.mbar_expect %full[%slot] bytes 16384 : memref<3x!kernel.mbarrier, "shared">
    ```

    `bytes` is the total size of the boxes that signal the barrier in this phase, parts outside of a buffer included.

    Attributes:
        bytes: bytes of the copies of this phase.

    Constraints: `bytes` is 1 to 2^20 - 1.
    """

    name = "kernel.mbar_expect"
    bytes = irdl.prop_def(IntAttr)
    assembly_format = "$barriers `` `[` $index `]` `bytes` custom<Int>($bytes) attr-dict `:` type($barriers)"

    def verify_(self) -> None:
        super().verify_()
        if not 1 <= self.bytes.data <= MOST_ARRIVALS:
            raise VerifyException(f"expected 1 to {MOST_ARRIVALS} bytes, but got {self.bytes.data}")


@irdl.irdl_op_definition
class MbarArriveOp(MbarrierOp):
    """Arrives at an mbarrier, once for every thread that executes it.

    ```
    kernel.mbar_arrive %empty[%slot] : memref<3x!kernel.mbarrier, "shared">
    kernel.mbar_arrive %empty[%slot] of %rank : memref<3x!kernel.mbarrier, "shared">
    kernel.mbar_arrive %empty[%slot] of %rank async : memref<3x!kernel.mbarrier, "shared">
    ```

    Operands:
        rank: block of the cluster whose barrier is signalled, by default this block (PTX `mapa` and
            `mbarrier.arrive.release.cluster.shared::cluster`).

    Attributes:
        asynchronous: only completed asynchronous operations are published, not the thread's own accesses (`async`). It
            needs no memory fence (`mbarrier.arrive.shared::cluster`), and suffices to release a stage that
            `kernel.wgmma` has read.

    Constraints: `rank` needs a kernel with clusters; `async` needs `rank`.
    """

    name = "kernel.mbar_arrive"
    rank = irdl.opt_operand_def(IndexType())
    asynchronous = irdl.opt_prop_def(UnitAttr)
    assembly_format = (
        "$barriers `` `[` $index `]` (`of` $rank^)? (`async` $asynchronous^)? attr-dict `:` type($barriers)"
    )

    def verify_(self) -> None:
        super().verify_()
        if self.rank is not None:
            require_cluster(self, "an arrival at another block's barrier")
        elif self.asynchronous is not None:
            raise VerifyException("expected `of` with a rank before `async`, but got no rank")


@irdl.irdl_op_definition
class MbarWaitOp(MbarrierOp):
    """Waits until the last complete phase of an mbarrier has the given parity (0 or 1).

    ```
    kernel.mbar_wait %full[%slot] parity %phase : memref<3x!kernel.mbarrier, "shared">
    ```

    Operands:
        parity: parity of the phase to wait for, 0 or 1.
    """

    name = "kernel.mbar_wait"
    parity = irdl.operand_def(IndexType())
    assembly_format = "$barriers `` `[` $index `]` `parity` $parity attr-dict `:` type($barriers)"


@irdl.irdl_op_definition
class FenceMbarInitOp(OrderedOp):
    """Makes the mbarriers that this thread has initialised visible to asynchronous copies.

    ```
    kernel.fence_mbar_init
    ```
    """

    name = "kernel.fence_mbar_init"


@irdl.irdl_op_definition
class AdvanceOp(PureOp):
    """Returns the next stage of a circular buffer of `slots` stages, and its phase, which flips when the stage wraps to
    0.

    ```
    %next, %flipped = kernel.advance %slot, %phase of 3
    ```

    Operands:
        slot: the current stage.
        phase: its phase, 0 or 1.

    Attributes:
        slots: number of stages (`of`).
    """

    name = "kernel.advance"
    slot = irdl.operand_def(IndexType())
    phase = irdl.operand_def(IndexType())
    slots = irdl.prop_def(IntAttr)
    next_slot = irdl.result_def(IndexType())
    next_phase = irdl.result_def(IndexType())
    assembly_format = "$slot `,` $phase `of` custom<Int>($slots) attr-dict"

    def verify_(self) -> None:
        if self.slots.data < 1:
            raise VerifyException(f"expected at least one slot, but got {self.slots.data}")


@irdl.irdl_op_definition
class GroupBarrierOp(OrderedOp):
    """Synchronises the threads of each group of `warps` consecutive warps of the partition (or of the block).

    ```
    kernel.group_barrier 1 warps 4
    ```

    Earlier accesses of the group are visible after it. The first group uses hardware barrier `first`, the next one
    `first` + 1, and so on.

    Attributes:
        first: hardware barrier of the first group.
        warps: warps of a group.

    Constraints: `warps` divides the warps of the partition; barrier numbers are 1 to 15; partitions use disjoint
    numbers, because they may wait at the same time.
    """

    name = "kernel.group_barrier"
    first = irdl.prop_def(IntAttr)
    warps = irdl.prop_def(IntAttr)
    assembly_format = "custom<Int>($first) `warps` custom<Int>($warps) attr-dict"

    def verify_(self) -> None:
        if not 1 <= self.first.data < MOST_NAMED:
            raise VerifyException(f"expected a hardware barrier from 1 to {MOST_NAMED - 1}, but got {self.first.data}")
        if not 1 <= self.warps.data <= 32:
            raise VerifyException(f"expected groups of 1 to 32 warps, but got {self.warps.data}")
        if (membership := partition_of(self)) is None:
            return
        partitions, mine = membership
        total_warps = partitions.partition_warps[mine]
        if total_warps % self.warps.data or self.first.data + total_warps // self.warps.data > MOST_NAMED:
            raise VerifyException(
                f"expected groups that divide {total_warps} warps, with hardware barriers up to {MOST_NAMED - 1}, but"
                f" got groups of {self.warps.data} warps from barrier {self.first.data} on"
            )
        for partition, program in enumerate(partitions.programs):
            for op in program.walk() if partition != mine else ():
                if isinstance(op, GroupBarrierOp) and (both := self.numbers & op.numbers):
                    names = [partitions.partition_names[r] for r in sorted((mine, partition))]
                    raise VerifyException(
                        f"expected disjoint hardware barriers of partitions, but got {min(both)} in {names}"
                    )

    @property
    def numbers(self) -> set[int]:
        """Returns the numbers of the hardware barriers that the groups of the partition use."""
        membership = partition_of(self)
        total_warps = self.warps.data if membership is None else membership[0].partition_warps[membership[1]]
        return set(range(self.first.data, self.first.data + total_warps // max(1, self.warps.data)))
