"""The device functions that generated kernels call: the only place with inline assembly and intrinsics.

Most are sections of `functions.cuh`, with `CASES`: tables of what the words of a section stand for. Atomics and
products of warpgroups are too many to write out: here are their texts. A helper with inline assembly also has a host
text with the same meaning in plain C++, which the emulator puts in its place; what the others call, the emulator
defines. Only helpers that a module uses are printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i32

from ...dialects.kernel.mma import MMA_ATOMS, ROWS, MmaAtom
from ...dialects.payload import element_bytes
from ...dialects.tensor import MONOIDS, Monoid, ReductionKind
from .. import dtypes


@dataclass(frozen=True)
class Helper:
    """A device function: its C++ name (overloads share it), its definition, the keys of helpers that it needs, and the
    text that replaces inline assembly in the emulator."""

    name: str
    cuda: str
    needs: tuple[str, ...] = ()
    host: str = ""


_WORD_OF_BYTES = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
_WIDE_FLOAT = {("float", 4): "float4", ("float", 2): "float2", ("double", 2): "double2"}


_SWAPPED = {"int": ("int", "int"), "float": ("int", "int"), "long long": ("unsigned long long", "long long")}
_SWAPPED["double"] = _SWAPPED["long long"]
"""Type -> the word that is swapped, and the signed integer of its size."""

_BITS = {"float": ("bits_to_float", "bits_to_int"), "double": ("bits_to_double", "bits_to_long")}


def atomic_helpers() -> dict[str, Helper]:
    found: dict[str, Helper] = {}
    for c in _SWAPPED:
        for kind, monoid in MONOIDS.items():
            if kind == ReductionKind.LOGADDEXP:
                continue
            if c not in _BITS or monoid.floats is not None:
                name = f"atomic_{kind.value}"
                body, needs = _body(monoid, c)
                text = f"void {name}({c}* p, {c} v) {{ {body} }}"
                found[f"{name}.{c}"] = Helper(name, f"static __device__ {text}", needs)
    return found


_COMBINE = {"arith.mulf": "", "arith.maximumf": "max_nan", "arith.minimumf": "min_nan", "arith.muli": "wrap_mul"}
"""The helper that computes an operation; `*` without."""


def _body(monoid: Monoid, c: str) -> tuple[str, tuple[str, ...]]:
    """Returns the statements of an atomic helper and the keys of those that it calls. The hardware only adds floats."""
    if monoid.floats is arith.AddfOp and c in _BITS:
        return "atomicAdd(p, v);", ()
    if monoid.atomic is not None and c not in _BITS:
        word = c if monoid.atomic_is_signed else "unsigned" if c == "int" else "unsigned long long"
        return f"atomic{monoid.atomic}(({word}*)p, ({word})v);", ()
    word, integer = _SWAPPED[c]
    combine = _COMBINE[monoid.combiner(f32 if c in _BITS else i32).name]
    to_value, to_bits = _BITS.get(c, ("", ""))
    old = f"{to_value}(({integer})seen)"
    new = f"{combine}({old}, v)" if combine else f"{old} * v"
    swap = f"atomicCAS(({word}*)p, seen, ({word}){to_bits}({new}))"
    needs = (*((f"{combine}.{c}",) if combine else ()), *_BITS.get(c, ()))
    loop = f"do {{ seen = old; old = {swap}; }} while (old != seen);"
    return f"{word} old = atomicCAS(({word}*)p, ({word})0, ({word})0), seen; {loop}", needs


def wgmma_key(columns: int, element: str, registers: bool, lhs_transposed: bool, rhs_transposed: bool) -> str:
    """Returns the key of a product: 64 x `columns` x 16 (8 of float), A in `registers` or in shared memory."""
    a = "r" if registers else "t" if lhs_transposed else "k"
    tf32 = "tf32_" if element == "float" else ""
    return f"wgmma_{tf32}{columns}{a}{'t' if rhs_transposed else 'k'}.{element}"


_FORMATS = {"bf16": 0, "f16": 1, "float": 2}
"""C type -> number of the format in `emu_factor` of the emulator."""


def wgmma_helper(key: str) -> Helper:
    name, element = key.split(".")
    columns, a, b = int(name[:-2].split("_")[-1]), name[-2], name[-1]
    wide = element == "float"
    count, first = columns // 2, columns // 2
    registers = a == "r"
    sources = 4 if registers else 1
    lhs = f"const {element}* a" if registers else "unsigned long long a"
    parameters = f"float (&d)[{count}], {lhs}, unsigned long long b, bool accumulate"
    d = ", ".join(f"%{i}" for i in range(count))
    u = ", ".join(f"%{first + i}" for i in range(sources))
    left = f"{{{u}}}" if registers else u
    at = first + sources
    modes = f"p, 1, 1, {int(b == 't')}" if registers else f"p, 1, 1, {int(a == 't')}, {int(b == 't')}"
    shape, word = ("k8", "tf32") if wide else ("k16", element)
    modes = "p, 1, 1" if wide else modes
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}{shape}.f32.{word}.{word}"
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    inputs = ", ".join(f'"r"(u[{i}])' for i in range(4)) if registers else '"l"(a)'
    cast = "  const unsigned* u = (const unsigned*)a;\n" if registers else ""
    check = "emu_wide(a, 4); " if registers else ""
    return Helper(
        name,
        f"static __device__ __forceinline__ void {name}({parameters}) {{\n{cast}"
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{at + 1}, 0;\\n"\n'
        f'               "{instruction} "\n'
        f'               "{{{d}}}, "\n'
        f'               "{left}, %{at}, {modes};\\n}}"\n'
        f"               : {outputs}\n"
        f'               : {inputs}, "l"(b), "r"((int)accumulate));\n}}',
        () if wide else (element,),
        f"static inline void {name}({parameters}) "
        f"{{ {check}emu_wgmma(d, {columns}, {'0, a' if registers else 'a, 0'}, b, accumulate, "
        f"{int(a == 't')}, {int(b == 't')}, {_FORMATS[element]}); }}",
    )


_COUNTS = (1, 2, 4)
"""Matrices that a warp moves at once."""

_RANKS = range(1, 6)
"""Dimensions of a TMA box."""


def _numbered(text: str, first: int, count: int, separator: str = ",") -> str:
    return separator.join(text.format(n) for n in range(first, first + count))


def _named(t: str) -> dict[str, str]:
    """A C type and the key of the helper that defines it, if any."""
    return {"t": t, "own": t if t in dtypes.STRUCTS else ""}


def _element(atom: MmaAtom) -> dict[str, str]:
    return _named(atom.c_type) | {"each": str(atom.word)}


def _matrices() -> list[dict[str, str]]:
    """`count` matrices, whose rows so many `lanes` name: element e of a lane's word is at `row` and `column`. `outputs`
    and `inputs` are the words as operands of assembly, `to` and `of` their numbers there. Only matrices of 16-bit
    elements can be transposed."""
    found: list[dict[str, str]] = []
    for atom in MMA_ATOMS:
        element = _element(atom)
        word = f"{element['each']} * (lane % 4) + e"
        for count in _COUNTS:
            for trans in ("_trans" if turned else "" for turned in atom.matrix_orders):
                row, column = (word, "lane / 4") if trans else ("lane / 4", word)
                mode = f"m8n8.x{count}{trans.replace('_', '.')}.shared.b16"
                found.append(element | {"trans": trans, "row": row, "column": column, "mode": mode})
                found[-1] |= {"count": str(count), "lanes": str(ROWS * count)}
                found[-1] |= {"outputs": _numbered('"=r"(u[{}])', 0, count, ", "), "to": _numbered("%{}", 0, count)}
                found[-1] |= {"inputs": _numbered('"r"(u[{}])', 0, count, ", "), "of": _numbered("%{}", 1, count)}
    return found


def _products() -> list[dict[str, str]]:
    """Products of a pair of blocks: `rows` are the parameters for the accumulator, two columns of `halves` rows, whose
    operands of assembly are `outputs`; `sums`, `left` and `right` are their numbers and those of the words of A and B.
    A word, of the C type `word`, is one operand, of which B has `deep`."""
    found: list[dict[str, str]] = []
    for atom in MMA_ATOMS:
        (a, b), halves, names = atom.registers, atom.m // ROWS, "cd"[: atom.m // ROWS]
        deep, left, wide = b // atom.word, a // atom.word, element_bytes(atom.element) > 4
        word, kind, total = ("double", "d", "double") if wide else ("unsigned", "r", "float")
        sums = [f'"+{"d" if wide else "f"}"({row}[{e}])' for row in names for e in range(2)]
        found.append(_element(atom) | {"shape": atom.shape, "instruction": atom.instruction})
        found[-1] |= {"rows": ", ".join(f"{total}* {row}" for row in names), "heads": ", ".join(names)}
        found[-1] |= {"outputs": ", ".join(sums), "sums": _numbered("%{}", 0, 2 * halves), "sum": total}
        found[-1] |= {"left": _numbered("%{}", 2 * halves, left), "right": _numbered("%{}", 2 * halves + left, deep)}
        words = [_numbered(f'"{kind}"({name}[{{}}])', 0, n, ", ") for name, n in (("u", left), ("v", deep))]
        found[-1] |= {"inputs": ", ".join(words), "word": word, "halves": str(halves), "deep": str(deep)}
        widen = "double r; __builtin_memcpy(&r, &x, 8); return r;"
        found[-1] |= {"widen": widen if wide else f"return emu_factor((unsigned)x, {_FORMATS[atom.c_type]});"}
    return found


def _boxes() -> list[dict[str, str]]:
    """Boxes of `rank` dimensions, whose coordinates come as in the IR, the fastest dimension last."""
    return [
        {
            "rank": str(rank),
            "ints": _numbered("int c{}", 0, rank, ", "),
            "at": _numbered("c{}", 0, rank, ", "),
            "reversed": ", ".join(f'"r"(c{d})' for d in reversed(range(rank))),
            **{f"from{first}": _numbered("%{}", first, rank, ", ") for first in (2, 3, 4)},
        }
        for rank in _RANKS
    ]


def _accesses() -> list[dict[str, str]]:
    """Wide accesses of `n` elements of the C type `t`: each is one access of the type `word`, aligned to its size."""
    return [
        _named(row.c)
        | {"n": str(n), "bytes": str(row.bytes), "word": _WIDE_FLOAT.get((row.c, n)) or _WORD_OF_BYTES[n * row.bytes]}
        for row in dtypes.DTYPES.values()
        for n in (2, 4, 8, 16)
        if row.c and n * row.bytes in _WORD_OF_BYTES
    ]


CASES = {"matrices": _matrices(), "products": _products(), "boxes": _boxes(), "accesses": _accesses()}


def _cases(text: str) -> list[dict[str, str]]:
    """Returns the cases of a section: a table of `CASES`, or `t = int; u = unsigned | t = long long; ...`."""
    if text in CASES:
        return CASES[text]
    parts = ([word.partition("=") for word in case.split(";") if word] for case in text.split(" | "))
    return [{name.strip(): value.strip() for name, _, value in words} for words in parts]


def read_helpers(text: str) -> dict[str, Helper]:
    """Returns the helpers of the sections of a text, as in functions.cuh, by key."""
    found: dict[str, Helper] = {}
    for section in re.split(r"^//// (?!host)", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        head, _, cases = head.partition(" for ")
        key, _, needs = head.partition(" needs ")
        # Comments may stand in front of a function and behind the section, for what follows.
        cuda, _, host = re.sub(r"^// .*\n", "", body, flags=re.MULTILINE).strip().partition("\n//// host\n")
        for words in _cases(cases):
            own, device, same = (Template(t).safe_substitute(words) for t in (key, cuda, host))
            inline = device.replace("__device__ __forceinline__", "inline").replace("__device__", "inline")
            same = inline[: inline.index("{")] + same if same.startswith("{") else same
            keys = tuple(k for n in needs.split("; ") if (k := Template(n).substitute(words)))
            found[own] = Helper(own.split(".")[0], device, keys, same)
    return found


HELPERS = read_helpers((Path(__file__).parent / "functions.cuh").read_text(encoding="utf-8"))
HELPERS.update(atomic_helpers())

TYPES = {
    "TensorMap": Helper("TensorMap", "struct __align__(64) TensorMap { unsigned long long words[16]; };"),
    **{c: Helper(c, f"struct {c} {{ {word} bits; }};") for c, word in dtypes.STRUCTS.items()},
}
"""Storage types, sixteen bits on which nothing is computed, and what the host passes. They come first in both texts."""

HELPERS.update(TYPES)


_ASSEMBLY = {helper.cuda: helper.host for helper in HELPERS.values() if helper.host}
"""CUDA text of helpers with inline assembly -> host text."""


def add_helpers(text: str) -> None:
    """Adds the helpers of another package, in sections as in functions.cuh."""
    helpers = read_helpers(text)
    HELPERS.update(helpers)
    _ASSEMBLY.update({helper.cuda: helper.host for helper in helpers.values() if helper.host})


def host_text_of(cuda: str) -> str | None:
    """Returns the host text of a helper, from its CUDA text; None for other texts."""
    product = re.search(r"(wgmma_(?:tf32_)?\d+[krt][kt])\(.*k\d+\.f32\.(bf16|f16|tf32)\.", cuda, re.DOTALL)
    if product is None:
        return _ASSEMBLY.get(cuda)
    helper = wgmma_helper(f"{product[1]}.{product[2].replace('tf32', 'float')}")
    return helper.host if helper.cuda == cuda else None


def helper_names() -> frozenset[str]:
    """Returns every C++ name that a helper may have."""
    wgmma = {f"wgmma_{n}{a}{b}" for n in range(8, 257, 8) for a in "krt" for b in "kt"}
    tf32 = {f"wgmma_tf32_{n}{a}k" for n in range(8, 257, 8) for a in "kr"}
    return frozenset({h.name for h in HELPERS.values()} | wgmma | tf32)
