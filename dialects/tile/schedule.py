"""`#tile.schedule`: every decision about how one kernel runs, as one attribute.

A planner, a tuned record or a person writes it. The planning pass puts it on
a `loop.nest`; the passes below it are mechanical and read their decision here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..kernel.cluster import CLUSTERS


@dataclass(frozen=True)
class Decision:
    """A field of a schedule: its plainest value, which is not printed, and what else it may be."""

    default: tuple[int, ...] | int | str
    words: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    least: int = 0


DECISIONS: dict[str, Decision] = {
    "block": Decision(()),
    "serial": Decision(()),
    "chunk": Decision(()),
    "thread": Decision(()),
    "warps": Decision(4, numbers=(1, 2, 4, 8, 16, 32)),
    "stages": Decision(1, least=1),
    "split_k": Decision(1, least=1),
    "group_m": Decision(1, least=1),
    "num_ctas": Decision(0),
    "cluster": Decision(1, numbers=CLUSTERS),
    "blocks_per_sm": Decision(0),
    "atom": Decision("fma", ("fma", "mma", "wgmma")),
    "copy": Decision("sync", ("sync", "cp_async", "tma")),
    "f32_matmul_precision": Decision("ieee", ("ieee", "input_dtype", "bf16x3", "bf16x3_presplit", "tf32")),
    "cache_rows": Decision("registers", ("registers", "shared")),
}
"""Every field of a schedule by name, in the order in which they are printed. `block` and `warps` are always printed."""


def _attribute(value: Any) -> ArrayAttr[IntAttr] | IntAttr | StringAttr:
    if isinstance(value, str):
        return StringAttr(value)
    return IntAttr(value) if isinstance(value, int) else ArrayAttr([IntAttr(v) for v in value])


@irdl_attr_definition
class ScheduleAttr(ParametrizedAttribute):
    """`#tile.schedule<block = [1, 2048], chunk = [2048], warps = 8>`

    block    tile extent of every free index of the nest, a power of two; 1 puts the index wholly onto the grid.
    serial   positions of free indices whose tiles one block walks through in a loop instead of the grid.
    chunk    tile extent of every reduction index, a power of two, in the order the reductions are printed; one that
             covers its range computes the reduction at once, a smaller one loops over chunks.
    thread   register tile of one thread in a contraction, [rows, columns].
    warps    warps a block.
    atom     how contractions are computed: fma, mma (tensor cores, sm_80 and newer), wgmma (sm_90a).
    copy     how operands reach shared memory: sync, cp_async, tma.  stages: depth of that pipeline.
    split_k  blocks that share one reduction: so many equal parts of its longest index.
    group_m  grid swizzle: so many tiles of the last index but one come first, then the next tile of the last index; a
             divisor of how many there are.
    num_ctas  blocks of a persistent kernel, which share all tiles; 0: every tile has a block of its own.
    cluster  so many blocks with consecutive numbers form a cluster (1, 2, 4 or 8; sm_90 and newer) and load together
             what all of them need (copy = tma), or share rows: each has a part of the reductions and of what follows.
    blocks_per_sm  so many blocks at least run at once on a multiprocessor: the compiler has to get along with their
             share of its registers; 0 leaves that to the compiler.
    f32_matmul_precision  how an f32 operand of a matmul may reach tensor cores. `ieee`: not at all. `input_dtype`:
             rounded to the type of the other operand, bf16 or f16. `bf16x3`: as the sum of three bf16 numbers, which is
             all of it; three matmuls if the other operand is bf16, six if it is f32 too, with errors as of a sum in
             f32. An infinity beside a split operand may become a NaN. `bf16x3_presplit`: the same, and operands that
             are loaded are split before, by kernels of their own. `tf32`: with 10 bits of the fraction. The planner
             never chooses a value other than `ieee` for two f32 operands, nor `tf32`.
    cache_rows  where a block keeps what several of its loops read: `registers` hold no more than one tile, so a row in
             several chunks is read from memory by each loop; in `shared` memory all chunks stay.
    """

    name = "tile.schedule"
    block: ArrayAttr[IntAttr]
    serial: ArrayAttr[IntAttr]
    chunk: ArrayAttr[IntAttr]
    thread: ArrayAttr[IntAttr]
    warps: IntAttr
    stages: IntAttr
    split_k: IntAttr
    group_m: IntAttr
    num_ctas: IntAttr
    cluster: IntAttr
    blocks_per_sm: IntAttr
    atom: StringAttr
    copy: StringAttr
    f32_matmul_precision: StringAttr
    cache_rows: StringAttr

    @staticmethod
    def get(block: Any, chunk: Any = (), **decisions: Any) -> ScheduleAttr:
        """A schedule from Python numbers, lists and words; what is left out has the plainest value. Raises TypeError
        for a decision that does not exist."""
        given = {"block": block, "chunk": chunk, **decisions}
        if unknown := given.keys() - DECISIONS.keys():
            raise TypeError(f"schedule: unknown decision {unknown.pop()!r}")
        return ScheduleAttr.new([_attribute(given.get(name, d.default)) for name, d in DECISIONS.items()])

    def fields(self) -> dict[str, Any]:
        """The decisions as plain Python values, by name, in a fixed order."""
        values = dict(zip(DECISIONS, self.parameters, strict=True))
        return {n: [i.data for i in v] if isinstance(v, ArrayAttr) else v.data for n, v in values.items()}  # pyright: ignore

    def changed(self, **decisions: Any) -> ScheduleAttr:
        """This schedule with some decisions replaced."""
        return ScheduleAttr.get(**(self.fields() | decisions))

    def verify(self) -> None:
        values = self.fields()
        for n in ("block", "chunk", "thread"):
            for v in values[n]:
                if v < 1 or v & (v - 1):
                    raise VerifyException(f"schedule: {n} holds {v}, not a power of two")
        for n, decision in DECISIONS.items():
            legal = decision.words or decision.numbers
            if legal and values[n] not in legal:
                raise VerifyException(f"schedule: {n} is {values[n]}; it is one of {', '.join(map(str, legal))}")
            if isinstance(decision.default, int) and values[n] < decision.least:
                raise VerifyException(f"schedule: {n} is {values[n]}; it is at least {decision.least}")
        if any(not 0 <= s < len(self.block) for s in values["serial"]):
            raise VerifyException("schedule: serial names free indices by position")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Any]:
        values: dict[str, Any] = {}

        def entry() -> None:
            key = parser.parse_identifier()
            if key in values or key not in DECISIONS:
                parser.raise_error(f"schedule: unknown or repeated decision '{key}'")
            parser.parse_punctuation("=")
            default = DECISIONS[key].default
            if isinstance(default, tuple):
                values[key] = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            else:
                values[key] = parser.parse_integer() if isinstance(default, int) else parser.parse_identifier()

        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, entry)
        if "block" not in values:
            parser.raise_error("schedule: 'block' is missing")
        return list(cls.get(**values).parameters)

    def print_parameters(self, printer: Printer) -> None:
        always = ("block", "warps")
        plain = ScheduleAttr.get([]).fields()
        shown = [f"{k} = {v}" for k, v in self.fields().items() if k in always or v != plain[k]]
        printer.print_string(f"<{', '.join(shown)}>")
