"""Partitions of the kernel dialect: warps of one block that run different programs at the same time."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntAttr, StringAttr
from xdsl.ir import Attribute, Operation, Region
from xdsl.irdl import irdl_op_definition, prop_def, traits_def, var_region_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, NoTerminator
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from ...target.model import launch_registers
from ..support.assembly import NUMBERS, FormattedOp
from ..support.locations import enclosing

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


@irdl_op_definition
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
    names = prop_def(ArrayAttr[StringAttr])
    warps = prop_def(NUMBERS)
    registers = prop_def(NUMBERS)
    programs = var_region_def("single_block")
    traits = traits_def(NoTerminator(), MemoryReadEffect(), MemoryWriteEffect())

    @property
    def partition_names(self) -> list[str]:
        """What the partitions are called."""
        return [n.data for n in self.names]

    @property
    def partition_warps(self) -> list[int]:
        """How many warps each partition has."""
        return [int(n) for n in self.warps.get_values()]

    @property
    def partition_registers(self) -> list[int]:
        """How many registers a thread of each partition has; empty where that is left alone."""
        return [int(n) for n in self.registers.get_values()]

    def first_warp(self, partition: int) -> int:
        """The number in the block of the first warp of partition number `partition`."""
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
