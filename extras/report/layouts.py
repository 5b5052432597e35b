"""Section "Layouts": which thread holds which element of a tile, its accesses, and the banks of shared tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Attribute, SSAValue

from ...dialects import tile
from ...dialects.layouts import LayoutAttr, attr_of, bases_of, linear_of, shared_of, without_flight
from ...dialects.layouts.linear import Bases, Linear, Reader, Shared, Span, combine, operand_layout, pack, unpack
from ...dialects.payload import element_bytes, shape_of
from ...dialects.support.printing import WIDTH, Names, print_module, quantity, value_names
from ...errors import CompileError
from ...passes.analysis.memory_access import TileForms, plan_access
from ...passes.analysis.tile_layouts import readers
from .html import Html, element, joined, table
from .program import ReportedProgram
from .sections import Section

SIDE, LINE = 32, 8
"""Largest number of rows and columns of a grid; number of rows into which a tile of one dimension is folded."""

MOST_GRIDS, OPEN_GRIDS, MOST_NAMES = 12, 3, 6
"""Numbers of grids of a page, of open grids at first, and of listed names of tiles."""

BANKS, BANK_BYTES = 32, 4
"""Banks of shared memory, and bytes of a word of a bank."""

PATTERNS = 8
"""Number of patterns of cells: one for each warp, or for each group of four banks."""


@dataclass(frozen=True)
class TileAccess:
    """Access of a tile by the threads of a layout.

    Attributes:
        operation: name of the operation, and the direction of the access.
        layout: layout of the threads.
        elements: elements that a thread accesses with one instruction.
        bytes_each: bytes of an element.
        instructions: instructions of a warp.
        wavefronts: wavefronts of one instruction in shared memory, or None for global memory.
        least: the same without bank conflicts.
    """

    operation: str
    layout: Linear
    elements: int
    bytes_each: int
    instructions: int
    wavefronts: int | None = None
    least: int | None = None


@dataclass(frozen=True)
class UsedLayout:
    """Layout of tiles of a kernel.

    Attributes:
        kernel: name of the kernel.
        name: its alias in the text of the tile level, such as `#acc`.
        layout: the layout.
        bytes_each: bytes of an element of the first tile.
        tiles: names of the tiles that have it.
        accesses: accesses of these tiles in memory.
    """

    kernel: str
    name: str
    layout: Linear | Shared
    bytes_each: int
    tiles: tuple[str, ...]
    accesses: tuple[TileAccess, ...]


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for programs without tiles."""
    if "tile" not in program.levels:
        return None
    used = layouts_of(program.compilation.at("tile"))
    if not used:
        return None
    parts, drawn = [element("p", _INTRODUCTION, class_="note")], dict[tuple[Any, ...], str]()
    for kernel, group in groupby(used, key=lambda u: u.kernel):
        parts.append(element("h3", kernel))
        parts += [_layout(u, drawn) for u in group]
    return Section("layouts", "Layouts", joined(parts), [data_of(u) for u in used])


_INTRODUCTION = (
    "A layout maps the bits of register, lane and warp, or of an offset in shared memory, to elements of a tile. A cell"
    " is an element. In registers it shows lane.register of the first thread that has it, and its pattern is the warp."
    " In shared memory it shows the bank, and its pattern is the group of four banks. The first instruction of warp 0"
    " accesses the underlined cells."
)


def data_of(used: UsedLayout) -> dict[str, Any]:
    """Returns a layout as data."""
    accesses = [
        {"operation": a.operation, "elements": a.elements, "wavefronts": a.wavefronts, "least": a.least}
        for a in used.accesses
    ]
    return {"kernel": used.kernel, "layout": str(attr_of(used.layout)), "tiles": len(used.tiles), "accesses": accesses}


def layouts_of(module: ModuleOp) -> list[UsedLayout]:
    """Returns the distinct layouts of each kernel of a program at the tile level, in program order."""
    names, used = Names(), list[UsedLayout]()
    print_module(module, names=names, width=WIDTH)
    for kernel in (op for op in module.walk() if isinstance(op, tile.KernelOp)):
        named = {value: name for name, value in value_names(kernel).items()}
        tiles, types = dict[Linear | Shared, list[str]](), dict[Linear | Shared, Attribute]()
        for value, name in named.items():
            layout = linear_of(value.type) or shared_of(without_flight(value.type))
            if layout is not None:
                tiles.setdefault(layout, []).append(name)
                types.setdefault(layout, without_flight(value.type))
        accesses = [*_accesses(kernel)]
        for layout, values in tiles.items():
            of_layout = tuple(dict.fromkeys(a for key, a in accesses if key == layout))
            alias = names.aliases.get(attr_of(layout), "")
            size = element_bytes(types[layout])
            used.append(UsedLayout(kernel.sym_name.data, alias, layout, size, tuple(values), of_layout))
    return used


