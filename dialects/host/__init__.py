"""The host dialect: operations of the host program `@main` that are the same at every level.

`host.bind_size` reads a size from the data of a program, such as the number of true elements of a mask, and binds a
symbol to it:

```
#u0 = #payload.symbol<u0[0:1025]>
%count = tensor.reduce add %selected over [0] : tensor<1024xi64> -> tensor<i64>
host.bind_size %count as #u0 : tensor<i64>
%rows = tensor.iota 0 : tensor<?xi64, #payload.extents<#u0>>
```

Operations that mention the symbol come after the operation that binds it (`verify_bound_sizes`). The executors split
the program there: they run the launches before it, read the number, and then allocate and launch the remainder.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute
from xdsl.irdl import irdl_op_definition, operand_def, prop_def
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type
from ..shapes.binding import derived_sizes
from ..shapes.extents import SymbolAttr, extents_of
from ..support.assembly import OrderedOp


@irdl_op_definition
class BindSizeOp(OrderedOp):
    """Reads an integer from memory and binds a symbol to it. The host waits for the integer, and checks its range.

    ```
    host.bind_size %count as #payload.symbol<u0[0:1025]> : tensor<i64>
    ```

    At the kernel level the operand is a memref.

    Operands:
        value: tensor or buffer with the integer.

    Attributes:
        symbol: the size that is bound (`as`).

    Constraints: the operand has no dimensions and the element type i64; the operation is in the body of `@main`, and no
    other operation binds the symbol.
    """

    name = "host.bind_size"
    value = operand_def()
    symbol = prop_def(SymbolAttr)
    assembly_format = "$value `as` qualified($symbol) attr-dict `:` type($value)"

    def verify_(self) -> None:
        t = self.value.type
        if not isinstance(t, TensorType | MemRefType) or extents_of(t) or element_type(t) != i64:  # pyright: ignore
            raise VerifyException(f"expected an i64 tensor without dimensions, but got {t}")
        parent = self.parent_op()
        if parent is not None and not (isinstance(parent, FuncOp) and parent.sym_name.data == "main"):
            raise VerifyException("expected to be in the body of @main, whose sizes it binds")


class UnboundSizeError(VerifyException):
    """Error of an operation that mentions a size before it is bound. `op`: the operation."""

    def __init__(self, op: Operation, reason: str) -> None:
        super().__init__(reason)
        self.op = op


def bound_sizes(main: FuncOp) -> tuple[BindSizeOp, ...]:
    """Returns the operations of a function that bind symbols, in order."""
    return tuple(op for op in main.body.block.ops if isinstance(op, BindSizeOp))


def verify_bound_sizes(module: ModuleOp) -> None:
    """Checks that operations mention a symbol only after the operation that binds it.

    An operation mentions the symbols in its result types, properties and attributes. Symbols in its regions count too,
    and symbols in the functions and kernels that it calls. A derived size is bound together with the last of its
    operands. Arguments may mention any symbol: at the kernel level they are also the results.

    Raises:
        UnboundSizeError: an operation mentions a symbol too early, or a symbol is bound twice.
    """
    mentions = _Mentions(module)
    for main in [f for f in module.ops if isinstance(f, FuncOp) and not f.is_declaration]:
        if not (binds := bound_sizes(main)):
            continue
        unbound, derived = set[str](), list[tuple[str, list[str]]]()
        for op in binds:
            if op.symbol.hint in unbound:
                raise UnboundSizeError(op, f"the size {op.symbol} is bound twice")
            unbound.add(op.symbol.hint)
        for d in derived_sizes(main):
            if not unbound.isdisjoint(operands := [s.hint for s in d.operands]):
                derived.append((d.symbol.hint, operands))
                unbound.add(d.symbol.hint)
        for op in main.body.block.ops:
            if isinstance(op, BindSizeOp):
                unbound.discard(op.symbol.hint)
                for name, operands in derived:
                    if unbound.isdisjoint(operands):
                        unbound.discard(name)
            elif unbound and (early := unbound & mentions.of(op)):
                raise UnboundSizeError(op, f"mentions the size {min(early)} before it is bound")


class _Mentions:
    """Names of the symbols that operations of a module mention."""

    def __init__(self, module: ModuleOp) -> None:
        self._named = {a.data: op for op in module.ops if isinstance(a := op.properties.get("sym_name"), StringAttr)}
        self._of_callees: dict[str, frozenset[str]] = {}

    def of(self, op: Operation) -> frozenset[str]:
        """Returns the names in an operation, in its regions, and in the functions and kernels that it names."""
        names, callees = set[str](), set[str]()
        for inner in op.walk():
            attributes = (*inner.properties.values(), *inner.attributes.values())
            arguments = (a.type for region in inner.regions for block in region.blocks for a in block.args)
            for attribute in (*inner.result_types, *arguments, *attributes):
                names |= _symbols_in(attribute)
            callees |= {a.root_reference.data for a in attributes if isinstance(a, SymbolRefAttr)}
        for callee in callees & self._named.keys():
            if callee not in self._of_callees:
                self._of_callees[callee] = frozenset()  # A recursive function adds nothing to itself.
                self._of_callees[callee] = self.of(self._named[callee])
            names |= self._of_callees[callee]
        return frozenset(names)


@lru_cache(4096)
def _symbols_in(attribute: Attribute) -> frozenset[str]:
    if isinstance(attribute, SymbolAttr):
        return frozenset((attribute.hint,))
    return frozenset[str]().union(*map(_symbols_in, _parts(attribute)))


def _parts(attribute: Attribute) -> Iterable[Attribute]:
    if isinstance(attribute, ArrayAttr):
        return attribute.data  # pyright: ignore
    if isinstance(attribute, DictionaryAttr):
        return attribute.data.values()
    return attribute.parameters if isinstance(attribute, ParametrizedAttribute) else ()


Host = Dialect("host", [BindSizeOp], [])
