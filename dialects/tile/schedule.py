"""`#tile.schedule`: all decisions about the kernel of one loop nest, as one attribute.

The planner, a tuning record or a person writes it. `plan-schedules` puts it on a `loop.nest`. Every later pass reads
its decision from the attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..kernel.barriers import CLUSTERS
from ..layouts.linear import LANES


@dataclass(frozen=True)
class Schedule:
    """Fields of a schedule with their defaults, in the order of printing. `ScheduleAttr` explains each field."""

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
"""Default of each field. The field `block` has none, because every schedule specifies it."""

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
"""Legal values of fields. Numbers that are not listed must be at least their default."""


@irdl_attr_definition
class ScheduleAttr(Data[Schedule]):
    """Schedule of a kernel: `#tile.schedule<block = [1, 2048], chunk = [2048], warps = 8>`.

    block    tile extent of every free index of the nest, a power of two; 1 distributes the index over the grid.
    serial   positions of free indices whose tiles one block computes in a loop, instead of one block each.
    pack     positions of free indices. A separate kernel first copies the operands that contractions load along such an
        index, so that the rows of a tile of them are contiguous. The index becomes the last one of the nest, so its
        tiles are columns of the result.
    chunk    tile extent of every reduction index, a power of two, in the order in which reductions are printed. A chunk
        that covers the range computes the reduction at once; a smaller one loops over chunks.
    thread   register tile of one thread in a contraction, [rows, columns].
    warps    warps of a block.
    lanes    threads of a warp: 32, or 1 for a block of a single thread, on the CPU.
    stages   depth of the pipeline of operand copies.
    split_k  number of blocks that share one reduction, in equal parts of its longest index.
    cluster_k  number of blocks of a cluster (1, 2, 4 or 8; sm_90 and newer) that share the reductions of a tile of the
        result. Each block reduces its share of the chunks. The blocks exchange partial results through distributed
        shared memory; each finishes and stores a part of the tile.
    group_m  grid swizzle for reuse in L2, for the last two free indices [m, n]: number of tiles along m that are
        computed before the next tile along n. It divides the number of tiles along m.
    num_ctas  blocks of a persistent kernel, which share all tiles; 0: one block for each tile.
    cluster  number of consecutive blocks (1, 2, 4 or 8; sm_90 and newer) that form a cluster. With copy = tma they
        load common operands together. Otherwise they share rows: each block computes a part of every reduction, and the
        same part of the operations that use the results.
    blocks_per_sm  minimum number of resident blocks of a multiprocessor, which limits registers; 0: no minimum.
    atom     instruction of contractions: fma, mma (tensor cores, sm_80 and newer), wgmma (sm_90a).
    copy     how operands reach shared memory: sync, cp_async, tma.
    f32_matmul_precision  how f32 operands of a matmul may be computed on tensor cores.

    Values of `f32_matmul_precision`:

    - `ieee`: not at all.
    - `input_dtype`: rounded to the type of the other operand, bf16 or f16.
    - `bf16x3`: as the exact sum of three bf16 numbers. This takes three matmuls if the other operand is bf16, and six
      if it is f32. With `promotion_interval = 1` the errors are as small as with f32 accumulation. Otherwise tensor
      cores truncate the sum, and errors grow with its length. An infinity together with a split operand may become NaN.
    - `bf16x3_presplit`: like `bf16x3`; loaded operands are split by separate kernels before.
    - `tf32`: with 10 bits of fraction.

    The planner never chooses anything but `ieee` for two f32 operands, and never `tf32`.

    promotion_interval  number of chunks whose contractions form a partial sum in separate registers. It is then added
        to the accumulators, rounded to nearest. 0: no partial sums. Partial sums bound the error: a single sum over k
        has about three times the error of eight partial sums. On tensor cores, which truncate, the error of a single
        sum is proportional to k. The planner chooses 1 if f32 operands are split for tensor cores on request, several
        chunks for f32 operands on CUDA cores, and 0 for 16-bit operands.
    promotion_memory  where the accumulators of the result are stored during a partial sum: `registers`, which
        doubles the registers of accumulators, or `shared`: each thread stores its accumulators in shared memory. Only
        for promotion_interval > 1.
    cache_rows  where a block keeps rows that several of its loops read. `registers`: only a row of one chunk; a longer
        row is loaded by each loop. `shared`: all chunks stay in shared memory.
    """

    name = "tile.schedule"
    LEGAL: ClassVar = LEGAL

    @staticmethod
    def get(block: Any, chunk: Any = (), **decisions: Any) -> ScheduleAttr:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns a schedule from Python numbers, lists and words; other fields have their default.

        Args:
            block: the field `block`.
            chunk: the field `chunk`.
            decisions: other fields by name.

        Raises:
            TypeError: a field does not exist.
        """
        fields: dict[str, Any] = {"block": block, "chunk": chunk, **decisions}
        fields.update([(n, tuple(v)) for n, v in fields.items() if isinstance(PLAIN.get(n), tuple)])
        return ScheduleAttr(Schedule(**fields))

    def changed(self, **decisions: Any) -> ScheduleAttr:
        """Returns the schedule with some fields replaced."""
        return ScheduleAttr.get(**(vars(self.data) | decisions))

    def verify(self) -> None:
        values = vars(self.data)
        for n in ("block", "chunk", "thread"):
            for v in values[n]:
                if v < 1 or v & (v - 1):
                    raise VerifyException(f"schedule: expected powers of two in {n}, but got {v}")
        for n, least in PLAIN.items():
            if n in LEGAL and values[n] not in LEGAL[n]:
                raise VerifyException(
                    f"schedule: expected {n} to be one of {', '.join(map(str, LEGAL[n]))}, but got {values[n]}"
                )
            if isinstance(least, int) and n not in LEGAL and values[n] < least:
                raise VerifyException(f"schedule: expected {n} of at least {least}, but got {values[n]}")
        for n in ("serial", "pack"):
            if any(not 0 <= s < len(self.data.block) for s in values[n]):
                raise VerifyException(
                    f"schedule: expected positions of free indices below {len(self.data.block)} in {n}, but got"
                    f" {list(values[n])}"
                )

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
            parser.raise_error("schedule: expected a decision 'block', but got none")
        return cls.get(**values).data

    def print_parameter(self, printer: Printer) -> None:
        shown = {n: v for n, v in vars(self.data).items() if n in ("block", "warps") or v != PLAIN[n]}
        texts = (f"{n} = {list(v) if isinstance(PLAIN[n], tuple) else v}" for n, v in shown.items())
        printer.print_string(f"<{', '.join(texts)}>")