def _accesses(kernel: tile.KernelOp) -> Iterator[tuple[Linear | Shared, TileAccess]]:
    """Yields the accesses of global and shared memory in a kernel, each with the layout of its tile."""
    if kernel.lanes.data == 1:
        return
    for op in kernel.walk():
        if isinstance(op, tile.LoadOp | tile.StoreOp):
            value, memory = (op.result, op.source) if isinstance(op, tile.LoadOp) else (op.value, op.target)
            layout = linear_of(value.type)
            if layout is not None:
                yield layout, _of_global(op, layout, memory)
        elif isinstance(op, tile.StageOp):
            held, shared = linear_of(op.source.type), shared_of(op.result.type)
            if held is not None and shared is not None:
                yield shared, _of_shared("tile.stage writes", Reader(held, element_bytes(op.result.type)), shared)
        elif isinstance(op, tile.StageAsyncOp) and isinstance(op.layout, LayoutAttr):
            shared = shared_of(op.result.type)
            if shared is not None:
                by = [bases_of(part) for part in (op.layout.reg, op.layout.lane, op.layout.warp)]
                writer = Linear(shared.shape, *by).compact()[0]
                yield shared, _of_copy(op, writer, shared)
        elif isinstance(op, tile.DotOp | tile.DotAsyncOp):
            yield from _of_dot(op)


