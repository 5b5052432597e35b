"""Printing IR text that people read: long attributes that recur get a name in front of the module.

```
#layout = #tile.layout<reg = [[0, 1]], lane = [[0, 2], ...], warp = []>
builtin.module { ... tensor<16x64xf32, #layout> ... }
```
`#acc` is the layout of sums of products, `#swz` a swizzled one of shared memory. Text with a width, for people, also
has names of long types and of schedules (`!t0`, `#schedule`) and continues wide lines below. Locations follow
the module, as MLIR prints them: `arith.addf %a, %b : f32 loc(#loc2)`.

Where a program comes from - version, target, source and options of the compiler - are attributes of the module, so that
they survive reading, passes and printing; in CUDA they are a comment. There is no date and no absolute path among them:
the same program gives the same text everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from itertools import count

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
"""Columns of text for people."""

LONG_TYPE = 40
"""Characters of the longest type that has no name in text with a width."""

CONTINUATION = 4
"""Columns by which a continued line is indented."""


class Names:
    """Numbers of values and names of attributes that stay what they are from one printing to the next, so that a diff
    of the two texts shows what was changed and not what was renumbered.

    A new value without a name gets the number after all that there are or were beside it; where all are new, they
    start from 0. An attribute that had a name keeps it.
    """

    def __init__(self) -> None:
        self.numbers: dict[SSAValue, int] = {}
        self.aliases: dict[Attribute, str] = {}
        self.sums = set[Attribute]()  # the layouts of sums of products, as far as they are known
        self.inline = set[Attribute]()  # attributes that are known to have no name
        self._next: dict[SSAValue, int] = {}  # of a value: the next number in its function or kernel

    def update(self, module: ModuleOp) -> None:
        """Number the values of `module` as it is now."""
        numbers: dict[SSAValue, int] = {}
        following: dict[SSAValue, int] = {}
        for op in module.body.block.ops:
            values = [v for v in _values(op) if not v.name_hint]
            free = count(max((self._next[v] for v in values if v in self._next), default=0))
            numbers.update((v, self.numbers[v] if v in self.numbers else next(free)) for v in values)
            following.update(dict.fromkeys(values, next(free)))
        self.numbers, self._next = numbers, following

    def alias(self, attribute: Attribute, long: Callable[[Attribute], bool] | None = None) -> str | None:
        """Returns the name of an attribute, or None for one without a name.

        Args:
            attribute: the attribute, or the type.
            long: returns true for a type that has a name; types and schedules have none without it.
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
        taken, first = set(self.aliases.values()), "0" if stem == "!t" else ""
        self.aliases[attribute] = next(n for i in count() if (n := f"{stem}{i or first}") not in taken)
        return self.aliases[attribute]

    def _stem(self, attribute: Attribute) -> str | None:
        """Returns the beginning of the name of an attribute, or None for one without a name."""
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
    """The values that `op` and what is inside it define, in the order in which they are printed."""
    yield from op.results
    for region in op.regions:
        for block in region.blocks:
            yield from block.args
            for inner in block.ops:
                yield from _values(inner)


_LOCATIONS = (FileLineColLoc, NameLoc, FusedLoc, CallSiteLoc)
"""Locations that have names: all except the unknown one."""


