"""Printing of IR text, with aliases for long attributes.

```
#layout = #tile.layout<reg = [[0, 1]], lane = [[0, 2], ...], warp = []>
builtin.module { ... tensor<16x64xf32, #layout> ... }
```

`#acc` is the layout of accumulators of dots, `#swz` a swizzled shared layout. With a `width`, the text also has aliases
for long types and for schedules (`!t0`, `#schedule`), and wide lines are continued. Locations follow the module, as in
MLIR: `arith.addf %a, %b : f32 loc(#loc2)`.

Attributes of the module record its origin: version, target, source and options of the compiler. They survive parsing,
passes and printing, and become a comment in CUDA. They contain no date and no absolute path, so the same program has
the same text everywhere.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import accumulate, count

from xdsl.dialects.builtin import (
    CallSiteLoc,
    FileLineColLoc,
    FunctionType,
    FusedLoc,
    ModuleOp,
    NameLoc,
    TensorType,
    UnknownLoc,
)
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue, TypeAttribute
from xdsl.printer import Printer

from ...target.attribute import TargetAttr
from ..layouts import LayoutAttr, SharedAttr, bases_of
from ..shapes.extents import SymbolAttr
from .locations import inner_locations, origin_of

WIDTH = 120
"""Columns of a line in text for people."""

LONG_TYPE = 40
"""Maximum number of characters of a type without an alias, in text with a width."""

CONTINUATION = 4
"""Columns by which a continued line is indented."""


class Names:
    """Value numbers and attribute aliases that stay the same from one printing to the next.

    So a diff of two texts shows changes of the program only. A new value without a name gets a number above those in
    use in its function. An attribute keeps its alias.

    numbers: value -> number.
    aliases: attribute -> alias.
    sums: layouts of accumulators of dots, which get the alias `#acc`.
    inline: attributes that are known to have no alias.
    """

    def __init__(self) -> None:
        self.numbers: dict[SSAValue, int] = {}
        self.aliases: dict[Attribute, str] = {}
        self.sums = set[Attribute]()
        self.inline = set[Attribute]()
        # Value -> next free number in its function or kernel.
        self._next: dict[SSAValue, int] = {}

    def update(self, module: ModuleOp) -> None:
        """Assigns numbers to the values of `module`."""
        numbers: dict[SSAValue, int] = {}
        following: dict[SSAValue, int] = {}
        for op in module.body.block.ops:
            values = [v for v in _values(op) if not v.name_hint]
            free = count(max((self._next[v] for v in values if v in self._next), default=0))
            numbers.update((v, self.numbers[v] if v in self.numbers else next(free)) for v in values)
            following.update(dict.fromkeys(values, next(free)))
        self.numbers, self._next = numbers, following

    def alias(self, attribute: Attribute, long: Callable[[Attribute], bool] | None = None) -> str | None:
        """Returns the alias of an attribute, or None if it has none.

        Args:
            attribute: an attribute or a type.
            long: predicate of types that need an alias; without it, types and schedules have none.
        """
        if attribute in self.aliases or attribute in self.inline:
            return self.aliases.get(attribute)
        stem = self._stem(attribute)
        if stem is None and long is not None:
            if isinstance(attribute, TypeAttribute) and not isinstance(attribute, FunctionType):
                stem = "!t" if long(attribute) else None
            elif attribute.name == "tile.schedule":
                stem = "#schedule"
        if stem is None:
            self.inline.add(attribute)
            return None
        used_names, first = set(self.aliases.values()), "0" if stem == "!t" else ""
        self.aliases[attribute] = next(n for i in count() if (n := f"{stem}{i or first}") not in used_names)
        return self.aliases[attribute]

    def _stem(self, attribute: Attribute) -> str | None:
        """Returns the beginning of an attribute's alias, or None if it has none."""
        if isinstance(attribute, SymbolAttr):
            return f"#{attribute.hint}"
        if isinstance(attribute, LayoutAttr):
            return "#acc" if attribute in self.sums else "#layout"
        if isinstance(attribute, TargetAttr):
            return None if attribute.is_record else "#target"
        if isinstance(attribute, SharedAttr):
            return "#swz" if any(sum(map(bool, c)) > 1 for c in bases_of(attribute.offset)) else "#shared"
        return None


def _values(op: Operation) -> Iterator[SSAValue]:
    """Yields the values that `op` and its regions define, in the order of printing."""
    yield from op.results
    for region in op.regions:
        for block in region.blocks:
            yield from block.args
            for inner in block.ops:
                yield from _values(inner)


_LOCATIONS = (FileLineColLoc, NameLoc, FusedLoc, CallSiteLoc)
"""Classes of locations that have aliases: all except the unknown location."""


