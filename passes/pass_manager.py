"""Running passes one after another with observers in between, passes on single nests and kernels, and remarks.

Both `dl-opt` and `deplodock` run passes through here, so both verify, compare and report in the same way.

A pass that leaves something as it was says why in a remark (`emit_remark`). Remarks are collected inside of
`collect_remarks`, and cost one context-variable look-up otherwise.
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
    """Looks at the module around every pass. The base class does nothing; override what is needed."""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Called before `module_pass` runs on `module`."""

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Called after `module_pass` has run on `module` and the result has been verified."""

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        """Called in place of `before` and `after` if `module` lacks what `module_pass` needs; `why` names it."""

    def finish(self, module: ModuleOp) -> None:
        """Called once after the last pass."""


def words_of(module: ModuleOp) -> Counter[str]:
    """Returns how often each word occurs in `module`; the `needs` of passes are such words: the operations of a name,
    `loop.nest`, and with a property or an attribute, `loop.load{domain}`; the results and block arguments of an element
    type, `f8E5M2`; decisions of schedules that differ from the plainest, `split_k` and `copy=tma`."""
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
    """Returns the first word of `needs` that occurs too seldom; `a|b` counts either. Empty if there is none."""
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
    """Applies `passes` to `module` in place, with `observers` around each.

    Args:
        verify: If true, the module is verified after each pass that changed it; raises InvalidIRError.
        skip: If true, a pass is skipped where the module lacks its `needs`: words (`words_of`) with their numbers.
    """
    verified: list[tuple[object, ...]] | None = None
    words: Counter[str] | None = None
    for module_pass in passes if listener.get() is None else _told(passes):
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


def _told(passes: Sequence[ModulePass]) -> Iterator[ModulePass]:
    """Yields the passes, and tells the listener of `progress` which one is running."""
    with steps("pass", len(passes), "passes") as step:
        for number, module_pass in enumerate(passes):
            step(1 if number else 0, module_pass.name)
            yield module_pass


def contents_of(module: ModuleOp) -> list[tuple[object, ...]]:
    """All that verifiers look at, held by reference: equal if nothing has changed."""
    return [
        (
            *(op, op.parent, [*op.operands], [result.type for result in op.results], [*op.successors]),
            *({**op.properties}, {**op.attributes}),
            [(block, [arg.type for arg in block.args]) for region in op.regions for block in region.blocks],
        )
        for op in module.walk()
    ]


def verify_module(module: ModuleOp) -> None:
    """Run all verifiers and the dominance check; raises InvalidIRError naming the first op at fault."""
    try:
        verify_dominance(module)
        module.verify()
    except VerifyException as error:
        op = error.op if isinstance(error, DominanceError) else _first_invalid(module)
        error.__notes__ = []  # the whole module in text, added upstream
        reason = (one_line(str(error)) or type(error).__name__).removeprefix("Operation does not verify: ")
        raise InvalidIRError(reason, operator=op.name, location=location_text(op)) from None


def _first_invalid(module: ModuleOp) -> Operation:
    """The first op that does not verify by itself, innermost first: an outer op may only be wrong because of it."""
    for op in module.walk(region_first=True):
        try:
            op.verify(verify_nested_ops=False)
        except VerifyException:
            return op
    return module


class PrintChanges(Observer):
    """After each pass that changed the text of the module, print a diff that tools can cut out.

    ```
    >>> t:fuse-nests
    -  %1 = arith.addf ...
    <<< t:fuse-nests
    2 passes, 1 changed
    ```
    What stays keeps its number or name, and lines that only moved to the right or left are no change.
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
    """A unified diff without the names of files, in which indentation does not count."""
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
    """A use that its definition does not dominate; `op` is the user."""

    def __init__(self, op: Operation, index: int) -> None:
        name = op.operands[index].name_hint
        value = f" (%{name})" if name else ""
        super().__init__(f"operand #{index}{value} is used before it is defined, or outside its region")
        self.op = op


def verify_dominance(root: Operation, scope: tuple[set[SSAValue], ...] = ()) -> None:
    """Checks that an earlier op, or a block argument, defines each operand inside `root` where the operand can see it;
    raises `DominanceError` at the first bad use. Blocks are taken in their textual order, which is exact for regions of
    one block."""
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
    """Runs `on` every operation of the class `anchor` that stands in a module.

    A pass that carries out a `decision` of schedules names the field, and then, if it is for some of its values only,
    these: `("copy", "tma")`. Without values it is for all but the plainest. What is decided otherwise, or has no
    schedule, it does not see; nor what holds no operation of the class `inside`, which the pass is about. `needs` of
    the pass manager follow from the three; a class may name more.
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
        """Rewrite one of them."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        anchors = [o for o in self.among(op) if isinstance(o, self.anchor)]
        for found in [o for o in anchors if self._is_decided(o)] if self.decision else anchors:
            if any(isinstance(o, self.inside) for o in found.walk()):
                with blamed(found):
                    self.on(found)  # pyright: ignore[reportArgumentType]

    def among(self, module: ModuleOp) -> Iterable[Operation]:
        """The operations of which some are anchors."""
        return module.ops

    def _is_decided(self, op: Operation) -> bool:
        (name, *values), schedule = self.decision, op.attributes.get("schedule")
        value = getattr(schedule.data, name) if isinstance(schedule, ScheduleAttr) else PLAIN[name]
        return value in values if values else value != PLAIN[name]

    def decline(self, op: Operation, why: str | None) -> None:
        """Remark why `op` stays as it was, if there is a reason."""
        if why is not None:
            emit_remark(op, self.name, why)


class NestPass(AnchoredPass[loop.NestOp]):
    """A pass on the nests of the loop level, in functions or by themselves."""

    anchor = loop.NestOp

    def among(self, module: ModuleOp) -> Iterable[Operation]:
        return module.walk()


class TilePass(AnchoredPass[tile.KernelOp]):
    anchor = tile.KernelOp


class FuncPass(AnchoredPass[kernel.FuncOp]):
    anchor = kernel.FuncOp


@dataclass(frozen=True)
class Remark:
    """`pass_name` left `operator`, written at `location` (`file:line[:col]`), alone because of `why`."""

    pass_name: str
    operator: str
    why: str
    location: str | None

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}remark: [{self.pass_name}] {self.operator}: {self.why}"


_listener: ContextVar[list[Remark] | None] = ContextVar("deplodock_remarks", default=None)


def emit_remark(op: Operation, pass_name: str, why: str) -> None:
    """Record that pass `pass_name` declined to act on `op`; `why` is one line without a full stop at its end.

    The same remark about the same place is recorded once.
    """
    remarks = _listener.get()
    if remarks is None:
        return
    remark = Remark(pass_name, op.name, " ".join(why.split()), location_text(op))
    if remark not in remarks:
        remarks.append(remark)


@contextmanager
def collect_remarks() -> Generator[list[Remark]]:
    """Collect the remarks emitted inside the `with` block, in order."""
    remarks: list[Remark] = []
    token = _listener.set(remarks)
    try:
        yield remarks
    finally:
        _listener.reset(token)