class _AliasPrinter(Printer):
    """Prints the names of attributes and locations, and remembers them. With `long`, long types and schedules have
    names, too."""

    def __init__(
        self, out: StringIO, names: Names, long: bool = False, generic: bool = False, debuginfo: bool = False
    ) -> None:
        super().__init__(out, print_generic_format=generic, print_debuginfo=debuginfo)
        self.names, self.long = names, long
        self.used: set[Attribute] = set()
        self.locations: dict[Attribute, str] = {}

    def print_ssa_value(self, value: SSAValue) -> str:
        if value in self.names.numbers:
            self._ssa_values[value] = str(self.names.numbers[value])
        return super().print_ssa_value(value)

    def print_block_argument(self, arg: BlockArgument, print_type: bool = True) -> None:
        """Without `loc(unknown)`, which the ops of ours that have arguments do not read."""
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
        """Returns the name of a location; those inside it come first."""
        attribute = origin_of(attribute)
        if not isinstance(attribute, _LOCATIONS):
            return str(attribute).removeprefix("loc(").removesuffix(")")
        if attribute not in self.locations:
            for location in inner_locations(attribute):
                self._location(location)
            self.locations[attribute] = f"#loc{len(self.locations) or ''}"
        return self.locations[attribute]

    def definition(self, attribute: Attribute) -> tuple[str, set[Attribute]]:
        """Returns the text of an attribute that has a name, and the attributes whose names are in the text."""
        out = StringIO()
        printer = _AliasPrinter(out, self.names, self.long)
        Printer.print_attribute(printer, attribute)
        return out.getvalue(), printer.used

    def definitions(self) -> Iterator[str]:
        """Returns the lines that define the names of the attributes that were printed, inner attributes first."""
        defined = set[Attribute]()

        def define(attribute: Attribute) -> Iterator[str]:
            text, inner = self.definition(attribute)
            for other in self.names.aliases:
                if other in inner and other not in defined:
                    yield from define(other)
            defined.add(attribute)
            yield f"{self.names.aliases[attribute]} = {text}\n"

        for attribute in list(self.names.aliases):
            if attribute in self.used and attribute not in defined:  # others were used in an earlier text
                yield from define(attribute)

    def location_definitions(self) -> Iterator[str]:
        """Returns the lines that define the names of locations."""
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
    """Returns the values of a function by the names that `print_module` gives them: `%0`, `%x`."""
    printer = Printer(StringIO())
    return {f"%{printer.print_ssa_value(value)}": value for value in _values(function)}


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
        debuginfo: if true, ops are printed with their locations.
        generic: if true, ops are printed in the generic format.
        names: names of an earlier printing, which stay.
        width: columns of a line. Long types and schedules have names then, and wider lines are continued below.
    """
    out = StringIO()
    if names is not None:
        names.update(module)
    printer = _AliasPrinter(out, names or Names(), width is not None, generic, debuginfo)
    printer.names.sums.update(_sums(module))
    printer.print_op(module)
    text = "".join((*printer.definitions(), out.getvalue(), "\n", *printer.location_definitions()))
    if width is None:
        return text
    lines = (wrapped(line, width, breaks=_BREAKS, least=3 * CONTINUATION) for line in text.splitlines())
    return "".join(f"{part}\n" for parts in lines for part in parts)


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
"""Spaces at which a wide line is continued, the best first."""


def wrapped(
    line: str, width: int, sign: str = "", hanging: int = CONTINUATION, breaks: Sequence[str] = (" ",), least: int = 0
) -> Iterator[str]:
    """Returns `line` as lines of at most `width` columns, if there are spaces outside of strings to break it at.

    Args:
        sign: Prefix of the line, such as the `+` of a diff, with which further lines begin, too.
        hanging: Columns by which further lines are indented more.
        breaks: Regular expressions of the spaces, the best first.
        least: Columns behind the indentation that have no break.
    """
    start = len(line) - len(line.removeprefix(sign).lstrip())
    indent = sign + " " * (start - len(sign) + hanging)
    while len(line) > width:
        plain = re.sub(r'"(?:[^"\\]|\\.)*"', lambda string: "_" * len(string[0]), line)
        legal = range(max(len(indent), start + least) + 1, width + 1)
        ends = (max((m.start() for m in re.finditer(b, plain) if m.start() in legal), default=0) for b in breaks)
        end = next(filter(None, ends), 0) or plain.find(" ", width)
        if end < 0:
            break
        yield line[:end].rstrip()
        line = indent + line[end:].lstrip()
    yield line


def quantity(number: int | str, noun: str) -> str:
    """Returns `1 kernel`, `2 kernels`."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def float_text(value: float) -> str:
    """`value` with all its digits, in the grammar of MLIR, where `1e-05` has to be `1.0e-05`."""
    digits, _, exponent = str(value).partition("e")
    digits = digits if "." in digits or not math.isfinite(value) else f"{digits}.0"
    return f"{digits}e{exponent}" if exponent else digits
