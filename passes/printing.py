"""Printing of values of kernels when a program runs: `tile.print` and `kernel.print`.

`print_value` inserts the operation after the definition of a value, with the operations that compute its indices and
its mask. The passes `tile-print-values` and `kernel-print-values` call it for values that a person names. Passes of
packages call it as `deplodock.print`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, ModuleOp, VectorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineExpr, AffineMap

from ..dialects import kernel, payload, tile
from ..dialects.layouts import SharedAttr
from ..dialects.payload import extents_of, is_payload, is_tensor, shape_of, with_element
from ..dialects.payload.prints import is_printable
from ..dialects.shapes.domain import DomainAttr
from ..dialects.support.locations import ancestors, copy_location
from ..dialects.support.printing import value_names
from ..errors import CompileError

Index = Sequence[int | None]
"""Index of the printed elements; None means all numbers."""

_FORM = re.compile(r"(?:(?P<kernel>[\w.]+):)?%?(?P<value>[\w.]+)(?:\[(?P<index>[\d*,\s]*)\])?")


@dataclass(frozen=True)
class Choice:
    """Value that is to be printed.

    Attributes:
        text: the text of the person.
        kernel: name of its kernel, or None for all kernels with a value of the name.
        value: printed name of the value.
        index: index of the printed elements, or None for all elements of the first block.
    """

    text: str
    kernel: str | None
    value: str
    index: Index | None

    @staticmethod
    def read(text: str) -> Choice:
        """Parses `%7`, `k0:%7`, or `%7[3,*]`. Raises CompileError for another form."""
        form = _FORM.fullmatch(text.strip())
        if form is None:
            raise CompileError(f"expected a value such as %7, k0:%7 or %7[3,*], but got {text!r}", argument="--print")
        words = [w.strip() for w in form["index"].split(",") if w.strip()] if form["index"] is not None else None
        if words is not None and not all(w == "*" or w.isdigit() for w in words):
            raise CompileError(f"expected numbers or * in the index, but got {text!r}", argument="--print")
        index = None if words is None else [None if w == "*" else int(w) for w in words]
        return Choice(text, form["kernel"], f"%{form['value']}", index)


def print_chosen(module: ModuleOp, kind: type[Operation], texts: Sequence[str]) -> None:
    """Inserts operations that print the values of kernels that a person names.

    Args:
        module: the program.
        kind: class of kernels.
        texts: names of values (`Choice.read`), as the program is printed.

    Raises:
        CompileError: there is no such value, or it is no number.
    """
    kernels = {str(getattr(op, "sym_name").data): op for op in module.body.ops if isinstance(op, kind)}
    names = {name: value_names(op) for name, op in kernels.items()}
    for choice in map(Choice.read, texts):
        pairs = names.items()
        values = [(k, v[choice.value]) for k, v in pairs if choice.kernel in (None, k) and choice.value in v]
        if not values:
            where = f"the kernel {choice.kernel}" if choice.kernel else f"the kernels {', '.join(kernels)}"
            reason = f"expected a value of {where}, but got {choice.value}; --ir {_level(kind)} prints their names"
            raise CompileError(reason, argument=f"--print {choice.text}")
        for name, value in values:
            try:
                print_value(value, f"{name} {choice.value}", choice.index)
            except CompileError as error:
                raise CompileError(error.reason, argument=f"--print {choice.text}") from None


def _level(kind: type[Operation]) -> str:
    return str(getattr(kind, "name")).partition(".")[0]


def print_value(value: SSAValue, label: str | None = None, index: Index | None = None) -> Operation:
    """Inserts an operation that prints a value of a kernel, after the definition of the value.

    A tile has the indices of the tensor that it is stored to or loaded from. Other tiles have the numbers of the block,
    of the iterations of the loops around the value, and of the element in the tile; the label then names them. The
    indices of registers are block, thread and register.

    Args:
        value: a tile, or registers of a thread.
        label: text before the indices; by default the name of the value.
        index: index of the printed elements, with None for all numbers; by default all elements of the first block.

    Returns:
        the inserted operation.

    Raises:
        CompileError: the value is no number, or the index has another length.
    """
    if not is_printable(value.type):
        raise CompileError(f"expected numbers to print, but got {value.type}")
    if is_tensor(value.type) and isinstance(getattr(value.type, "encoding", None), SharedAttr):
        raise CompileError("expected a tile in registers, but got one in shared memory; print the tile that is stored")
    program = next((op for op in _enclosing(value) if isinstance(op, tile.KernelOp | kernel.FuncOp)), None)
    if program is None:
        raise CompileError("expected a value of a kernel")
    label = label if label is not None else f"%{value.name_hint or 'value'}"
    build = _Builder(value)
    if isinstance(program, tile.KernelOp):
        indices, mask, named = _tile_indices(build, program)
        label += named
    else:
        indices, mask = _register_indices(build), None
    if index is not None and len(index) != len(indices):
        raise CompileError(f"expected an index of {len(indices)} numbers, but got {len(index)}")
    if index is not None:
        conditions = [(i, n) for i, n in zip(indices, index, strict=True) if n is not None]
    else:
        first = [build.spread(b) for b in program.blocks] if isinstance(program, tile.KernelOp) else indices[:1]
        conditions = [(number, 0) for number in first]
    for position, number in conditions:
        mask = build.both(mask, build.compared("eq", position, number))
    make = tile.PrintOp if isinstance(program, tile.KernelOp) else kernel.PrintOp
    printing = make(label=label, value=value, indices=indices, mask=mask)
    build.ops.append(printing)
    build.insert()
    return printing


class _Builder:
    """Operations that compute indices and masks of a value, with its shape."""

    def __init__(self, value: SSAValue) -> None:
        self.value, self.shape = value, shape_of(value.type)
        self.ops: list[Operation] = []
        self.index = with_element(value.type, IndexType())

    def add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def insert(self) -> None:
        """Inserts the operations after the definition of the value."""
        owner = self.value.owner
        if isinstance(owner, Block):
            owner.insert_ops_before(self.ops, first) if (first := owner.first_op) else owner.add_ops(self.ops)
        else:
            block = owner.parent_block()
            assert block is not None
            block.insert_ops_after(self.ops, owner)
            copy_location(owner, self.ops)

    def affine(self, expr: AffineExpr, symbols: Sequence[SSAValue] = ()) -> SSAValue:
        """Returns an expression of the indices of the tile and of `symbols`."""
        map = AffineMap(len(self.shape), len(symbols), (expr,))
        return self.add(tile.AffineOp(map=map, symbols=symbols, result=self.index))

    def spread(self, number: SSAValue | int) -> SSAValue:
        """Returns an index with the container of the value, equal in all elements. An index that has it is returned."""
        if isinstance(number, SSAValue) and number.type == self.index:
            return number
        if is_tensor(self.value.type):
            if isinstance(number, SSAValue):
                return self.affine(AffineExpr.symbol(0), [number])
            return self.affine(AffineConstantExpr(number))
        if not isinstance(number, SSAValue):
            number = self.add(arith.ConstantOp.from_int_and_width(number, IndexType()))
        if not isinstance(self.value.type, VectorType):
            return number
        return self.add(kernel.SplatOp(number, self.shape[0]))

    def compared(self, predicate: str, a: SSAValue, b: SSAValue | int) -> SSAValue:
        return self.add(payload.CmpOp(predicate, a, self.spread(b)))

    def both(self, a: SSAValue | None, b: SSAValue) -> SSAValue:
        return b if a is None else self.add(arith.AndIOp(a, b))


def _register_indices(build: _Builder) -> list[SSAValue]:
    """Returns block, thread and, for a vector, register."""
    ids = [build.spread(build.add(kernel.IdOp(kind))) for kind in (kernel.Id.BLOCK, kernel.Id.THREAD)]
    if isinstance(build.value.type, VectorType):
        count = build.shape[0]
        zero = build.add(arith.ConstantOp.from_int_and_width(0, IndexType()))
        steps = [1 << bit for bit in range(count.bit_length() - 1)]
        ids.append(build.add(kernel.IndicesOp(zero, steps)))
    return ids


def _tile_indices(build: _Builder, program: tile.KernelOp) -> tuple[list[SSAValue], SSAValue | None, str]:
    """Returns the indices of the elements of a tile, the mask of elements in the tensor, and text for the label."""
    value, rank = build.value, len(build.shape) if is_tensor(build.value.type) else 0
    place = next(_places(value), None) if rank else None
    if place is not None:
        map, symbols, domain = place
        indices, mask = [build.affine(e, symbols) for e in map.results], None
        for expr, (low, high) in zip(domain.affine.results, domain.limits, strict=True) if domain else ():
            at = build.affine(expr, symbols)
            limit = high if isinstance(high, int) else build.add(payload.ExtentOp(high, IndexType()))
            mask = build.both(mask, build.compared("le", build.spread(low), at))
            mask = build.both(mask, build.compared("lt", at, limit))
        return indices, mask, ""
    counters = [op.body.block.args[0] for op in reversed(_enclosing(value)) if isinstance(op, scf.ForOp)]
    numbers = [build.spread(v) for v in (*program.blocks, *counters)]
    names = ["block"] * len(program.blocks) + ["loop"] * len(counters) + ["tile"] * rank
    dims = [build.affine(AffineDimExpr(d)) for d in range(rank)]
    return [*numbers, *dims], None, f" ({' '.join(dict.fromkeys(names))})"


def _places(value: SSAValue) -> Iterator[tuple[AffineMap, Sequence[SSAValue], DomainAttr | None]]:
    """Yields maps from the elements of a tile to indices of tensors that it is stored to, or that it is computed from
    elementwise."""
    for step in (_stored, _loaded):
        seen, todo = {value}, [value]
        while todo:
            tiles, access = step(todo.pop())
            if access is not None:
                symbols = [*access.symbols]
                if all(s.type == IndexType() and _is_visible(s, value) for s in symbols):
                    yield access.map.data, symbols, _domain_of(access)
            new = [t for t in tiles if t not in seen and shape_of(t.type) == shape_of(value.type)]
            seen.update(new)
            todo += new


def _domain_of(access: _Access) -> DomainAttr | None:
    """Returns the elements of a tile that an access moves. TMA moves those inside of the tensor."""
    if isinstance(access, tile.LoadOp | tile.StoreOp):
        return access.domain
    buffer = access.target if isinstance(access, tile.TmaStoreOp) else access.source
    return DomainAttr.get(access.map.data, [(0, extent) for extent in extents_of(buffer.type)])


_Access: TypeAlias = tile.LoadOp | tile.StoreOp | tile.TmaLoadOp | tile.TmaStoreOp


def _stored(value: SSAValue) -> tuple[list[SSAValue], tile.StoreOp | tile.TmaStoreOp | None]:
    """Returns the tiles that are computed elementwise from a tile, and its store."""
    users = [use.operation for use in value.uses]
    store = next((u for u in users if isinstance(u, tile.StoreOp | tile.TmaStoreOp) and u.operands[0] is value), None)
    return [r for u in users if is_payload(u) or isinstance(u, _COPIES) for r in u.results if is_tensor(r.type)], store


def _loaded(value: SSAValue) -> tuple[list[SSAValue], tile.LoadOp | tile.TmaLoadOp | None]:
    """Returns the tiles from which a tile is computed elementwise, and its load."""
    owner = value.owner
    if isinstance(owner, tile.LoadOp | tile.TmaLoadOp):
        return [], owner
    if isinstance(owner, Block) or not is_payload(owner) and not isinstance(owner, _COPIES):
        return [], None
    return [v for v in owner.operands if is_tensor(v.type)], None


_COPIES = (tile.ConvertLayoutOp, tile.StageOp)
"""Operations whose result has the elements of their operand."""


def _is_visible(symbol: SSAValue, value: SSAValue) -> bool:
    """Returns true if `symbol` is defined before `value`, in its block or around it."""
    home, chain = symbol.owner, _enclosing(value)
    if isinstance(home, Block):
        return home is value.owner or any(op.parent_block() is home for op in chain)
    return any(op.parent_block() is home.parent_block() and (op is home or home.is_before_in_block(op)) for op in chain)


def _enclosing(value: SSAValue) -> list[Operation]:
    """Returns the operation that defines a value, unless it is a block argument, and the operations around it."""
    owner = value.owner
    if isinstance(owner, Operation):
        return [owner, *ancestors(owner)]
    parent = owner.parent_op()
    return [] if parent is None else [parent, *ancestors(parent)]
