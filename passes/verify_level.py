"""`verify-level`: checks that all operations of a program are legal at a level.

A *border* is the set of operations that are legal at a level. Every program inside the border can be lowered by the
passes below that level, and every pass above the level knows which operations it must remove.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, ShapedType
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass

from ..dialects.host import UnboundSizeError, verify_bound_sizes
from ..dialects.payload import element_type, is_low_precision, is_payload
from ..dialects.shapes.extents import ExtentError, extents_of
from ..dialects.support.assembly import LegalAt
from ..dialects.support.locations import location_text
from ..errors import BorderError
from .pass_manager import DominanceError, verify_dominance

PAYLOAD = {"payload", "arith", "math"}
"""Dialects of scalar computation, the same at every level below torch."""

FUNCTIONS = {"func.func", "func.return", "func.call", "builtin.module", "host.bind_size"}

SCALAR_CARRIERS = {"payload.cast", "payload.select", "payload.constant", "arith.constant", "arith.bitcast"}
"""Payload operations that floats narrower than 32 bits may use: moves and conversions. All others compute in f32 or
f64."""


REPLACED = {
    "arith.cmpf": "payload.cmp",
    "arith.cmpi": "payload.cmp",
    "arith.select": "payload.select",
    "arith.remf": "payload.fmod",
    **dict.fromkeys(
        ("arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui"), "payload.cast"
    ),
    **dict.fromkeys(("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast"), "payload.cast"),
}
"""Illegal operation of xDSL -> operation to use instead. The former do not support all of our shaped types."""


@dataclass(frozen=True)
class Border:
    """Legal operations of a level: those of `dialects`, except `REPLACED`, and the operations in `ops`."""

    dialects: Set[str]
    ops: Set[str]

    def allows(self, name: str) -> bool:
        return name in self.ops or (name.split(".", 1)[0] in self.dialects and name not in REPLACED)


_LOOPS = {"scf.for", "scf.yield"}
# A recurrence over tensors is an operation of the host, like a call, from the torch level to the tile level.
_FOLDS = {"tensor.scan"}

BORDERS = {
    "torch": Border({"torch"}, FUNCTIONS | _FOLDS | {"payload.constant", "arith.constant"}),
    "tensor": Border(PAYLOAD | {"tensor"}, FUNCTIONS),
    "loop": Border(PAYLOAD | {"loop"}, FUNCTIONS | _FOLDS | {"tensor.scatter"}),
    "tile": Border(PAYLOAD | {"tile"}, FUNCTIONS | _FOLDS | _LOOPS),
    "kernel": Border(PAYLOAD | {"kernel"}, FUNCTIONS | _LOOPS | {"scf.if"}),
}
"""Level -> its border. `docs/architecture.md` describes the same in words."""

Level = Literal["torch", "tensor", "loop", "tile", "kernel"]


@dataclass(frozen=True)
class VerifyLevelPass(ModulePass):
    """Checks that all operations and types of a program are legal at a level. It changes nothing.

    It also checks that floats narrower than 32 bits are only stored, moved and converted, and that every extent is a
    number or a symbol. Definitions of values and of symbols must dominate their uses. `verify-level{level=loop}` on

    ```mlir
    %1 = tensor.reduce add %0 over [1] : tensor<4x8xf32> -> tensor<4xf32>
    ```

    reports `file:1:1: error: tensor.reduce: not legal at the loop level`.

    **Rationale.** An operation that a lowering forgets would otherwise fail much later, in another pass or in nvcc.

    **Pipeline position.** After the last pass of each level, and before the first pass on a program from a file.

    **Options.** `level`: the level.
    """

    name = "verify-level"

    level: Level

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if errors := tuple(border_violations(op, self.level)):
            errors[0].reason += _advice(op, self.level)
            errors[0].others = errors[1:]
            raise errors[0]


def _advice(module: ModuleOp, level: Level) -> str:
    """Returns advice with the pipelines that lower `module`, if it is at a level below `level`; else an empty text."""
    levels = [*BORDERS]
    for start in levels[levels.index(level) + 1 :]:
        if all(_is_legal(op, start) for op in module.walk()):
            below = levels[levels.index(start) :]
            pipelines = ",".join(f"{a}-to-{b}" for a, b in pairwise(below))
            return f"; the program is at the {start} level" + (f": run {pipelines}" if pipelines else "")
    return ""


def border_violations(module: ModuleOp, level: Level) -> Iterator[BorderError]:
    """Yields an error with its location for every illegal operation or type of a module at `level`."""
    try:
        verify_dominance(module)
        verify_bound_sizes(module)
    except (DominanceError, UnboundSizeError) as error:
        yield BorderError(str(error), operator=error.op.name, location=location_text(error.op))
    for op in module.walk():
        reason = None
        if not _is_legal(op, level):
            instead = f", use {REPLACED[op.name]}" if op.name in REPLACED else ""
            reason = f"not legal at the {level} level{instead}"
        elif level != "torch" and (narrow := _narrow_arithmetic(op)) is not None:
            reason = f"computes in {narrow} at the {level} level; convert to f32 first"
        elif any(_is_nameless(value.type) for value in (*op.operands, *op.results)):
            reason = "an extent known only at run time needs a symbol, #payload.extents<...>"
        if reason is not None:
            yield BorderError(reason, operator=op.name, location=location_text(op))


def _is_legal(op: Operation, level: str) -> bool:
    return BORDERS[level].allows(op.name) or _is_declared_legal(op, level)


def _is_declared_legal(op: Operation, level: str) -> bool:
    declared = op.get_trait(LegalAt)
    return declared is not None and level in declared.levels


def _is_nameless(t: Attribute) -> bool:
    """Returns true if a shaped type has an extent that is neither a number nor a symbol."""
    return isinstance(t, ShapedType) and DYNAMIC_INDEX in t.get_shape() and not _has_symbols(t)


def _has_symbols(t: Attribute) -> bool:
    try:
        extents_of(t)
    except ExtentError:
        return False
    return True


def _narrow_arithmetic(op: Operation) -> Attribute | None:
    if not is_payload(op) or op.name in SCALAR_CARRIERS:
        return None
    return next((element_type(v.type) for v in (*op.operands, *op.results) if is_low_precision(v.type)), None)


def level_of(module: ModuleOp) -> Level:
    """Returns the highest level at which all operations of a module are legal. Raises BorderError if
    there is none."""
    levels: tuple[Level, ...] = ("torch", "tensor", "loop", "tile", "kernel")
    legal: Level | None = next((level for level in levels if not any(border_violations(module, level))), None)
    if legal is None:
        dialects = {op.name.split(".")[0] for op in module.walk()}
        mixed = ", ".join(level for level in levels if level in dialects) or "none"
        raise BorderError(
            f"expected the operations of one level, but got those of: {mixed}; pass level=... to see the first that"
            " is not legal there"
        )
    return legal
