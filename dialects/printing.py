"""Printing IR text that people read: long attributes that recur get a name in front of the module.

```
#layout = #tile.layout<reg = [[0, 1]], lane = [[0, 2], ...], warp = []>
builtin.module { ... tensor<16x64xf32, #layout> ... }
```
"""

from __future__ import annotations

from io import StringIO
from itertools import count

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute
from xdsl.printer import Printer

from .extents import SymbolAttr
from .layouts import LayoutAttr, SharedAttr

_STEMS: dict[type[Attribute], str] = {LayoutAttr: "layout", SharedAttr: "shared"}
"""The attributes that get names, and what their names begin with."""


class _AliasPrinter(Printer):
    """Prints a name for every attribute that is to have one, and remembers which in the order of their first use."""

    def __init__(self, stream: StringIO, print_generic_format: bool, print_debuginfo: bool) -> None:
        super().__init__(stream, print_generic_format=print_generic_format, print_debuginfo=print_debuginfo)
        self.aliases: dict[Attribute, str] = {}

    def print_attribute(self, attribute: Attribute) -> None:
        stem = attribute.hint if isinstance(attribute, SymbolAttr) else _STEMS.get(type(attribute))
        if stem is None:
            return super().print_attribute(attribute)
        if attribute not in self.aliases:
            taken = set(self.aliases.values())
            self.aliases[attribute] = next(n for i in count() if (n := f"#{stem}{i or ''}") not in taken)
        self.print_string(self.aliases[attribute])


def print_module(module: ModuleOp, *, debuginfo: bool = False, generic: bool = False) -> str:
    """The text of a module, ending in a newline; with `debuginfo` every op says where it comes from."""
    out = StringIO()
    printer = _AliasPrinter(out, generic, debuginfo)
    printer.print_op(module)
    names = StringIO()
    plain = Printer(names)
    for attribute, name in printer.aliases.items():
        names.write(f"{name} = ")
        plain.print_attribute(attribute)
        names.write("\n")
    return f"{names.getvalue()}{out.getvalue()}\n"
