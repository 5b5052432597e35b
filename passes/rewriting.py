"""Rewriting a module: the edits and patterns that passes share, and the passes `cse` and `dce` for any level.

Edits (`insert_before`, `insert_after`, `replace`, `erase`, `retype`) give new ops the location of the op that they are
made for, and new results the name of what they replace.

Patterns are those of xDSL, but not its walker: ops inserted by a pattern inherit the location of the op that was
matched, an error arrives as itself rather than wrapped in a printout of the whole module, and dead ops are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOperation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import Rewriter
from xdsl.traits import IsolatedFromAbove, IsTerminator, MemoryEffectKind, get_effects
from xdsl.transforms.dead_code_elimination import is_trivially_dead

from ..dialects.support.assembly import YieldsOwnOps
from ..dialects.support.equivalence import structure_in_place
from ..dialects.support.locations import blamed, copy_location, fused_location


def block_of(op: Operation) -> Block:
    assert op.parent is not None, op
    return op.parent


def insert_before(anchor: Operation, *ops: Operation, source: Operation | None = None) -> None:
    """Put `ops` in front of `anchor`, with the location of `source`, or of `anchor`."""
    copy_location(source or anchor, ops)
    block_of(anchor).insert_ops_before(ops, anchor)


def insert_after(anchor: Operation, *ops: Operation, source: Operation | None = None) -> None:
    """Put `ops` behind `anchor`, with the location of `source`, or of `anchor`."""
    copy_location(source or anchor, ops)
    block_of(anchor).insert_ops_after(ops, anchor)


def insert_at_start(block: Block, *ops: Operation, source: Operation | None = None) -> None:
    """Put `ops` in front of all others of `block`, which is not empty."""
    assert block.first_op is not None
    insert_before(block.first_op, *ops, source=source)


def replace(op: Operation, *ops: Operation, results: Sequence[SSAValue] | None = None) -> None:
    """Put `ops` in the place of `op`; its uses are those of `results`, or of the results of the last of `ops`."""
    insert_before(op, *ops)
    for old, new in zip(op.results, ops[-1].results if results is None else results, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    erase(op)


def move_before(anchor: Operation, op: Operation) -> None:
    op.detach()
    block_of(anchor).insert_op_before(op, anchor)


def erase(*ops: Operation) -> None:
    """Erase `ops`, whose results nobody uses."""
    for op in ops:
        op.detach()
        op.erase()


def retype(value: SSAValue, type: Attribute) -> None:
    value._type = type  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def rebuilt(
    loop: scf.ForOp, inits: Sequence[SSAValue], lower: SSAValue | None = None, upper: SSAValue | None = None
) -> scf.ForOp:
    """Returns a loop with the body of `loop`, which loses it, that starts with the values `inits`.

    Args:
        loop: The loop.
        inits: The values that the new loop starts with, in the order of the arguments of the body.
        lower: The first value of the counter; that of `loop` by default.
        upper: The end of the counter; that of `loop` by default.
    """
    new = scf.ForOp(lower or loop.lb, upper or loop.ub, loop.step, inits, loop.detach_region(loop.body))
    new.attributes.update(loop.attributes)
    for old, result in zip(loop.results, new.results, strict=False):
        result.name_hint = old.name_hint
    return new


def rewrite_module(module: ModuleOp, patterns: Sequence[RewritePattern]) -> bool:
    """Applies `patterns` to every op of a module, once; the first that acts on an op wins.

    Inserted ops, and what is inside them, get the location of the matched op. Returns true if anything changed.
    """
    changed = False
    for op in [*module.body.walk()]:
        if op.parent is None:  # it was erased with another one
            continue
        rewriter = PatternRewriter(op)
        rewriter.operation_insertion_handler.append(lambda new, op=op: copy_location(op, (new,)))
        with blamed(op):
            for pattern in patterns:
                pattern.match_and_rewrite(op, rewriter)
                if rewriter.has_done_action:
                    break
        changed |= rewriter.has_done_action
    return changed


def set_fields(op: IRDLOperation, **fields: Attribute | SSAValue | Sequence[SSAValue] | None) -> None:
    """Set operands and properties of `op`: an attribute for a property, a value or a sequence of values for an operand;
    None removes an optional one. Everything else stays. Raises ValueError for a name that the operation does not have.
    """
    definition = op.get_irdl_definition()
    names = [name for name, _ in definition.operands]
    if unknown := fields.keys() - {*names, *definition.properties}:
        raise ValueError(f"{op.name} has no operand or property {unknown.pop()!r}")
    groups: list[tuple[SSAValue, ...]] = []
    for name in names:
        value: SSAValue | Sequence[SSAValue] | None = fields.get(name, getattr(op, name))  # pyright: ignore
        groups.append(() if value is None else (value,) if isinstance(value, SSAValue) else tuple(value))
    op.operands = [value for group in groups for value in group]
    if AttrSizedOperandSegments(as_property=True) in definition.options:
        op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [len(g) for g in groups])
    for name in definition.properties.keys() & fields.keys():
        if isinstance(attribute := fields[name], Attribute):
            op.properties[name] = attribute
        else:
            op.properties.pop(name, None)


@dataclass(frozen=True)
class CommonSubexpressionElimination(ModulePass):
    """Replace an op by an earlier one that computes the same from the same values; erase ops that nobody needs.

    What: two ops are equal if their names, attributes, operands, result types and regions are. The earlier one has to
    be in the same block or in one around it. What has side effects stays, as does what an op with the trait
    `YieldsOwnOps` yields (a stage of `loop.staged_reduce`); what only reads memory is equal to an earlier
    op of its block, if nothing in between may write. The op that stays has the locations of both, fused, unless it is a
    constant.
    Why not the pass of xDSL, which decides in the same way: it tells ops with regions apart by comparing them with all
    others that have the same attributes and operands, and nests of loops have neither, so its time grows with the
    square of their number.

    ```mlir
    %a = math.exp %x : f32
    %b = math.exp %x : f32
    %c = arith.addf %a, %b : f32
    ```
    becomes
    ```mlir
    %a = math.exp %x : f32
    %c = arith.addf %a, %a : f32
    ```
    """

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        eliminate_common_subexpressions(op.body)


def eliminate_common_subexpressions(region: Region) -> None:
    """Do that in `region`, as if nothing were around it."""
    _Scope().region(region)


@dataclass
class _Scope:
    """The ops inside an op that is isolated from above; those that are visible at a place, by what they compute."""

    known: dict[object, Operation] = field(default_factory=dict[object, Operation])
    writes: int = 0
    """How often memory may have been written so far."""

    def region(self, region: Region) -> None:
        """Simplify a region of one block, as in MLIR."""
        if len(region.blocks) != 1:
            return
        here: list[object] = []
        for op in tuple(region.block.ops):
            for inner in op.regions:
                scope = _Scope() if op.has_trait(IsolatedFromAbove, value_if_unregistered=True) else self
                scope.region(inner)
            self._op(op, region.block, here)
        for key in here:
            del self.known[key]

    def _op(self, op: Operation, block: Block, here: list[object]) -> None:
        if op.has_trait(IsTerminator):
            return
        if is_trivially_dead(op):
            Rewriter.erase_op(op)
            return
        effects = get_effects(op)
        if effects is None or any(e.kind != MemoryEffectKind.READ for e in effects):
            self.writes += effects is None or any(e.kind == MemoryEffectKind.WRITE for e in effects)
            return
        if any(len(region.blocks) > 1 for region in op.regions):
            return
        computed = structure_in_place(op)
        key = (computed, block, self.writes) if effects else computed
        earlier = self.known.get(key)
        if earlier is None:
            self.known[key] = op
            here.append(key)
            return
        end, around = block.last_op, block.parent_op()
        if end is not None and around is not None and around.has_trait(YieldsOwnOps):
            if any(result in end.operands for result in op.results):
                return
        for result, instead in zip(op.results, earlier.results, strict=True):
            result.replace_all_uses_with(instead)
        if op.operands:  # constants are shared by ops that have nothing to do with each other
            earlier.location = fused_location(earlier.location, op.location)
        Rewriter.erase_op(op)


def erase_unneeded(region: Region) -> None:
    """Erase all operations of `region` that nobody needs, users before what they use."""
    for block in reversed(region.blocks):
        for op in reversed(block.ops):
            if is_trivially_dead(op):
                block.erase_op(op)
            else:
                for inner in op.regions:
                    erase_unneeded(inner)


@dataclass(frozen=True)
class DeadCodeElimination(ModulePass):
    """Erase operations whose results nobody uses and that do nothing else.

    What: one walk from the end of the program to its start, so what only an erased op has used goes as well. What only
    reads memory is erased like what computes; terminators and symbols stay.
    Why not the pass of xDSL, which decides in the same way: it goes over the whole program until nothing changes, and
    asks of every op, whether it is used or not, what effects it has.

    ```mlir
    %a = math.exp %x : f32
    %b = math.sin %a : f32
    func.return %x : f32
    ```
    becomes
    ```mlir
    func.return %x : f32
    ```
    """

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        erase_unneeded(op.body)
