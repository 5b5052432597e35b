"""Partitions of the kernel dialect, warps of a block that run different programs at the same time; and barriers in
addition to the block's: mbarriers in shared memory, groups of warps, clusters of blocks.

An mbarrier is a cell of shared memory that counts. Its *phase* n is complete when `arrivals` threads have arrived and
every byte announced with `kernel.mbar_expect` has been written by asynchronous copies; then phase n + 1 begins. Who
waits names the parity of the phase: `parity p` returns once a phase of parity p is the last one that is complete. A new
barrier is in phase 0, so waiting for parity 1 returns at once: that is how the producer of a ring starts with free
slots. An arrival publishes what its thread did before; a wait that returns makes it visible.

A ring of S slots has two buffers of S barriers, `full` (one arrival, by the producer's `mbar_expect`, and the bytes of
a slot) and `empty` (one arrival for every consumer). Producer: wait empty[slot] parity phase ^ 1, expect full[slot],
start the copies that signal full[slot]. Consumer: wait full[slot] parity phase, use the slot, arrive at empty[slot].
Both walk the ring with `kernel.advance`, from slot 0 and phase 0.

Clusters are blocks that run at the same time and reach each other (sm_90 and newer). The blocks of a grid with
consecutive numbers form clusters of the size that `kernel.func` names (PTX ISA, "Cluster of Cooperative Thread
Arrays"). A block's number in its cluster is its *rank*, `kernel.id rank`. All blocks of a cluster run the same kernel,
so a buffer in shared memory has one instance in each of them, in the same place; `kernel.mapa` names that of another
block. Barriers order nothing between blocks but `kernel.cluster_barrier` and mbarriers that blocks arrive at across the
cluster.

A block's shared memory is there from the time when the block has begun until its last thread has ended. So blocks meet
at a `kernel.cluster_barrier` before the first touches what belongs to another (an mbarrier that is set up counts), and
after the last has. `kernel-insert-barriers` does that for `kernel.load`s; rings that boxes are multicast into say it
themselves.
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
"""Warps of a warpgroup; its first warp's number is a multiple of this."""

PRODUCER_REGISTERS = 24
"""Registers of a thread that starts copies: enough for a few indices."""

MOST_REGISTERS = 240
"""Registers of any other thread: as many as the hardware hands out."""


def register_pool(threads: int, blocks_per_sm: int = 1) -> int:
    """Registers of a block of `threads` threads: what its partitions share."""
    return threads * launch_registers(threads, blocks_per_sm)


