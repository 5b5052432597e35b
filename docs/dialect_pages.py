"""Writes docs/reference/: a page for each dialect, from its definitions, and a page that explains the notation.

`python docs/dialect_pages.py docs/reference` writes the pages anew; a test compares them with the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent, indent

from xdsl.ir import Operation

from deplodock.dialects import OWN_DIALECTS, make_context
from deplodock.dialects.layouts import linear_of
from deplodock.dialects.layouts.linear import Linear
from deplodock.dialects.shapes.extents import extents_of, fixed
from deplodock.dialects.support.printing import WIDTH, print_module
from deplodock.dialects.tile import KernelOp, LoadOp
from deplodock.dialects.torch import OPS
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.tools.reference.definitions import Description, Member, describe, find, parts_of
from deplodock.tools.reference.uses import uses_of
from deplodock.tools.reports import load

TARGET = "sm_90a"

WRITTEN = (
    "This page is written by `python docs/dialect_pages.py docs/reference`; a test compares it with the definitions."
)

INDEX = f"""# Reference of the dialects

{WRITTEN}
`dl-opt --help-op tile.dot` prints the part of one operation, attribute or type, `dl-opt --help-op tile` the contents of
a dialect.

[How to read](how_to_read.md) explains a layout, a schedule, an access and `fuse.root`.

| dialect | operations | attributes and types | contents |
|---|---|---|---|
{{rows}}

In each part:

- The example is a text that the compiler reads and verifies; a test does so. Values without a definition are arguments.
- In the syntax, `%x` is an operand, `<x>` an attribute, and `( ... )?` an optional part. Every operation may have a
  dictionary of further attributes.
- In the column of types, a letter such as `T` stands for the same type in all rows of an operation. A variadic operand
  or result is a list of values.
- "Created by" names the passes, and files that serve several passes, whose code creates the operation. "Matched by"
  names the other passes whose code tests for it. `--help-op` lists files there, too.
"""


def pages() -> dict[str, str]:
    """Returns the text of each page by the name of its file."""
    texts = {f"{name}.md": dialect_page(name) for name in OWN_DIALECTS}
    return {"README.md": _index(), "how_to_read.md": how_to_read(), **texts}


def _index() -> str:
    rows: list[str] = []
    for name in OWN_DIALECTS:
        parts = parts_of(name)
        operations = [cls for part in parts for cls in part.members if issubclass(cls, Operation)]
        attributes = [cls for part in parts for cls in part.members if not issubclass(cls, Operation)]
        about = _title(parts[0].text)
        rows.append(f"| [{name}]({name}.md) | {len(operations)} | {len(attributes)} | {about} |")
    return INDEX.format(rows="\n".join(rows))


def _title(text: str) -> str:
    """Returns the first sentence of a docstring, without the name of a dialect before a colon."""
    sentence = " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    title = re.sub(r"^The \w+ dialect: ", "", sentence)
    return title[0].upper() + title[1:]


def dialect_page(name: str) -> str:
    """Returns the page of a dialect: the docstring of each file with its operations, attributes and types."""
    texts = ["# Attributes of programs" if name == "deplodock" else f"# The {name} dialect", WRITTEN]
    for number, part in enumerate(parts_of(name)):
        paragraphs = part.text.partition("\n\n")
        texts.append(f"## {_title(part.text)}\n\n`{part.file}`" if number else _markdown(paragraphs[0]))
        texts += [_markdown(paragraphs[2])] if paragraphs[2] else []
        if not number and name != "torch" and part.members:
            is_operation = any(issubclass(cls, Operation) for cls in part.members)
            texts.append("## Operations" if is_operation else "## Attributes")
        if name == "torch":
            texts.append(_operators())
        shown = [cls for cls in part.members if name != "torch" or not issubclass(cls, Operation)]
        texts += [_section(describe(cls)) for cls in shown]
    return "\n\n".join(texts) + "\n"


def _markdown(text: str) -> str:
    """Returns a docstring with `mlir` as the language of its blocks of code."""
    return re.sub(r"^```\n(.*?)^```$", r"```mlir\n\1```", text, flags=re.M | re.S)


def _operators() -> str:
    rows = "\n".join(f"| `torch.{name}` | `{op.SCHEMA.text.removeprefix(name)}` |" for name, op in OPS.items())
    return f"## Operators\n\n| operation | schema |\n|---|---|\n{rows}"


def _section(d: Description) -> str:
    parts = [f"### `{d.name}`", d.summary]
    if d.example:
        parts.append(f"```mlir\n{d.example}\n```")
    parts += [_markdown(d.body)] if d.body else []
    parts += [f"Syntax:\n\n```\n{d.syntax}\n```"] if d.syntax else []
    parts += [_table(group, members) for group, members in d.members.items()]
    lines = [f"- Traits: {'; '.join(d.traits)}."] if d.traits else []
    if issubclass(d.cls, Operation):
        uses = uses_of(d.cls)
        matched = [name for name in uses.matched if "/" not in name]
        for title, names in (("Created by", uses.created), ("Matched by", matched)):
            lines += [f"- {title}: {', '.join(f'`{name}`' for name in names)}."] if names else []
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def _table(group: str, members: Sequence[Member]) -> str:
    rows = "\n".join(f"| `{m.name}` | {m.note} | {m.text} |".replace("  |", " |") for m in members)
    return f"| {group} | type | |\n|---|---|---|\n{rows}"


HOW_TO_READ = """# How to read the IR

