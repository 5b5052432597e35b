"""`#tile.schedule`: every decision about how one kernel runs, as one attribute.

A planner, a tuned record or a person writes it. The planning pass puts it on
a `loop.nest`; the passes below it are mechanical and read their decision here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..kernel.barriers import CLUSTERS
from ..layouts.linear import LANES


@dataclass(frozen=True)
class Schedule:
    """Every field of a schedule with its plainest value, in the order in which they are printed."""

    block: tuple[int, ...]
    serial: tuple[int, ...] = ()
    pack: tuple[int, ...] = ()
    chunk: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    warps: int = 4
    lanes: int = LANES
    stages: int = 1
    split_k: int = 1
    cluster_k: int = 1
    group_m: int = 1
    num_ctas: int = 0
    cluster: int = 1
    blocks_per_sm: int = 0
    atom: str = "fma"
    copy: str = "sync"
    f32_matmul_precision: str = "ieee"
    promotion_interval: int = 0
    promotion_memory: str = "registers"
    cache_rows: str = "registers"


PLAIN: dict[str, Any] = vars(Schedule(()))
"""The plainest value of each field."""

LEGAL: dict[str, tuple[int, ...] | tuple[str, ...]] = {
    "warps": (1, 2, 4, 8, 16, 32),
    "lanes": (1, LANES),
    "cluster_k": CLUSTERS,
    "cluster": CLUSTERS,
    "atom": ("fma", "mma", "wgmma"),
    "copy": ("sync", "cp_async", "tma"),
    "f32_matmul_precision": ("ieee", "input_dtype", "bf16x3", "bf16x3_presplit", "tf32"),
    "promotion_memory": ("registers", "shared"),
    "cache_rows": ("registers", "shared"),
}
"""What a field may be. The other numbers are at least what they are in the plainest schedule."""


@irdl_attr_definition
class ScheduleAttr(Data[Schedule]):
    """`#tile.schedule<block = [1, 2048], chunk = [2048], warps = 8>`

    block    tile extent of every free index of the nest, a power of two; 1 puts the index wholly onto the grid.
    serial   positions of free indices whose tiles one block walks through in a loop instead of the grid.
    pack     positions of free indices: what factors of products load along one is copied before, by a kernel of its
             own, so that what a tile has of it lies row by row; and the index becomes the last, that of the columns.
    chunk    tile extent of every reduction index, a power of two, in the order the reductions are printed; one that
             covers its range computes the reduction at once, a smaller one loops over chunks.
    thread   register tile of one thread in a contraction, [rows, columns].
    warps    warps a block.
    lanes    threads of a warp: 32, or 1 where a block, of one warp, is a single thread: a core's.
    atom     how contractions are computed: fma, mma (tensor cores, sm_80 and newer), wgmma (sm_90a).
    copy     how operands reach shared memory: sync, cp_async, tma.  stages: depth of that pipeline.
    split_k  blocks that share one reduction: so many equal parts of its longest index.
    cluster_k  blocks of a cluster that share the reductions of a tile of the result (1, 2, 4 or 8; sm_90 and newer).
             Each block reduces the chunks of its share. The blocks exchange the sums through distributed shared memory,
             and each block finishes and stores its part of the tile.
    group_m  grid swizzle: so many tiles of the last index but one come first, then the next tile of the last index; a
             divisor of how many there are.
    num_ctas  blocks of a persistent kernel, which share all tiles; 0: every tile has a block of its own.
    cluster  so many blocks with consecutive numbers form a cluster (1, 2, 4 or 8; sm_90 and newer) and load together
             what all of them need (copy = tma), or share rows: each has a part of the reductions and of what follows.
    blocks_per_sm  so many blocks at least run at once on a multiprocessor: the compiler has to get along with their
             share of its registers; 0 leaves that to the compiler.
    f32_matmul_precision  how an f32 operand of a matmul may reach tensor cores. `ieee`: not at all. `input_dtype`:
             rounded to the type of the other operand, bf16 or f16. `bf16x3`: as the sum of three bf16 numbers, which is
             all of it; three matmuls if the other operand is bf16, six if it is f32 too. With `promotion_interval = 1`
             the errors are those of a sum in f32; without, tensor cores cut the sum, and they grow with its length. An
             infinity beside a split operand may become a NaN. `bf16x3_presplit`: the same, and operands that are loaded
             are split before, by kernels of their own. `tf32`: with 10 bits of the fraction. The planner never chooses
             a value other than `ieee` for two f32 operands, nor `tf32`.
    promotion_interval  chunks of which the contractions of the block form a partial sum, from zero, in registers of its
             own; one addition then promotes it to the accumulators of the result, rounded to nearest. 0: one sum of
             all chunks. It bounds the error: one register that sums all of k errs some three times as much as eight
             partial sums; on tensor cores, which cut what they add, the error of one sum is proportional to k. The
             planner sets 1 where f32 operands are split for tensor cores on request, several chunks for f32
             operands on CUDA cores, and 0 for operands of 16 bits.
    promotion_memory  where a block keeps the accumulators of the result while it forms a partial sum: in `registers`,
             twice as many, or in `shared` memory, where each thread writes and reads its own (promotion_interval > 1).
    cache_rows  where a block keeps what several of its loops read: `registers` hold no more than one tile, so a row in
             several chunks is read from memory by each loop; in `shared` memory all chunks stay.
    """

    name = "tile.schedule"

    @staticmethod
    def get(block: Any, chunk: Any = (), **decisions: Any) -> ScheduleAttr:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A schedule from Python numbers, lists and words; what is left out has the plainest value. Raises TypeError
        for a decision that does not exist."""
        given: dict[str, Any] = {"block": block, "chunk": chunk, **decisions}
        given.update([(n, tuple(v)) for n, v in given.items() if isinstance(PLAIN.get(n), tuple)])
        return ScheduleAttr(Schedule(**given))

    def changed(self, **decisions: Any) -> ScheduleAttr:
        return ScheduleAttr.get(**(vars(self.data) | decisions))

    def verify(self) -> None:
        values = vars(self.data)
        for n in ("block", "chunk", "thread"):
            for v in values[n]:
                if v < 1 or v & (v - 1):
                    raise VerifyException(f"schedule: {n} holds {v}, not a power of two")
        for n, least in PLAIN.items():
            if n in LEGAL and values[n] not in LEGAL[n]:
                raise VerifyException(f"schedule: {n} is {values[n]}; it is one of {', '.join(map(str, LEGAL[n]))}")
            if isinstance(least, int) and n not in LEGAL and values[n] < least:
                raise VerifyException(f"schedule: {n} is {values[n]}; it is at least {least}")
        for n in ("serial", "pack"):
            if any(not 0 <= s < len(self.data.block) for s in values[n]):
                raise VerifyException(f"schedule: {n} names free indices by position")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Schedule:
        values: dict[str, Any] = {}

        def entry() -> None:
            key = parser.parse_identifier()
            if key in values or key not in PLAIN:
                parser.raise_error(f"schedule: unknown or repeated decision '{key}'")
            parser.parse_punctuation("=")
            if isinstance(PLAIN[key], tuple):
                values[key] = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            else:
                values[key] = parser.parse_integer() if isinstance(PLAIN[key], int) else parser.parse_identifier()

        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, entry)
        if "block" not in values:
            parser.raise_error("schedule: 'block' is missing")
        return cls.get(**values).data

    def print_parameter(self, printer: Printer) -> None:
        shown = {n: v for n, v in vars(self.data).items() if n in ("block", "warps") or v != PLAIN[n]}
        texts = (f"{n} = {list(v) if isinstance(PLAIN[n], tuple) else v}" for n, v in shown.items())
        printer.print_string(f"<{', '.join(texts)}>")