def consumer_registers(warps: int, blocks_per_sm: int = 1) -> int:
    """Registers that each thread of `warps` warps can have beside a warpgroup that gives away what it does not need."""
    left = register_pool(32 * (warps + WARPGROUP), blocks_per_sm) - 32 * WARPGROUP * PRODUCER_REGISTERS
    return min(left // (32 * warps) // 8 * 8, MOST_REGISTERS)


@irdl.irdl_op_definition
class WarpSpecializeOp(FormattedOp):
    """The warps of the block part: the first partition's warps are the block's first, and so on; together they are all.

    Every partition has its own program, whose argument is the number of the warp within the partition; `kernel.id`
    still counts within the block. Partitions agree on nothing but what mbarriers order. With `registers` each of a
    partition's threads gives registers up or takes them, to have that many; all partitions say so or none, and each is
    made of whole warpgroups. Together they have no more than the block has at its launch (`register_pool`): nobody
    would ever get the rest. Partitions stand at the top of a kernel, once, behind everything but constants, ids and
    index arithmetic; there is no `kernel.barrier` inside, and no two partitions have a `kernel.group_barrier` with one
    number. A `kernel.cluster_barrier` waits for all threads of the cluster, so each partition has as many of them.

    ```
    kernel.warp_specialize {
      partition "producer"(%w) warps 4 registers 40 { ... }
      partition "consumer"(%v) warps 8 registers 232 { ... }
    }
    ```
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
        """How many registers a thread of each partition has; empty where that is left alone."""
        return [int(n) for n in self.registers.get_values()]

    def first_warp(self, partition: int) -> int:
        return sum(self.partition_warps[:partition])

    def verify_(self) -> None:
        count, warps, registers = len(self.programs), self.partition_warps, self.partition_registers
        if count < 1 or len(self.names) != count or len(warps) != count or len(registers) not in (0, count):
            raise VerifyException(
                f"one name, one number of warps and one or no number of registers for {count} partitions"
            )
        if len(set(self.partition_names)) != count:
            raise VerifyException(f"partitions of one name: {self.partition_names}")
        if min(warps) < 1:
            raise VerifyException(f"a partition has at least one warp, not {min(warps)}")
        if any([a.type for a in p.block.args] != [IndexType()] for p in self.programs):
            raise VerifyException("the argument of a partition is the number of the warp in it, an index")
        parent = self.parent_op()
        if parent is not None and parent.name != "kernel.func":
            raise VerifyException(f"partitions stand at the top of a kernel, not in {parent.name}")
        if any(op.name == "kernel.barrier" for op in self.walk()):
            raise VerifyException("a barrier of the whole block inside of a partition, which other warps never reach")
        barriers = [[op for op in p.walk() if op.name == "kernel.cluster_barrier"] for p in self.programs]
        if any(op.parent is not p.block for p, found in zip(self.programs, barriers, strict=True) for op in found):
            raise VerifyException("a barrier of the cluster in a loop or condition of a partition")
        if len({len(found) for found in barriers}) > 1:
            counts = [len(found) for found in barriers]
            raise VerifyException(
                f"partitions with {counts} barriers of the cluster, each of which waits for all threads"
            )
        if registers:
            self._verify_registers(warps, registers)

    @property
    def blocks_per_sm(self) -> int:
        """How many blocks the kernel wants on a multiprocessor; they share its registers."""
        kernel = self.parent_op()
        found: Attribute | None = None if kernel is None else kernel.properties.get("blocks_per_sm")
        return max(1, found.data) if isa(found, IntAttr) else 1

    def _verify_registers(self, warps: list[int], registers: list[int]) -> None:
        if any(n % WARPGROUP for n in warps):
            raise VerifyException(f"whole warpgroups change their registers, not {warps} warps")
        if any(n % 8 or not 24 <= n <= 240 for n in registers):
            raise VerifyException(f"a thread has 24 to 240 registers, in steps of 8, not {registers}")
        threads, blocks = 32 * sum(warps), self.blocks_per_sm
        total = sum(32 * w * r for w, r in zip(warps, registers, strict=True))
        if total > register_pool(threads, blocks):
            raise VerifyException(
                f"the partitions want {total} registers; the block has {register_pool(threads, blocks)}, {threads}"
                f" threads with {launch_registers(threads, blocks)} each at its launch"
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
    """The partitions that `op` is inside of, and the number of its partition; None outside of partitions."""
    found = enclosing(op, WarpSpecializeOp)
    return None if found is None else (found, next(i for i, r in enumerate(found.programs) if r.is_ancestor(op)))


CLUSTERS = (1, 2, 4, 8)
"""How many blocks a cluster may have on every card that has clusters."""


def cluster_of(op: Operation) -> int | None:
    """The size of the clusters of the kernel that `op` is in; None outside of kernels."""
    func = next((o for o in ancestors(op) if o.name == "kernel.func"), None)
    found = None if func is None else func.properties.get("cluster", IntAttr(1))
    return found.data if isa(found, IntAttr) else None


def require_cluster(op: Operation, what: str) -> None:
    """Raise VerifyException if `op` is in a kernel whose blocks form no clusters."""
    if cluster_of(op) == 1:
        raise VerifyException(f"{what} in a kernel without clusters")


@irdl.irdl_op_definition
class ClusterBarrierOp(OrderedOp):
    """All threads of all blocks of the cluster wait for each other; what they did before is seen after, in shared
    memory of any of the blocks as in global memory (PTX `barrier.cluster.arrive.release`, `.wait.acquire`).

    Threads that have ended count as having arrived. All partitions have equally many of them, outside of loops and
    conditions: barrier number n is the same one in each.

    ```
    kernel.cluster_barrier
    ```
    """

    name = "kernel.cluster_barrier"

    def verify_(self) -> None:
        require_cluster(self, "a barrier of the cluster")


@irdl.irdl_op_definition
class MapaOp(PureOp):
    """A shared buffer as the block with the given rank has it (PTX `mapa`); `kernel.load` reads it.

    ```
    %p = kernel.mapa %s of %rank : memref<256xf32, "shared"> -> memref<256xf32, "cluster">
    ```
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
            raise VerifyException(f"names another block's instance of a shared buffer, not of {self.shared.type}")
        wanted = _of_cluster(self.shared.type)
        if self.result.type != wanted:
            raise VerifyException(f"gives {wanted}, not {self.result.type}")


def _of_cluster(t: Attribute) -> Attribute:
    return CLUSTER.buffer(element_type(t), t.get_shape()) if isinstance(t, MemRefType) else t  # pyright: ignore


MOST_ARRIVALS = (1 << 20) - 1
"""How many arrivals, and how many bytes, one phase of an mbarrier can count."""

MOST_NAMED = 16
"""Hardware barriers of a block; number 0 is that of `kernel.barrier`."""


@irdl.irdl_attr_definition
class MbarrierType(ParametrizedAttribute, TypeAttribute):
    """The element type of a buffer of mbarriers, eight bytes each: `memref<3x!kernel.mbarrier, "shared">`."""

    name = "kernel.mbarrier"


def is_mbarriers(t: Attribute) -> bool:
    return is_shared_line(t) and isinstance(element_type(t), MbarrierType)


class MbarrierOp(OrderedOp):
    """What works on one barrier of a buffer has in common; `index` is the barrier's number in the buffer."""

    barriers = irdl.operand_def(irdl.base(MemRefType))
    index = irdl.operand_def(IndexType())

    def verify_(self) -> None:
        if not is_mbarriers(self.barriers.type):
            raise VerifyException(f"works on a shared buffer of mbarriers, not {self.barriers.type}")


@irdl.irdl_op_definition
class MbarInitOp(MbarrierOp):
    """Set a barrier up, for `arrivals` arrivals a phase. One thread does this; before anybody uses the barrier, that
    thread executes `kernel.fence_mbar_init` and all threads meet at a `kernel.barrier`.

    ```
    kernel.mbar_init %full[%i] arrivals 1 : memref<3x!kernel.mbarrier, "shared">
    ```
    """

    name = "kernel.mbar_init"
    arrivals = irdl.prop_def(IntAttr)
    assembly_format = "$barriers `` `[` $index `]` `arrivals` custom<Int>($arrivals) attr-dict `:` type($barriers)"

    def verify_(self) -> None:
        super().verify_()
        if not 1 <= self.arrivals.data <= MOST_ARRIVALS:
            raise VerifyException(f"a barrier counts 1 to {MOST_ARRIVALS} arrivals, not {self.arrivals.data}")


@irdl.irdl_op_definition
class MbarExpectOp(MbarrierOp):
    """Arrive, and announce that `bytes` more bytes will be copied in this phase; by every thread that gets here.

    `bytes` is the sum of the boxes that signal the barrier in the phase, the parts outside of a buffer included.

    ```
    kernel.mbar_expect %full[%slot] bytes 16384 : memref<3x!kernel.mbarrier, "shared">
    ```
    """

    name = "kernel.mbar_expect"
    bytes = irdl.prop_def(IntAttr)
    assembly_format = "$barriers `` `[` $index `]` `bytes` custom<Int>($bytes) attr-dict `:` type($barriers)"

    def verify_(self) -> None:
        super().verify_()
        if not 1 <= self.bytes.data <= MOST_ARRIVALS:
            raise VerifyException(f"a phase counts 1 to {MOST_ARRIVALS} bytes, not {self.bytes.data}")


@irdl.irdl_op_definition
class MbarArriveOp(MbarrierOp):
    """Arrive, once for every thread that gets here; with a rank, at the barrier of that block of the cluster (PTX
    `mapa` and `mbarrier.arrive.release.cluster.shared::cluster`). With `async` it tells the other block only that the
    asynchronous operations that the thread has waited for are over, not what threads have done: that needs no fence of
    memory (`mbarrier.arrive.shared::cluster`), and is enough for a slot that products have read.

    ```
    kernel.mbar_arrive %empty[%slot] : memref<3x!kernel.mbarrier, "shared">
    kernel.mbar_arrive %empty[%slot] of %rank : memref<3x!kernel.mbarrier, "shared">
    kernel.mbar_arrive %empty[%slot] of %rank async : memref<3x!kernel.mbarrier, "shared">
    ```
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
            raise VerifyException("an arrival at the block's own barrier tells of all that the thread has done")


@irdl.irdl_op_definition
class MbarWaitOp(MbarrierOp):
    """Wait until the phase of the given parity (0 or 1) is complete: see the module's docstring.

    ```
    kernel.mbar_wait %full[%slot] parity %phase : memref<3x!kernel.mbarrier, "shared">
    ```
    """

    name = "kernel.mbar_wait"
    parity = irdl.operand_def(IndexType())
    assembly_format = "$barriers `` `[` $index `]` `parity` $parity attr-dict `:` type($barriers)"


@irdl.irdl_op_definition
class FenceMbarInitOp(OrderedOp):
    """Make the barriers that this thread has set up visible to asynchronous copies.

    ```
    kernel.fence_mbar_init
    ```
    """

    name = "kernel.fence_mbar_init"


@irdl.irdl_op_definition
class AdvanceOp(PureOp):
    """The next slot of a ring of `slots`, and the phase there: the phase flips when the ring starts over.

    ```
    %next, %flipped = kernel.advance %slot, %phase of 3
    ```
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
            raise VerifyException(f"a ring has at least one slot, not {self.slots.data}")


@irdl.irdl_op_definition
class GroupBarrierOp(OrderedOp):
    """The threads of each group of `warps` consecutive warps of the partition wait for each other; what they did before
    is seen after. Outside of partitions the groups are those of the block.

    The first group uses hardware barrier `first`, the next one `first` + 1 and so on; a kernel gives every operation
    that may run at the same time others.

    ```
    kernel.group_barrier 1 warps 4
    ```
    """

    name = "kernel.group_barrier"
    first = irdl.prop_def(IntAttr)
    warps = irdl.prop_def(IntAttr)
    assembly_format = "custom<Int>($first) `warps` custom<Int>($warps) attr-dict"

    def verify_(self) -> None:
        if not 1 <= self.first.data < MOST_NAMED:
            raise VerifyException(f"hardware barriers 1 to {MOST_NAMED - 1} are free, not {self.first.data}")
        if not 1 <= self.warps.data <= 32:
            raise VerifyException(f"a group has 1 to 32 warps, not {self.warps.data}")
        if (found := partition_of(self)) is None:
            return
        partitions, mine = found
        around = partitions.partition_warps[mine]
        if around % self.warps.data or self.first.data + around // self.warps.data > MOST_NAMED:
            raise VerifyException(
                f"groups of {self.warps.data} warps in a partition of {around}, from {self.first.data} on"
            )
        for partition, program in enumerate(partitions.programs):
            for op in program.walk() if partition != mine else ():
                if isinstance(op, GroupBarrierOp) and (both := self.numbers & op.numbers):
                    names = [partitions.partition_names[r] for r in sorted((mine, partition))]
                    raise VerifyException(f"partitions {names} both wait at hardware barrier {min(both)}")

    @property
    def numbers(self) -> set[int]:
        """The hardware barriers that groups of the partition use."""
        found = partition_of(self)
        around = self.warps.data if found is None else found[0].partition_warps[found[1]]
        return set(range(self.first.data, self.first.data + around // max(1, self.warps.data)))
