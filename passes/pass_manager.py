"""The pass manager of `dl-opt` and `deplodock`, base classes of passes, and remarks.

- `run_passes` runs passes in order, verifies the module, and calls observers before and after each pass.
- `NestPass`, `TilePass` and `FuncPass` are base classes of passes on single nests and kernels.
- A *remark* is a line in which a pass says why it left an operation unchanged (`emit_remark`). `collect_remarks`
  collects them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar, Generic, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException

from ..dialects import kernel, loop, tile
from ..dialects.host import UnboundSizeError, verify_bound_sizes
from ..dialects.payload import element_type
from ..dialects.support.locations import blamed, location_text
from ..dialects.support.parsing import one_line
from ..dialects.support.printing import Names, print_module
from ..dialects.tile.schedule import PLAIN, ScheduleAttr
from ..errors import CompileError
from ..progress import listener, steps


class InvalidIRError(CompileError):
    """IR that a verifier refuses."""


class Observer:
    """Base class of objects that inspect the module before and after every pass. Its methods do nothing."""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Called before `module_pass` runs on `module`."""

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Called after `module_pass` has run on `module` and the result has been verified."""

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        """Called instead of `before` and `after` if a pass has nothing to do.

        Args:
            module_pass: the pass.
            why: what the module lacks, such as "no tile.dot".
            module: the module.
        """

    def finish(self, module: ModuleOp) -> None:
        """Called once after the last pass."""


def words_of(module: ModuleOp) -> Counter[str]:
    """Counts the features of a module that passes may need (`needs` of a pass).

    - `loop.nest`: operations of this name; `loop.load{domain}`: those with this property or attribute
    - `f8E5M2`: results and block arguments of this element type
    - `split_k`, `copy=tma`: schedules whose decision `split_k` differs from the default, or whose `copy` is `tma`
    """
    kinds, words = Counter[tuple[str, ...]](), Counter[str]()
    for op in module.walk():
        kinds[op.name, *op.properties, *op.attributes] += 1
        for value in (*op.results, *(a for region in op.regions for block in region.blocks for a in block.args)):
            words[element_type(value.type).name] += 1
        if isinstance(schedule := op.attributes.get("schedule"), ScheduleAttr):
            for name, value in vars(schedule.data).items():
                if value != PLAIN[name]:
                    words.update((name, f"{name}={value}"))
    for (name, *keys), count in kinds.items():
        for word in (name, *(f"{name}{{{key}}}" for key in keys)):
            words[word] += count
    return words


def lacking(needs: Mapping[str, int], words: Mapping[str, int]) -> str:
    """Returns a message for the first unmet need, or an empty text. `a|b` counts occurrences of `a` and of `b`.

    `needs`: word -> least number of occurrences. `words`: the occurrences (`words_of`).
    """
    for word, count in needs.items():
        if sum(words.get(part, 0) for part in word.split("|")) < count:
            return f"no {word.replace('|', ' or ')}" if count == 1 else f"fewer than {count} {word}"
    return ""


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    observers: Sequence[Observer] = (),
    *,
    verify: bool = True,
    skip: bool = True,
) -> None:
    """Applies passes to a module in place.

    Args:
        ctx: context with the registered dialects.
        module: the module.
        passes: the passes, in order.
        observers: objects whose methods are called before and after each pass.
        verify: whether to verify the module after each pass that changed it.
        skip: whether to skip a pass if the module does not meet its `needs` (`words_of`).

    Raises:
        InvalidIRError: the module does not verify after a pass.
        CompileError: a pass refuses the module.
    """
    verified: list[tuple[object, ...]] | None = None
    words: Counter[str] | None = None
    for module_pass in passes if listener.get() is None else _with_progress(passes):
        if skip and (needs := getattr(module_pass, "needs", None)):
            words = words or words_of(module)
            if why := lacking(needs, words):
                for observer in observers:
                    observer.skipped(module_pass, why, module)
                continue
        for observer in observers:
            observer.before(module_pass, module)
        module_pass.apply(ctx, module)
        if not verify:
            words = None
        elif (contents := contents_of(module)) != verified:
            verify_module(module)
            verified, words = contents, None
        for observer in observers:
            observer.after(module_pass, module)
    for observer in observers:
        observer.finish(module)


def _with_progress(passes: Sequence[ModulePass]) -> Iterator[ModulePass]:
    """Yields the passes and reports each to the progress listener."""
    with steps("pass", len(passes), "passes") as step:
        for number, module_pass in enumerate(passes):
            step(1 if number else 0, module_pass.name)
            yield module_pass


def contents_of(module: ModuleOp) -> list[tuple[object, ...]]:
    """Returns everything that verifiers read, by reference. Two equal results show that a pass changed nothing."""
    return [
        (
            *(op, op.parent, [*op.operands], [result.type for result in op.results], [*op.successors]),
            *({**op.properties}, {**op.attributes}),
            [(block, [arg.type for arg in block.args]) for region in op.regions for block in region.blocks],
        )
        for op in module.walk()
    ]


def verify_module(module: ModuleOp) -> None:
    """Runs all verifiers and the dominance check. Raises InvalidIRError with the first faulty operation."""
    try:
        verify_dominance(module)
        module.verify()
        verify_bound_sizes(module)
    except VerifyException as error:
        op = error.op if isinstance(error, DominanceError | UnboundSizeError) else _first_invalid(module)
        error.__notes__ = []  # xDSL adds the text of the whole module.
        reason = (one_line(str(error)) or type(error).__name__).removeprefix("Operation does not verify: ")
        if reason.endswith("but is not a terminator"):
            reason = _missing_terminator(op)
        raise InvalidIRError(reason, operator=op.name, location=location_text(op)) from None


def _missing_terminator(op: Operation) -> str:
    """Returns a sentence about the last operation of a region that must end with another one."""
    parent = op.parent_op()
    if parent is None:
        return "expected a region to end with a terminator"
    dialect = parent.name.partition(".")[0]
    terminator = "func.return" if dialect == "func" else f"{dialect}.yield"
    return f"expected the region of {parent.name} to end with {terminator}, but this is its last operation"


def _first_invalid(module: ModuleOp) -> Operation:
    """Returns the first operation that does not verify, inner ones first, because they may be the cause of outer
    ones."""
    for op in module.walk(region_first=True):
        try:
            op.verify(verify_nested_ops=False)
        except VerifyException:
            return op
    return module


class PrintChanges(Observer):
    """Observer that prints a diff after each pass that changed the text of the module.

    ```
    >>> t:fuse-nests
    -  %1 = arith.addf ...
    <<< t:fuse-nests
    2 passes, 1 changed
    ```
    Unchanged values keep their numbers or names in the text. Changes of indentation alone are ignored.
    """

    def __init__(self, write: Callable[[str], object], context_lines: int = 3) -> None:
        self.write, self.context_lines = write, context_lines
        self.passes = self.changed = 0
        self._text: str | None = None
        self._names = Names()

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if self._text is None:
            self._text = print_module(module, names=self._names)

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.passes += 1
        old, new = self._text or "", print_module(module, names=self._names)
        self._text = new
        if old == new:
            return
        self.changed += 1
        body = "\n".join(diff_lines(old.splitlines(), new.splitlines(), self.context_lines))
        self.write(f">>> t:{module_pass.name}\n{body}\n<<< t:{module_pass.name}\n")

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        self.passes += 1

    def finish(self, module: ModuleOp) -> None:
        self.write(f"{self.passes} passes, {self.changed} changed\n")
        self._text = None


def diff_lines(old: Sequence[str], new: Sequence[str], context: int) -> Iterator[str]:
    """Yields the lines of a unified diff without file names. Indentation is not compared.

    Args:
        old: lines before.
        new: lines after.
        context: unchanged lines before and after each change.
    """
    matcher = SequenceMatcher(None, [line.lstrip() for line in old], [line.lstrip() for line in new])
    for group in matcher.get_grouped_opcodes(context):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        yield f"@@ -{i + 1},{i_end - i} +{j + 1},{j_end - j} @@"
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (f" {line}" for line in new[j1:j2])
            else:
                yield from (f"-{line}" for line in old[i1:i2])
                yield from (f"+{line}" for line in new[j1:j2])


class DominanceError(VerifyException):
    """A use of a value that its definition does not dominate. `op`: the operation that uses the value."""

    def __init__(self, op: Operation, index: int) -> None:
        name = op.operands[index].name_hint
        value = f" (%{name})" if name else ""
        super().__init__(f"operand #{index}{value} is used before it is defined, or outside its region")
        self.op = op


def verify_dominance(root: Operation, scope: tuple[set[SSAValue], ...] = ()) -> None:
    """Checks that each operand inside `root` is a block argument or a result of an earlier operation in scope.

    Raises DominanceError for the first violation. The check follows the textual order of blocks, which is exact for
    regions of one block. `scope`: the values that are visible at `root`, one set for each enclosing block.
    """
    scope = () if root.has_trait(IsolatedFromAbove, value_if_unregistered=False) else scope
    for block in (block for region in root.regions for block in region.blocks):
        seen: set[SSAValue] = set(block.args)
        inner = (*scope, seen)
        for op in block.ops:
            for index, operand in enumerate(op.operands):
                if not any(operand in values for values in inner):
                    raise DominanceError(op, index)
            if op.regions:
                verify_dominance(op, inner)
            seen.update(op.results)


Anchor = TypeVar("Anchor", bound=Operation)


class AnchoredPass(ModulePass, Generic[Anchor]):
    """Base class of passes that rewrite the operations of one class in a module, one at a time.

    Attributes:
        anchor: class of the operations that `on` rewrites.
        inside: the pass ignores anchors without an operation of this class.
        decision: the schedule's field that the pass carries out, then the values that it carries out:
            `("copy", "tma")`. Without values the pass carries out all values except the default. It ignores anchors
            with other values.
        needs: further words (`words_of`) that a module must contain, with their number. The base class adds those of
            the three other attributes.
    """

    anchor: ClassVar[type[Operation]]
    inside: ClassVar[type[Operation]] = Operation
    decision: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Mapping[str, int]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "anchor"):
            return
        name, values = cls.decision[:1], cls.decision[1:]
        chosen = [f"{cls.decision[0]}={value}" for value in values] or [*name]
        words = [cls.anchor.name, *(() if cls.inside is Operation else (cls.inside.name,))]
        if chosen and PLAIN[cls.decision[0]] not in values:
            words.append("|".join(chosen))
        cls.needs = {**dict.fromkeys(words, 1), **cls.__dict__.get("needs", {})}

    @abstractmethod
    def on(self, op: Anchor) -> None:
        """Rewrites one operation of the class `anchor`."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        anchors = [o for o in self.among(op) if isinstance(o, self.anchor)]
        for anchor in [o for o in anchors if self._is_decided(o)] if self.decision else anchors:
            if any(isinstance(o, self.inside) for o in anchor.walk()):
                with blamed(anchor):
                    self.on(anchor)  # pyright: ignore[reportArgumentType]

    def among(self, module: ModuleOp) -> Iterable[Operation]:
        """Returns the operations in which anchors are searched."""
        return module.ops

    def _is_decided(self, op: Operation) -> bool:
        (name, *values), schedule = self.decision, op.attributes.get("schedule")
        value = getattr(schedule.data, name) if isinstance(schedule, ScheduleAttr) else PLAIN[name]
        return value in values if values else value != PLAIN[name]

    def decline(self, op: Operation, why: str | None) -> None:
        """Emits a remark that `op` stays unchanged, unless `why` is None."""
        if why is not None:
            emit_remark(op, self.name, why)


