"""`#tile.schedule`: every decision about how one kernel runs, as one attribute.

A planner, a tuned record or a person writes it. The planning pass puts it on
a `loop.nest`; the passes below it are mechanical and read their decision here.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from .kernel_cluster import CLUSTERS

ATOMS = ("fma", "mma", "wgmma")
COPIES = ("plain", "cp_async", "tma")
NARROWS = ("never", "operands", "parts", "stored_parts", "tf32")
ROWS = ("registers", "shared")
_LISTS = ("block", "serial", "chunk", "thread")
_WORDS = ("atom", "copy", "narrow", "row")
_NUMBERS = ("warps", "stages", "split_k", "group", "persistent", "cluster", "blocks_per_sm")


def _ints(values: Any) -> ArrayAttr[IntAttr]:
    return ArrayAttr([IntAttr(v) for v in values])


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
    copy     how operands reach shared memory: plain, cp_async, tma.  stages: depth of that pipeline.
    split_k  blocks that share one reduction: so many equal parts of its longest index.
    group    blocks that are started together are a patch of the result: so many tiles of the last index but one come
             first, then the next of the last index; a divisor of how many there are.
    persistent  so many blocks share all tiles, one after the other; 0: every tile has a block of its own.
    cluster  so many blocks with consecutive numbers form a cluster (1, 2, 4 or 8; sm_90 and newer) and load together
             what all of them need (copy = tma), or share rows: each has a part of the reductions and of what follows.
    blocks_per_sm  so many blocks at least run at once on a multiprocessor: the compiler has to get along with their
             share of its registers; 0 leaves that to the compiler.
    narrow   how a factor in f32 may reach tensor cores: `never`; `operands` permits to round it to the type of the
             other factor, bf16 or f16; `parts` splits it into the sum of three bf16 numbers, which is all of it: three
             products if the other factor is narrow, six if it is f32 too, with errors as of a sum in f32. An infinity
             beside a factor in parts may become a NaN. `stored_parts`: the same, and factors that are loaded are split
             before, by kernels of their own. `tf32` permits to multiply factors in f32 with 10 bits of their
             fraction. No planner gives the permission for two factors in f32, nor that for tf32.
    row      where a block keeps what several of its loops read, between them: `registers` hold no more than one tile,
             so a row in several chunks is read from memory by each loop; in `shared` memory all chunks stay.
    """

    name = "tile.schedule"
    block: ArrayAttr[IntAttr]
    serial: ArrayAttr[IntAttr]
    chunk: ArrayAttr[IntAttr]
    thread: ArrayAttr[IntAttr]
    warps: IntAttr
    atom: StringAttr
    copy: StringAttr
    stages: IntAttr
    split_k: IntAttr
    group: IntAttr
    persistent: IntAttr
    cluster: IntAttr
    blocks_per_sm: IntAttr
    narrow: StringAttr
    row: StringAttr

    @staticmethod
    def get(
        block: Any,
        chunk: Any = (),
        *,
        serial: Any = (),
        thread: Any = (),
        warps: int = 4,
        atom: str = "fma",
        copy: str = "plain",
        stages: int = 1,
        split_k: int = 1,
        group: int = 1,
        persistent: int = 0,
        cluster: int = 1,
        blocks_per_sm: int = 0,
        narrow: str = "never",
        row: str = "registers",
    ) -> ScheduleAttr:
        """A schedule from Python numbers; what is left out has the plainest value."""
        return ScheduleAttr(
            _ints(block),
            _ints(serial),
            _ints(chunk),
            _ints(thread),
            IntAttr(warps),
            StringAttr(atom),
            StringAttr(copy),
            IntAttr(stages),
            IntAttr(split_k),
            IntAttr(group),
            IntAttr(persistent),
            IntAttr(cluster),
            IntAttr(blocks_per_sm),
            StringAttr(narrow),
            StringAttr(row),
        )

    def fields(self) -> dict[str, Any]:
        """The decisions as plain Python values, by name, in a fixed order."""
        lists = {n: [i.data for i in getattr(self, n)] for n in _LISTS}
        rest = {n: getattr(self, n).data for n in (*_NUMBERS, *_WORDS)}
        return lists | rest

    def changed(self, **decisions: Any) -> ScheduleAttr:
        """This schedule with some decisions replaced."""
        return ScheduleAttr.get(**(self.fields() | decisions))

    def verify(self) -> None:
        for n in ("block", "chunk", "thread"):
            for v in getattr(self, n):
                if v.data < 1 or v.data & (v.data - 1):
                    raise VerifyException(f"schedule: {n} holds {v.data}, not a power of two")
        if self.warps.data not in (1, 2, 4, 8, 16, 32):
            raise VerifyException(f"schedule: {self.warps.data} warps; a block has 1, 2, 4, 8, 16 or 32")
        if self.atom.data not in ATOMS:
            raise VerifyException(f"schedule: atom {self.atom.data} is none of {', '.join(ATOMS)}")
        if self.copy.data not in COPIES:
            raise VerifyException(f"schedule: copy {self.copy.data} is none of {', '.join(COPIES)}")
        if self.narrow.data not in NARROWS:
            raise VerifyException(f"schedule: narrow {self.narrow.data} is none of {', '.join(NARROWS)}")
        if self.row.data not in ROWS:
            raise VerifyException(f"schedule: row {self.row.data} is none of {', '.join(ROWS)}")
        if min(self.stages.data, self.split_k.data, self.group.data) < 1:
            raise VerifyException("schedule: stages, split_k and group are at least 1")
        if self.cluster.data not in CLUSTERS:
            raise VerifyException(f"schedule: clusters of {self.cluster.data} blocks; they have 1, 2, 4 or 8")
        if min(self.persistent.data, self.blocks_per_sm.data) < 0:
            raise VerifyException("schedule: persistent and blocks_per_sm are not negative")
        if any(not 0 <= s.data < len(self.block) for s in self.serial):
            raise VerifyException("schedule: serial names free indices by position")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Any]:
        values: dict[str, Any] = {}

        def entry() -> None:
            key = parser.parse_identifier()
            if key in values or key not in (*_LISTS, *_NUMBERS, *_WORDS):
                parser.raise_error(f"schedule: unknown or repeated decision '{key}'")
            parser.parse_punctuation("=")
            if key in _LISTS:
                values[key] = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
            else:
                values[key] = parser.parse_integer() if key in _NUMBERS else parser.parse_identifier()

        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, entry)
        if "block" not in values:
            parser.raise_error("schedule: 'block' is missing")
        return list(cls.get(**values).parameters)

    def print_parameters(self, printer: Printer) -> None:
        plain = ScheduleAttr.get([]).fields() | {"block": None, "warps": None}
        shown = [f"{k} = {v}" for k, v in self.fields().items() if v != plain[k]]
        printer.print_string(f"<{', '.join(shown)}>")