class _AliasPrinter(Printer):
    """Printer that uses aliases of attributes and locations, and records the used ones.

    positions: offset in the text -> the operation whose text starts there, again after each operation in its regions.
    long: whether long types have aliases too.
    """

    def __init__(
        self, out: StringIO, names: Names, long: bool = False, generic: bool = False, debuginfo: bool = False
    ) -> None:
        super().__init__(out, print_generic_format=generic, print_debuginfo=debuginfo)
        self.out, self.names, self.long = out, names, long
        self.positions: list[tuple[int, Operation | None]] = []
        self.used: set[Attribute] = set()
        self.locations: dict[Attribute, str] = {}

    def print_op(self, op: Operation) -> None:
        parent = self.positions[-1][1] if self.positions else None
        self.positions.append((self.out.tell(), op))
        super().print_op(op)
        self.positions.append((self.out.tell(), parent))

    def print_ssa_value(self, value: SSAValue) -> str:
        if value in self.names.numbers:
            self._ssa_values[value] = str(self.names.numbers[value])
        return super().print_ssa_value(value)

    def print_block_argument(self, arg: BlockArgument, print_type: bool = True) -> None:
        """Prints a block argument without `loc(unknown)`, which the parsers of our ops do not accept."""
        debuginfo = self.print_debuginfo
        self.print_debuginfo = debuginfo and not isinstance(arg.location, UnknownLoc)
        super().print_block_argument(arg, print_type)
        self.print_debuginfo = debuginfo

    def print_attribute(self, attribute: Attribute) -> None:
        attribute = origin_of(attribute)
        if isinstance(attribute, _LOCATIONS):
            with self.in_location():
                return self.print_string(self._location(attribute))
        alias = self.names.alias(attribute, (lambda t: len(self.definition(t)[0]) > LONG_TYPE) if self.long else None)
        if alias is None:
            return super().print_attribute(attribute)
        self.used.add(attribute)
        self.print_string(alias)

    def _location(self, attribute: Attribute) -> str:
        """Returns the alias of a location, and defines the locations inside it before."""
        attribute = origin_of(attribute)
        if not isinstance(attribute, _LOCATIONS):
            return str(attribute).removeprefix("loc(").removesuffix(")")
        if attribute not in self.locations:
            for location in inner_locations(attribute):
                self._location(location)
            self.locations[attribute] = f"#loc{len(self.locations) or ''}"
        return self.locations[attribute]

    def definition(self, attribute: Attribute) -> tuple[str, set[Attribute]]:
        """Returns the text of an attribute with an alias, and the attributes whose aliases the text uses."""
        out = StringIO()
        printer = _AliasPrinter(out, self.names, self.long)
        Printer.print_attribute(printer, attribute)
        return out.getvalue(), printer.used

    def definitions(self) -> Iterator[str]:
        """Yields the lines that define the used aliases, inner attributes first."""
        defined = set[Attribute]()

        def define(attribute: Attribute) -> Iterator[str]:
            text, inner = self.definition(attribute)
            for other in self.names.aliases:
                if other in inner and other not in defined:
                    yield from define(other)
            defined.add(attribute)
            yield f"{self.names.aliases[attribute]} = {text}\n"

        for attribute in list(self.names.aliases):
            # Aliases that are not used here belong to an earlier text.
            if attribute in self.used and attribute not in defined:
                yield from define(attribute)

    def location_definitions(self) -> Iterator[str]:
        """Yields the lines that define the aliases of locations."""
        for attribute, name in self.locations.items():
            out = StringIO()
            printer = _AliasPrinter(out, self.names)
            printer.locations = self.locations
            Printer.print_attribute(printer, attribute)
            yield f"{name} = {out.getvalue()}\n"


def _sums(module: ModuleOp) -> set[Attribute]:
    types = [op.results[0].type for op in module.walk() if op.name in ("tile.dot", "tile.dot_wait")]
    return {t.encoding for t in types if isinstance(t, TensorType)}


def value_names(function: Operation) -> dict[str, SSAValue]:
    """Returns printed name (`%0`, `%x`) -> value of a function, as `print_module` prints them."""
    printer = Printer(StringIO())
    return {f"%{printer.print_ssa_value(value)}": value for value in _values(function)}


Owners = tuple[Operation, ...]
"""The operations that a line of text prints; none for definitions of aliases, locations and helpers."""


@dataclass(frozen=True)
class PrintedText:
    """Text of a module, with the operations of each line.

    Attributes:
        text: the text, ending in a newline.
        owners: the operations of each line. Lines after the last one with operations may be missing.
    """

    text: str
    owners: tuple[Owners, ...]

    def followed_by(self, text: str) -> PrintedText:
        """Returns this text with `text` after it."""
        return PrintedText(self.text + text, self.owners)

    def preceded_by(self, text: str) -> PrintedText:
        """Returns this text with `text` before it, which ends in a newline."""
        return PrintedText(text + self.text, (*[()] * text.count("\n"), *self.owners))


