"""Printing IR text that people read: long attributes that recur get a name in front of the module.

```
#layout = #tile.layout<reg = [[0, 1]], lane = [[0, 2], ...], warp = []>
builtin.module { ... tensor<16x64xf32, #layout> ... }
```
`#acc` is the layout of sums of products, `#swz` a swizzled one of shared memory.

Where a program comes from - version, target, source and options of the compiler - are attributes of the module, so that
they survive reading, passes and printing; in CUDA they are a comment. There is no date and no absolute path among them:
the same program gives the same text everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from io import StringIO
from itertools import count

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, UnknownLoc
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.printer import Printer

from ...target.attribute import TargetAttr
from ..layouts.attributes import LayoutAttr, SharedAttr, bases_of
from ..shapes.extents import SymbolAttr
from .locations import origin_of


class Names:
    """Numbers of values and names of attributes that stay what they are from one printing to the next, so that a diff
    of the two texts shows what was changed and not what was renumbered.

    A new value without a name gets the number after all that there are or were beside it; where all are new, they
    start from 0. An attribute that had a name keeps it.
    """

    def __init__(self) -> None:
        self.numbers: dict[SSAValue, int] = {}
        self.aliases: dict[Attribute, str] = {}
        self.sums: set[Attribute] = set()
        """The layouts of sums of products, as far as they are known."""
        self._next: dict[SSAValue, int] = {}
        """Of a value: the next number in the function or kernel that it is in."""

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

    def alias(self, attribute: Attribute) -> str | None:
        """The name of an attribute; None for one that gets no name."""
        if attribute not in self.aliases and (stem := self._stem(attribute)) is not None:
            taken = set(self.aliases.values())
            self.aliases[attribute] = next(n for i in count() if (n := f"#{stem}{i or ''}") not in taken)
        return self.aliases.get(attribute)

    def _stem(self, attribute: Attribute) -> str | None:
        """What the name of an attribute begins with."""
        if isinstance(attribute, SymbolAttr):
            return attribute.hint
        if isinstance(attribute, LayoutAttr):
            return "acc" if attribute in self.sums else "layout"
        if isinstance(attribute, TargetAttr):
            return None if attribute.is_record else "target"
        if isinstance(attribute, SharedAttr):
            return "swz" if any(sum(map(bool, c)) > 1 for c in bases_of(attribute.offset)) else "shared"
        return None


def _values(op: Operation) -> Iterator[SSAValue]:
    """The values that `op` and what is inside it define, in the order in which they are printed."""
    yield from op.results
    for region in op.regions:
        for block in region.blocks:
            yield from block.args
            for inner in block.ops:
                yield from _values(inner)


class _AliasPrinter(Printer):
    """Prints a name for every attribute that is to have one, and remembers which in the order of their first use."""

    def __init__(
        self, stream: StringIO, print_generic_format: bool, print_debuginfo: bool, names: Names | None
    ) -> None:
        super().__init__(stream, print_generic_format=print_generic_format, print_debuginfo=print_debuginfo)
        self.names = Names() if names is None else names
        self.used: set[Attribute] = set()

    def print_ssa_value(self, value: SSAValue) -> str:
        if value in self.names.numbers:
            self._ssa_values[value] = str(self.names.numbers[value])
        return super().print_ssa_value(value)

    def print_block_argument(self, arg: BlockArgument, print_type: bool = True) -> None:
        """Without `loc(unknown)`, which the ops of ours that have arguments do not read."""
        debuginfo, self.print_debuginfo = (
            self.print_debuginfo,
            self.print_debuginfo and not isinstance(arg.location, UnknownLoc),
        )
        super().print_block_argument(arg, print_type)
        self.print_debuginfo = debuginfo

    def print_attribute(self, attribute: Attribute) -> None:
        attribute = origin_of(attribute)
        alias = self.names.alias(attribute)
        if alias is None:
            return super().print_attribute(attribute)
        self.used.add(attribute)
        self.print_string(alias)


def _sums(module: ModuleOp) -> set[Attribute]:
    """The layouts of the results of products."""
    types = [op.results[0].type for op in module.walk() if op.name in ("tile.dot", "tile.dot_wait")]
    return {t.encoding for t in types if isinstance(t, TensorType)}


def value_names(function: Operation) -> dict[str, SSAValue]:
    """Returns the values of a function by the names that `print_module` gives them: `%0`, `%x`."""
    printer = Printer(StringIO())
    return {f"%{printer.print_ssa_value(value)}": value for value in _values(function)}


def print_module(
    module: ModuleOp, *, debuginfo: bool = False, generic: bool = False, names: Names | None = None
) -> str:
    """The text of a module, ending in a newline; with `debuginfo` every op says where it comes from. `names` are those
    of an earlier printing, to be kept."""
    out = StringIO()
    if names is not None:
        names.update(module)
    printer = _AliasPrinter(out, generic, debuginfo, names)
    printer.names.sums.update(_sums(module))
    printer.print_op(module)
    aliases = StringIO()
    plain = Printer(aliases)
    for attribute, name in printer.names.aliases.items():
        if attribute not in printer.used:  # it was, in an earlier text
            continue
        aliases.write(f"{name} = ")
        plain.print_attribute(attribute)
        aliases.write("\n")
    return f"{aliases.getvalue()}{out.getvalue()}\n"


def quantity(number: int | str, noun: str) -> str:
    """Returns `1 kernel`, `2 kernels`."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def float_text(value: float) -> str:
    """`value` with all its digits, in the grammar of MLIR, where `1e-05` has to be `1.0e-05`."""
    digits, _, exponent = str(value).partition("e")
    digits = digits if "." in digits or not math.isfinite(value) else f"{digits}.0"
    return f"{digits}e{exponent}" if exponent else digits


_PREFIX = "deplodock."


def stamp(module: ModuleOp, facts: Mapping[str, str]) -> None:
    """Note `facts` (`{"version": "0.1.0"}`) on a module."""
    module.attributes.update({f"{_PREFIX}{name}": StringAttr(text) for name, text in facts.items() if text})


def stamp_comment(module: ModuleOp) -> str:
    """Returns the facts that are noted on a module and its target as a comment of C++, a line for each."""
    lines: list[str] = []
    for name, attribute in module.attributes.items():
        if name.startswith(_PREFIX) and isinstance(attribute, StringAttr | TargetAttr):
            text = attribute.text() if isinstance(attribute, TargetAttr) else attribute.data
            lines.append(f"// deplodock {name.removeprefix(_PREFIX)}: {' '.join(text.split())}\n")
    return "".join(lines)