class NestPass(AnchoredPass[loop.NestOp]):
    """Base class of passes on the nests of the loop level, inside of functions or directly in a module."""

    anchor = loop.NestOp

    def among(self, module: ModuleOp) -> Iterable[Operation]:
        return module.walk()


class TilePass(AnchoredPass[tile.KernelOp]):
    anchor = tile.KernelOp


class FuncPass(AnchoredPass[kernel.FuncOp]):
    anchor = kernel.FuncOp


@dataclass(frozen=True)
class Remark:
    """Reason `why` the pass `pass_name` left an operation unchanged.

    `operator`: name of the operation. `location`: the user's line (`file:line[:col]`), if known.
    """

    pass_name: str
    operator: str
    why: str
    location: str | None

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}remark: [{self.pass_name}] {self.operator}: {self.why}"


_listener: ContextVar[list[Remark] | None] = ContextVar("deplodock_remarks", default=None)


def emit_remark(op: Operation, pass_name: str, why: str) -> None:
    """Records a remark, if `collect_remarks` is active. Equal remarks are recorded once.

    Args:
        op: the operation that stays unchanged.
        pass_name: name of the pass.
        why: the reason, in one line without a full stop.
    """
    remarks = _listener.get()
    if remarks is None:
        return
    remark = Remark(pass_name, op.name, " ".join(why.split()), location_text(op))
    if remark not in remarks:
        remarks.append(remark)


def remarks_so_far() -> Sequence[Remark]:
    """Returns the remarks that the innermost active `collect_remarks` has collected."""
    return tuple(_listener.get() or ())


@contextmanager
def collect_remarks() -> Generator[list[Remark]]:
    """Collects the remarks that are emitted inside the `with` block, in order."""
    remarks: list[Remark] = []
    token = _listener.set(remarks)
    try:
        yield remarks
    finally:
        _listener.reset(token)