def _of_global(op: tile.LoadOp | tile.StoreOp, layout: Linear, memory: SSAValue) -> TileAccess:
    compact = layout.compact()[0]
    gathered = [s.type != IndexType() for s in op.symbols]
    vec = plan_access(op, TileForms(compact, op.symbols, gathered), memory.type).vec
    does = "from" if isinstance(op, tile.LoadOp) else "to"
    return TileAccess(f"{op.name} {does} memory", compact, vec, element_bytes(memory.type), compact.registers // vec)


def _of_copy(op: tile.StageAsyncOp, writer: Linear, shared: Shared) -> TileAccess:
    """Returns the access of an asynchronous copy, which writes shared memory."""
    access, size = plan_access(op, TileForms(writer, op.symbols), op.source.type), element_bytes(op.result.type)
    wide = _of_shared("tile.stage_async copies", Reader(writer, size), shared)
    vec = min(access.vec, wide.elements)
    return TileAccess(wide.operation, writer, vec, size, writer.registers // vec, wide.wavefronts, wide.least)


def _of_shared(operation: str, reader: Reader, shared: Shared) -> TileAccess:
    """Returns an access of shared memory with its wavefronts. `operation`: description of the access."""
    vec, fronts = reader.width(shared), reader.wavefronts(shared)
    count = reader.layout.registers // vec
    return TileAccess(operation, reader.layout, vec, reader.bytes_each, count, fronts, reader.least_wavefronts(shared))


def _of_dot(op: tile.DotOp | tile.DotAsyncOp) -> Iterator[tuple[Linear | Shared, TileAccess]]:
    """Yields the reads of the operands of a dot. `wgmma` reads TMA tiles without threads, and yields nothing."""
    acc = linear_of(op.acc.type)
    if acc is None or isinstance(op, tile.DotAsyncOp) or op.is_wgmma:
        return
    for i, operand in enumerate((op.lhs, op.rhs)):
        shared, size, depth = shared_of(operand.type), element_bytes(operand.type), shape_of(op.lhs.type)[1]
        if shared is None:
            continue
        try:
            choices = (
                readers(op, acc, i) if op.atom is not None else (Reader(operand_layout(acc, i, depth), size, depth),)
            )
        except CompileError:
            continue
        reader = min(choices, key=lambda r, shared=shared: r.cost(shared)[0])
        how = "by ldmatrix" if op.atom is not None and reader.elements > 1 else "by loads"
        yield shared, _of_shared(f"tile.dot reads its {'left' if i == 0 else 'right'} operand {how}", reader, shared)


def _layout(used: UsedLayout, drawn: dict[tuple[Any, ...], str]) -> Html:
    """Returns a layout: its tiles, a sentence about its bases, its accesses and its grid.

    Args:
        used: the layout.
        drawn: layouts that are drawn, with the kernel in which they are.
    """
    layout = used.layout
    where = "registers" if isinstance(layout, Linear) else "shared memory"
    names = ", ".join(used.tiles[:MOST_NAMES])
    more = f" and {len(used.tiles) - MOST_NAMES} more" if len(used.tiles) > MOST_NAMES else ""
    extents = "x".join(map(str, layout.shape))
    title = element("strong", f"{used.name} {extents} in {where}")
    bases = str(attr_of(layout)).partition("<")[2].removesuffix(">")
    parts: list[object] = [element("p", title, f" · {names}{more}"), element("p", element("code", bases))]
    parts.append(element("p", sentence(layout)))
    if used.accesses:
        parts.append(_access_table(used.accesses))
    elif isinstance(layout, Shared):
        parts.append(
            element("p", "TMA and wgmma access it as a whole, so no accesses of threads are counted.", class_="note")
        )
    key = (layout, used.bytes_each, used.accesses[:1])
    if key in drawn:
        parts.append(element("p", f"Its grid is the one in {drawn[key]}.", class_="note"))
    elif len(drawn) >= MOST_GRIDS:
        parts.append(element("p", f"Its grid is left out: the page has {MOST_GRIDS} grids.", class_="note"))
    else:
        drawn[key] = used.kernel
        first = next(iter(used.accesses), None)
        head = element("summary", _grid_title(layout))
        parts.append(element("details", head, grid(layout, used.bytes_each, first), open=len(drawn) <= OPEN_GRIDS))
    return element("div", *parts, class_="layout")


def _grid_title(layout: Linear | Shared) -> str:
    rows, columns = _window(layout.shape)
    if len(layout.shape) == 1:
        return f"elements 0 to {rows * columns - 1}, {columns} in a row"
    whole = (rows, columns) == layout.shape
    return "the tile" if whole else f"the first {rows}x{columns} elements of the tile"


def sentence(layout: Linear | Shared) -> str:
    """Returns a sentence that explains bases with an element of the layout as the example."""
    if isinstance(layout, Shared):
        offset = 5 % layout.size | (layout.size >> 1 if layout.size > 8 else 0)
        where = unpack(layout.shape, combine([pack(layout.shape, b) for b in layout.offset], offset))
        mixed = sum(sum(map(bool, b)) > 1 for b in layout.offset)
        swizzle = f"; bases with two coordinates ({mixed}) swizzle it" if mixed else ""
        terms = _terms((("offset", offset, layout.offset),))
        return f"Offset {offset} = binary {offset:b} holds {terms} = element {[*where]}{swizzle}."
    numbers = (3 % layout.registers, 5 % layout.lanes, 1 % layout.warps)
    parts = tuple(zip(("register", "lane", "warp"), numbers, layout.parts, strict=True))
    shown = [f"{name} {number}" + (f" (binary {number:b})" if number > 1 else "") for name, number, _ in parts]
    copies = layout.lanes * layout.warps * layout.registers // (1 << Span(layout.packed).rank)
    text = f"{shown[0].capitalize()} of {shown[1]} of {shown[2]} holds {_terms(parts)}"
    text += f" = element {[*layout.apply(*numbers)]}: set bits contribute their bases, and XOR joins them."
    return text + (f" Zero bases replicate: {copies} registers of the block hold each element." if copies > 1 else "")


def _terms(parts: Sequence[tuple[str, int, Bases]]) -> str:
    """Returns the bases of the set bits of numbers, joined by `^`. `parts`: name, number and bases of each part."""
    bases = [basis for _, number, part in parts for bit, basis in enumerate(part) if number >> bit & 1]
    return " ^ ".join(str([*b]) for b in bases) or "no basis"


def _access_table(accesses: Sequence[TileAccess]) -> Html:
    """Returns a table of accesses with their widths and bank conflicts."""
    rows: list[list[object]] = []
    shared = any(a.wavefronts is not None for a in accesses)
    for a in accesses:
        width = f"{a.elements * a.bytes_each} bytes ({quantity(a.elements, 'element')})"
        fronts = [_conflict(a.wavefronts or 0, a.least or 0), a.wavefronts] if shared else []
        rows.append([a.operation, *fronts[:1], width, a.instructions, *fronts[1:]])
    heads = ["access", *(["bank conflicts"] if shared else []), "of a thread at once", "instructions of a warp"]
    return table([*heads, *(["wavefronts of one"] if shared else [])], rows, 2 if shared else 1)


def _conflict(wavefronts: int, least: int) -> str:
    return "none" if wavefronts <= least else f"{wavefronts} wavefronts instead of {least}"


def _window(shape: Sequence[int]) -> tuple[int, int]:
    """Returns the rows and columns of the grid of a tile."""
    if len(shape) == 1:
        columns = min(shape[0], SIDE)
        return min(LINE, shape[0] // columns), columns
    return min(shape[-2], SIDE), min(shape[-1], SIDE)


def _element(shape: Sequence[int], row: int, column: int) -> tuple[int, ...]:
    """Returns the coordinate of a cell: of the first rows and columns, at 0 of dimensions before the last two."""
    if len(shape) == 1:
        return (row * min(shape[0], SIDE) + column,)
    return (*[0] * (len(shape) - 2), row, column)


def grid(layout: Linear | Shared, bytes_each: int, access: TileAccess | None = None) -> Html:
    """Returns the first elements of a tile as a grid of text, in which runs of one warp or bank group have a pattern.

    Args:
        layout: the layout of the tile.
        bytes_each: bytes of an element.
        access: access whose first instruction is underlined, or None.
    """
    rows, columns = _window(layout.shape)
    marked = set[int]()
    if access is not None:
        part = access.layout
        bits, span = len(part.reg), access.elements.bit_length() - 1
        images = [*part.packed[:span], *part.packed[bits : bits + len(part.lane)]]
        marked = {combine(images, n) for n in range(1 << len(images))}
    cells = list[list[tuple[str, int, bool]]]()
    span = Span(layout.packed) if isinstance(layout, Linear) else None
    for row in range(rows):
        cells.append([])
        for column in range(columns):
            coordinate = _element(layout.shape, row, column)
            text, pattern = _cell(layout, span, coordinate, bytes_each)
            cells[-1].append((text, pattern % PATTERNS, pack(layout.shape, coordinate) in marked))
    width = max(len(text) for line in cells for text, *_ in line)
    step = columns if len(layout.shape) == 1 else 1
    margin = len(str((rows - 1) * step))
    head = " " * (margin + 2) + " ".join(f"{c:<{width}}" if c % 4 == 0 else " " * width for c in range(columns))
    lines = [element("i", head.rstrip(), class_="c")]
    for number, line in enumerate(cells):
        runs = [_run([*run], width) for _, run in groupby(line, key=lambda cell: cell[1:])]
        lines.append(joined([element("i", f"{number * step:>{margin}}  ", class_="c"), *runs]))
    legend = _legend(layout)
    return joined([element("pre", joined(lines, "\n"), class_="grid"), legend])


def _run(cells: Sequence[tuple[str, int, bool]], width: int) -> Html:
    """Returns neighbouring cells of one pattern. `width`: characters of a cell."""
    (_, pattern, marked), text = cells[0], " ".join(f"{text:<{width}}" for text, *_ in cells)
    return element("span", element("u", text) if marked else text, " ", class_=f"cell{pattern}" if pattern else None)


def _cell(layout: Linear | Shared, span: Span | None, coordinate: Sequence[int], bytes_each: int) -> tuple[str, int]:
    """Returns the text of a cell and the number of its pattern.

    Args:
        layout: the layout.
        span: the bases of a layout in registers.
        coordinate: the element.
        bytes_each: bytes of an element.
    """
    if isinstance(layout, Shared):
        bank = layout.place(coordinate) * bytes_each // BANK_BYTES % BANKS
        return str(bank), bank // (BANKS // PATTERNS)
    number = span.solve(pack(layout.shape, coordinate)) if span is not None else None
    if number is None:
        return "?", 0
    register = number & layout.registers - 1
    lane = number >> len(layout.reg) & layout.lanes - 1
    warp = number >> len(layout.reg) + len(layout.lane)
    return (f"{lane}.{register}" if layout.lanes > 1 else str(register)), warp


def _legend(layout: Linear | Shared) -> Html:
    """Returns the patterns of warps or bank groups."""
    if isinstance(layout, Shared):
        size = BANKS // PATTERNS
        names = [f"banks {i * size}-{i * size + size - 1}" for i in range(PATTERNS)]
    elif layout.warps > 1:
        names = [
            f"warp {i}" + (f", {i + PATTERNS}, …" if layout.warps > PATTERNS else "")
            for i in range(min(layout.warps, PATTERNS))
        ]
    else:
        return Html("")
    return element(
        "p", *(element("span", n, class_=f"cell{i}" if i else None) for i, n in enumerate(names)), class_="legend"
    )