def print_module(
    module: ModuleOp,
    *,
    debuginfo: bool = False,
    generic: bool = False,
    names: Names | None = None,
    width: int | None = None,
) -> str:
    """Returns the text of a module, ending in a newline.

    Args:
        module: the module.
        debuginfo: whether to print the locations of ops.
        generic: whether to print ops in the generic format.
        names: numbers and aliases of an earlier printing to keep, or None.
        width: columns of a line, or None. With a width, long types and schedules have aliases and wide lines are
            continued.
    """
    _, parts = _printed(module, debuginfo, generic, names, width)
    text = "".join(parts)
    if width is None:
        return text
    return "".join(f"{part}\n" for line in text.splitlines() for part in _continued(line, width))


def print_with_owners(module: ModuleOp, *, debuginfo: bool = False, width: int) -> PrintedText:
    """Returns the text that `print_module` returns. A line belongs to the innermost operation that it prints.

    Args:
        module: the module.
        debuginfo: whether to print the locations of ops.
        width: columns of a line.
    """
    printer, (before, text, after) = _printed(module, debuginfo, False, None, width)
    starts = [position for position, _ in printer.positions]
    lines, owners = list[str](), list[Owners]()

    def add(line: str, owner: Operation | None) -> None:
        parts = [*_continued(line, width)]
        lines.extend(parts)
        owners.extend([() if owner is None else (owner,)] * len(parts))

    for line in before.splitlines():
        add(line, None)
    raw = text.splitlines()
    for start, line in zip(accumulate((len(line) + 1 for line in raw), initial=0), raw, strict=False):
        # An operation may start before or after its indentation. So the first character of a line decides.
        first = start + len(line) - len(line.lstrip())
        add(line, printer.positions[bisect_right(starts, first) - 1][1])
    for line in after.splitlines():
        add(line, None)
    return PrintedText("".join(f"{line}\n" for line in lines), tuple(owners))


def _printed(
    module: ModuleOp, debuginfo: bool, generic: bool, names: Names | None, width: int | None
) -> tuple[_AliasPrinter, tuple[str, str, str]]:
    """Returns the printer of a module, and definitions of aliases, text and definitions of locations. Arguments as for
    `print_module`."""
    out = StringIO()
    if names is not None:
        names.update(module)
    printer = _AliasPrinter(out, names or Names(), width is not None, generic, debuginfo)
    printer.names.sums.update(_sums(module))
    printer.print_op(module)
    parts = "".join(printer.definitions()), out.getvalue() + "\n", "".join(printer.location_definitions())
    return printer, parts


def _continued(line: str, width: int) -> Iterator[str]:
    """Yields a wide line of IR as several lines."""
    return wrapped(line, width, breaks=_BREAKS, least=3 * CONTINUATION)


_BREAKS = (
    r" (?=attributes \{)",
    r" (?=iter_args\()",
    r" (?=: )",
    r" (?=blocks \(|grid \[)",
    r" (?=where )",
    r"(?<=,) (?=[%!a-z])",
    r" (?=-> )",
    r"(?<=,) ",
    r" ",
)
"""Regular expressions of the spaces at which a wide line may be broken, the best first."""


LOOKAHEAD = 16
"""Number of characters after a break that a pattern of `_BREAKS` may look at."""


def wrapped(
    line: str, width: int, sign: str = "", hanging: int = CONTINUATION, breaks: Sequence[str] = (" ",), least: int = 0
) -> Iterator[str]:
    """Yields `line` as lines of at most `width` columns, broken at spaces outside of strings where possible.

    Args:
        line: the line.
        width: columns.
        sign: prefix of the line, such as the `+` of a diff, to repeat on further lines.
        hanging: columns by which further lines are indented more.
        breaks: regular expressions of the spaces, the best first.
        least: minimum length of the text of a line before a break, without indentation.
    """
    start = len(line) - len(line.removeprefix(sign).lstrip())
    indent = sign + " " * (start - len(sign) + hanging)
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', lambda string: "_" * len(string[0]), line) if len(line) > width else line
    while len(line) > width:
        # Lists of layouts have 100,000 characters, so only the part that a break can depend on is searched.
        head, legal = plain[: width + LOOKAHEAD], range(max(len(indent), start + least) + 1, width + 1)
        ends = (max((m.start() for m in re.finditer(b, head) if m.start() in legal), default=0) for b in breaks)
        end = next(filter(None, ends), 0) or plain.find(" ", width)
        if end < 0:
            break
        yield line[:end].rstrip()
        remainder = line[end:].lstrip()
        plain, line = indent + plain[len(line) - len(remainder) :], indent + remainder
    yield line


def quantity(number: int | str, noun: str) -> str:
    """Returns a number with a noun: `1 kernel`, `2 kernels`."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def float_text(value: float) -> str:
    """Returns `value` with all its digits in MLIR syntax, in which `1e-05` is written `1.0e-05`."""
    digits, _, exponent = str(value).partition("e")
    digits = digits if "." in digits or not math.isfinite(value) else f"{digits}.0"
    return f"{digits}e{exponent}" if exponent else digits
