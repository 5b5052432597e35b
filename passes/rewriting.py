"""Edits and patterns that passes share, and the passes `cse` and `dce`, which work at every level.

- Edits such as `insert_before` and `replace` give new operations the location of the operation that they are made for.
  `replace` also copies the names of results.
- `rewrite_module` applies xDSL patterns with a walker of our own. Inserted operations get the location of the matched
  operation, errors do not contain the whole module, and dead operations are not erased.
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
    """Inserts `ops` before `anchor`, with the location of `source` (default: of `anchor`)."""
    copy_location(source or anchor, ops)
    block_of(anchor).insert_ops_before(ops, anchor)


def insert_after(anchor: Operation, *ops: Operation, source: Operation | None = None) -> None:
    """Inserts `ops` after `anchor`, with the location of `source` (default: of `anchor`)."""
    copy_location(source or anchor, ops)
    block_of(anchor).insert_ops_after(ops, anchor)


def insert_at_start(block: Block, *ops: Operation, source: Operation | None = None) -> None:
    """Inserts `ops` at the start of a block, which must not be empty."""
    assert block.first_op is not None
    insert_before(block.first_op, *ops, source=source)


def replace(op: Operation, *ops: Operation, results: Sequence[SSAValue] | None = None) -> None:
    """Replaces `op` by `ops`, and uses of its results by `results` (default: the results of the last of `ops`)."""
    insert_before(op, *ops)
    for old, new in zip(op.results, ops[-1].results if results is None else results, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    erase(op)


def move_before(anchor: Operation, op: Operation) -> None:
    op.detach()
    block_of(anchor).insert_op_before(op, anchor)


def erase(*ops: Operation) -> None:
    """Erases operations whose results have no uses."""
    for op in ops:
        op.detach()
        op.erase()


def retype(value: SSAValue, type: Attribute) -> None:
    value._type = type  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def rebuilt(
    loop: scf.ForOp, inits: Sequence[SSAValue], lower: SSAValue | None = None, upper: SSAValue | None = None
) -> scf.ForOp:
    """Returns a new loop with other initial values, and moves the body of `loop` into it.

    Args:
        loop: the old loop.
        inits: initial values of the loop-carried values, in the order of the arguments of the body.
        lower: lower bound; by default that of `loop`.
        upper: upper bound; by default that of `loop`.
    """
    new = scf.ForOp(lower or loop.lb, upper or loop.ub, loop.step, inits, loop.detach_region(loop.body))
    new.attributes.update(loop.attributes)
    for old, result in zip(loop.results, new.results, strict=False):
        result.name_hint = old.name_hint
    return new


def rewrite_module(module: ModuleOp, patterns: Sequence[RewritePattern]) -> bool:
    """Applies patterns to every operation of a module once, and returns true if anything changed.

    On each operation, the first pattern that changes something ends the list. Inserted operations, with their regions,
    get the location of the matched operation.
    """
    changed = False
    for op in [*module.body.walk()]:
        if op.parent is None:  # A pattern has erased it together with an earlier operation.
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
    """Sets operands and properties of an operation by name. All others stay.

    An attribute sets a property, a value or a sequence of values sets an operand, and None removes an optional operand
    or property. Raises ValueError for an unknown name.
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
    """Replaces operations by earlier equal ones, and erases dead operations.

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

    Two operations are equal if their names, attributes, operands, result types and regions are equal. The earlier one
    must be in the same block or in an enclosing block. Exceptions:

    - An operation with side effects stays.
    - Two operations that only read memory are equal only in the same block, and if nothing may write in between.
    - A value that a stage of `loop.staged_reduce` yields stays in its stage (trait `YieldsOwnOps`).

    The remaining operation gets the fused locations of both, unless it is a constant.

    **Rationale.** The pass of xDSL follows the same rules, but its time grows with the square of the number of loop
    nests: it compares each operation with a region to all others with the same attributes and operands, and nests have
    neither.

    **Pipeline position.** After each group of passes that creates equal operations.
    """

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        eliminate_common_subexpressions(op.body)


def eliminate_common_subexpressions(region: Region) -> None:
    """Applies `cse` to a region. Values from outside of the region are not candidates."""
    _Scope().region(region)


@dataclass
class _Scope:
    """State of `cse` inside of an operation that is isolated from above."""

    visible: dict[object, Operation] = field(default_factory=dict[object, Operation])
    """Structure of an operation -> the operation, for those in this block and in enclosing blocks."""
    writes: int = 0
    """Number of operations so far that may write memory."""

    def region(self, region: Region) -> None:
        """Simplifies a region. Regions with several blocks stay as they are."""
        if len(region.blocks) != 1:
            return
        keys: list[object] = []
        for op in tuple(region.block.ops):
            for inner in op.regions:
                scope = _Scope() if op.has_trait(IsolatedFromAbove, value_if_unregistered=True) else self
                scope.region(inner)
            self._op(op, region.block, keys)
        for key in keys:
            del self.visible[key]

    def _op(self, op: Operation, block: Block, keys: list[object]) -> None:
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
        earlier = self.visible.get(key)
        if earlier is None:
            self.visible[key] = op
            keys.append(key)
            return
        end, parent = block.last_op, block.parent_op()
        if end is not None and parent is not None and parent.has_trait(YieldsOwnOps):
            if any(result in end.operands for result in op.results):
                return
        for result, instead in zip(op.results, earlier.results, strict=True):
            result.replace_all_uses_with(instead)
        # Unrelated operations share constants, so a constant keeps its own location.
        if op.operands:
            earlier.location = fused_location(earlier.location, op.location)
        Rewriter.erase_op(op)


def erase_unneeded(region: Region) -> None:
    """Erases all dead operations of a region, users before the operations that they use."""
    for block in reversed(region.blocks):
        for op in reversed(block.ops):
            if is_trivially_dead(op):
                block.erase_op(op)
            else:
                for inner in op.regions:
                    erase_unneeded(inner)


@dataclass(frozen=True)
class DeadCodeElimination(ModulePass):
    """Erases operations without side effects whose results have no uses.

    ```mlir
    %a = math.exp %x : f32
    %b = math.sin %a : f32
    func.return %x : f32
    ```
    becomes
    ```mlir
    func.return %x : f32
    ```

    One walk from the end of the program to its start erases chains of dead operations too. Operations that only read
    memory are erased. Terminators and symbols stay.

    **Rationale.** The pass of xDSL follows the same rules, but walks the whole program until nothing changes, and
    computes the side effects of every operation, used or not.

    **Pipeline position.** After passes that leave dead operations.
    """

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        erase_unneeded(op.body)