This page is written by `python docs/dialect_pages.py docs/reference`; a test compares it with what is printed. Its
texts are parts of two programs. The first sums the rows of a matrix whose rows do not fill whole blocks:

```sh
{sums_command}
```

## A schedule

`plan-schedules` writes one attribute on a nest, which holds every decision about its kernel:

```mlir
{schedule}
```

Fields that are not printed have their default. `dl-opt --help-op tile.schedule` and
[the reference](tile.md#tileschedule) list all fields. A line of text sets some of them: `--schedule "block=4 warps=1"`.

| field | meaning |
|---|---|
{fields}

The matrix has {rows} rows, and a block computes {block} of them. So there are {blocks} blocks, and the last one has
{outside} rows outside of the matrix.

## An access

A load or a store has affine expressions of indices in square brackets, the coordinates of the element. The same matrix
is read at each level:

{accesses}

After `where` is the *domain* of the access. Outside of it, a load returns the value after `else`, and a store writes
nothing.

At the kernel level an access moves the registers of one thread. `regs` has one step for each bit of the register
number: register 5 (binary 101) is [0, 1] + [2, 0] from the first element. `vec 4` means that four consecutive registers
are one access, here of 16 bytes. `steps` has the same for the condition after `where`: bit 2 adds 2 to the row.

## A layout

The type of a tile has a layout: which register of which thread holds which element.

```mlir
{layout}
```

Each bit of the register, lane and warp number has a *basis*, a coordinate of the tile. A register holds the element at
the exclusive or (XOR) of the bases of all set bits. The tile is {shape}. `reg` has {reg_bits} bases, so a thread has
{registers} registers. `lane` has five, for 32 lanes, and `warp` has none, for one warp. The elements in some registers:

| lane | register | bases of the set bits | element |
|---|---|---|---|
{elements}

Registers 0 to 3 are neighbours in a row, so a thread loads them at once. Sixteen lanes hold a row, the other sixteen
the next one. A zero basis means that threads hold the same element: the sums of the rows, after `tile.reduce`, have the
layout

```mlir
{sums_layout}
```

in which lane bits 0 to 3 are zero, so the sixteen lanes of a row all hold its sum.

## `fuse.root`

The second program multiplies three matrices:

```sh
{roots_command} \\
  | dl-opt -p tensor-plan-fusion
```

`tensor-plan-fusion` marks the values that are written to memory with the attribute `fuse.root`:

```mlir
{roots}
```

Each marked operation is the result of one kernel. Values without the mark are computed inside of the kernels that use
them, and are never in memory. Here `torch.relu` is computed at the end of the first matmul, whose result is in memory
because the second matmul reads each element many times. `deplodock compile --explain` prints the predicted cost of
every other cut, with a text such as `--schedule 'roots=%3,%9'` that marks these values instead.
"""

ACCESSES = {"tensor": "tensor.reduce", "loop": "loop.load", "tile": "tile.load", "kernel": "kernel.load"}
"""Level -> the operation of the first program that reads the matrix."""

ABOUT = {
    "tensor": "no access; the operation reads a whole tensor.",
    "loop": "`%i` is an index of the nest, `%k` of the reduction.",
    "tile": "`d0` and `d1` are the coordinates in the tile, `%i` is the index of the block.",
    "kernel": "`%3` and `%6` are the coordinates of the first element of this thread.",
}
"""Level -> explanation of the access there."""

ELEMENTS = ((0, 0), (0, 1), (0, 3), (0, 4), (1, 0), (16, 0), (16, 5), (31, 7))
"""Lanes and registers whose elements the page lists."""

SUMS = "torch.randn(10, 64).sum(-1)"
SUMS_SCHEDULE = "block=4 warps=1"
ROOTS = "torch.relu(torch.randn(512, 512) @ torch.randn(512, 512)) @ torch.randn(512, 512)"


def how_to_read() -> str:
    """Returns the page that explains the notation."""
    sums = load(None, SUMS, TARGET, schedule=SUMS_SCHEDULE).compilation
    texts = {level: sums.text(level) for level in ("tensor", "loop", "tile", "kernel")}
    kernel = next(op for op in sums.at("tile").walk() if isinstance(op, KernelOp))
    tile = next(op for op in kernel.walk() if isinstance(op, LoadOp)).result
    layout = linear_of(tile.type)
    assert layout is not None
    (rows, _), (block,) = extents_of(kernel.buffers[0].type), kernel.schedule.block
    fields = describe(find("#tile.schedule")[0]).members["parameters"]
    schedule = _line(texts["tile"], "#schedule")
    return HOW_TO_READ.format(
        sums_command=f'deplodock compile -c "{SUMS}" --schedule "{SUMS_SCHEDULE}" --target {TARGET} --ir tile',
        roots_command=f'deplodock compile --target {TARGET} --ir tensor \\\n  -c "{ROOTS}"',
        schedule=schedule,
        fields="\n".join(f"| `{m.name}` | {m.text} |" for m in fields if f"{m.name} = " in schedule),
        rows=rows,
        block=block,
        blocks=kernel.grid_shape[0],
        outside=-fixed(rows) % block,
        accesses="\n\n".join(_access(level, _statement(texts[level], name)) for level, name in ACCESSES.items()),
        layout=_line(texts["tile"], "#layout"),
        sums_layout=_line(texts["tile"], "#layout1"),
        shape=" x ".join(map(str, layout.shape)),
        reg_bits=len(layout.reg),
        registers=layout.registers,
        elements="\n".join(_element(layout, lane, register) for lane, register in ELEMENTS),
        roots="\n".join(_roots()),
    )


def _access(level: str, text: str) -> str:
    return f"- {level}: {ABOUT[level]}\n\n  ```mlir\n{indent(text, '  ')}\n  ```"


def _line(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{name} = "))


def _statement(text: str, name: str) -> str:
    """Returns the first operation of a name in a text, with its continued lines."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if f" {name} " in line)
    depth = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while len(lines[last]) - len(lines[last].lstrip()) >= depth + 4:
        last += 1
    return dedent("\n".join(lines[first:last]))


def _element(layout: Linear, lane: int, register: int) -> str:
    parts = (("reg", layout.reg, register), ("lane", layout.lane, lane))
    bases = [f"{name}[{b}] = {list(base)}" for name, bs, n in parts for b, base in enumerate(bs) if n >> b & 1]
    return f"| {lane} | {register} | {', '.join(bases) or 'none'} | {list(layout.apply(register, lane, 0))} |"


def _roots() -> list[str]:
    """Returns the operations of the second program after the plan of fusion, without locations."""
    program = load(None, ROOTS, TARGET).compilation.at("tensor").clone()
    run_passes(make_context(), program, parse_passes("tensor-plan-fusion"))
    lines = print_module(program, width=WIDTH).splitlines()
    return dedent("\n".join(line for line in lines if re.match(r"    %\d+ = ", line))).splitlines()


if __name__ == "__main__":
    for file, text in pages().items():
        (Path(sys.argv[1]) / file).write_text(text, encoding="utf-8")
