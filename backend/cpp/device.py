"""Helpers: the device functions that generated kernels call. Only they contain inline assembly and intrinsics.

Most helpers are sections of `functions.cuh`. A section is a template: it is instantiated once for each row of a table
in `CASES`, which assigns a text to each `$word` of the section. Functions of this module generate the many variants of
helpers for atomics and `wgmma`.

A helper with inline assembly also has a host text: plain C++ with the same meaning, with which the emulator replaces
it. The emulator defines the CUDA intrinsics that other helpers call. A module's text contains only the helpers that its
kernels use.
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
    """Device function or storage type.

    Attributes:
        name: C++ name, which overloads share.
        cuda: definition.
        needs: keys of the helpers that it calls.
        host: definition for the emulator, if `cuda` has inline assembly.
    """

    name: str
    cuda: str
    needs: tuple[str, ...] = ()
    host: str = ""


_WORD_OF_BYTES = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
"""Width of an access in bytes -> C++ type of one access of that width."""

_WIDE_FLOAT = {("float", 4): "float4", ("float", 2): "float2", ("double", 2): "double2"}
"""(element type, number of elements) -> C++ vector type to use instead of the integers of `_WORD_OF_BYTES`."""


_CAS_TYPES = {"int": ("int", "int"), "float": ("int", "int"), "long long": ("unsigned long long", "long long")}
_CAS_TYPES["double"] = _CAS_TYPES["long long"]
"""C type -> type that `atomicCAS` exchanges instead, and the signed integer type of the same size."""

_BIT_CASTS = {"float": ("bits_to_float", "bits_to_int"), "double": ("bits_to_double", "bits_to_long")}
"""C type -> helpers that convert from and to the bits of a float."""


def atomic_helpers() -> dict[str, Helper]:
    """Returns the helpers of `kernel.atomic_rmw` for all types and reductions, by key such as `atomic_add.float`."""
    helpers: dict[str, Helper] = {}
    for c in _CAS_TYPES:
        for kind, monoid in MONOIDS.items():
            if kind == ReductionKind.LOGADDEXP:
                continue
            if c not in _BIT_CASTS or monoid.floats is not None:
                name = f"atomic_{kind.value}"
                body, needs = _atomic_body(monoid, c)
                text = f"void {name}({c}* p, {c} v) {{ {body} }}"
                helpers[f"{name}.{c}"] = Helper(name, f"static __device__ {text}", needs)
    return helpers


_COMBINE_HELPERS = {
    "arith.mulf": "",
    "arith.maximumf": "max_nan",
    "arith.minimumf": "min_nan",
    "arith.muli": "wrap_mul",
}
"""Operation -> name of the helper that computes it; "" for the operator `*`."""


def _atomic_body(monoid: Monoid, c: str) -> tuple[str, tuple[str, ...]]:
    """Returns the body of an atomic helper for the C type `c`, and the keys of the helpers that it calls.

    CUDA has atomics for integers and for the addition of floats. The others are loops around `atomicCAS`.
    """
    if monoid.floats is arith.AddfOp and c in _BIT_CASTS:
        return "atomicAdd(p, v);", ()
    if monoid.atomic is not None and c not in _BIT_CASTS:
        word = c if monoid.atomic_is_signed else "unsigned" if c == "int" else "unsigned long long"
        return f"atomic{monoid.atomic}(({word}*)p, ({word})v);", ()
    word, integer = _CAS_TYPES[c]
    combine = _COMBINE_HELPERS[monoid.combiner(f32 if c in _BIT_CASTS else i32).name]
    to_value, to_bits = _BIT_CASTS.get(c, ("", ""))
    old = f"{to_value}(({integer})seen)"
    new = f"{combine}({old}, v)" if combine else f"{old} * v"
    swap = f"atomicCAS(({word}*)p, seen, ({word}){to_bits}({new}))"
    needs = (*((f"{combine}.{c}",) if combine else ()), *_BIT_CASTS.get(c, ()))
    loop = f"do {{ seen = old; old = {swap}; }} while (old != seen);"
    return f"{word} old = atomicCAS(({word}*)p, ({word})0, ({word})0), seen; {loop}", needs


def wgmma_key(columns: int, element: str, registers: bool, lhs_transposed: bool, rhs_transposed: bool) -> str:
    """Returns the key of the helper for one `wgmma` instruction, of shape m64nNk16, or k8 for float.

    Args:
        columns: N.
        element: C type of the operands' elements.
        registers: whether A is in registers, and not in shared memory.
        lhs_transposed: whether A is transposed in shared memory.
        rhs_transposed: whether B is transposed in shared memory.
    """
    a = "r" if registers else "t" if lhs_transposed else "k"
    tf32 = "tf32_" if element == "float" else ""
    return f"wgmma_{tf32}{columns}{a}{'t' if rhs_transposed else 'k'}.{element}"


_OPERAND_FORMATS = {"bf16": 0, "f16": 1, "float": 2}
"""C type -> number of the operand format in the emulator's `emu_factor`."""


def wgmma_helper(key: str) -> Helper:
    """Returns the helper for a key of `wgmma_key`."""
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
    lhs_operand = f"{{{u}}}" if registers else u
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
        f'               "{lhs_operand}, %{at}, {modes};\\n}}"\n'
        f"               : {outputs}\n"
        f'               : {inputs}, "l"(b), "r"((int)accumulate));\n}}',
        () if wide else (element,),
        f"static inline void {name}({parameters}) "
        f"{{ {check}emu_wgmma(d, {columns}, {'0, a' if registers else 'a, 0'}, b, accumulate, "
        f"{int(a == 't')}, {int(b == 't')}, {_OPERAND_FORMATS[element]}); }}",
    )


_MATRIX_COUNTS = (1, 2, 4)
"""Numbers of 8×8 matrices that one `ldmatrix` or `stmatrix` instruction can move."""

_TMA_RANKS = range(1, 6)
"""Possible numbers of dimensions of a TMA box."""


def _numbered(text: str, first: int, count: int, separator: str = ",") -> str:
    """Returns `count` copies of `text`, with consecutive numbers from `first` in place of `{}`."""
    return separator.join(text.format(n) for n in range(first, first + count))


def _named(t: str) -> dict[str, str]:
    """Returns the words `$t`, a C type, and `$struct`, the key of the helper that defines the type, or ""."""
    return {"t": t, "struct": t if t in dtypes.STRUCTS else ""}


def _element(atom: MmaAtom) -> dict[str, str]:
    """Returns the words of the operand type of an instruction; `$each` is the number of elements in a register."""
    return _named(atom.c_type) | {"each": str(atom.word)}


def _matrix_cases() -> list[dict[str, str]]:
    """Returns the words of the `ldmatrix` and `stmatrix` helpers.

    - `$count`: number of matrices. `$lanes`: number of lanes that provide row addresses, one lane for each row.
    - `$row`, `$column`: position of element e of a lane's register in its matrix, for the host text.
    - `$outputs`, `$inputs`: the registers as operands of the assembly. `$to`, `$of`: their numbers there.
    - `$trans`, `$mode`: suffix of the helper and of the instruction. Only 16-bit elements can be transposed.
    """
    cases: list[dict[str, str]] = []
    for atom in MMA_ATOMS:
        element = _element(atom)
        word = f"{element['each']} * (lane % 4) + e"
        for count in _MATRIX_COUNTS:
            for trans in ("_trans" if turned else "" for turned in atom.matrix_orders):
                row, column = (word, "lane / 4") if trans else ("lane / 4", word)
                mode = f"m8n8.x{count}{trans.replace('_', '.')}.shared.b16"
                cases.append(element | {"trans": trans, "row": row, "column": column, "mode": mode})
                cases[-1] |= {"count": str(count), "lanes": str(ROWS * count)}
                cases[-1] |= {"outputs": _numbered('"=r"(u[{}])', 0, count, ", "), "to": _numbered("%{}", 0, count)}
                cases[-1] |= {"inputs": _numbered('"r"(u[{}])', 0, count, ", "), "of": _numbered("%{}", 1, count)}
    return cases


def _mma_cases() -> list[dict[str, str]]:
    """Returns the words of the `mma` helpers, one helper for each instruction.

    - `$rows`, `$heads`: parameters for the accumulator, and their names. Each points to two columns of a row.
    - `$halves`: number of these rows. `$sum`: C type of the accumulator.
    - `$word`: C type of one operand register of A and B. `$deep`: number of these registers of B.
    - `$outputs`, `$inputs`: operands of the assembly. `$sums`, `$left`, `$right`: their numbers for the accumulator,
      A and B.
    - `$widen`: C++ that converts an operand element to the accumulator's type, for the host text.
    """
    cases: list[dict[str, str]] = []
    for atom in MMA_ATOMS:
        (a, b), halves, names = atom.registers, atom.m // ROWS, "cd"[: atom.m // ROWS]
        deep, lhs_words, wide = b // atom.word, a // atom.word, element_bytes(atom.element) > 4
        word, kind, total = ("double", "d", "double") if wide else ("unsigned", "r", "float")
        sums = [f'"+{"d" if wide else "f"}"({row}[{e}])' for row in names for e in range(2)]
        cases.append(_element(atom) | {"shape": atom.shape, "instruction": atom.instruction})
        cases[-1] |= {"rows": ", ".join(f"{total}* {row}" for row in names), "heads": ", ".join(names)}
        cases[-1] |= {"outputs": ", ".join(sums), "sums": _numbered("%{}", 0, 2 * halves), "sum": total}
        cases[-1] |= {
            "left": _numbered("%{}", 2 * halves, lhs_words),
            "right": _numbered("%{}", 2 * halves + lhs_words, deep),
        }
        words = [_numbered(f'"{kind}"({name}[{{}}])', 0, n, ", ") for name, n in (("u", lhs_words), ("v", deep))]
        cases[-1] |= {"inputs": ", ".join(words), "word": word, "halves": str(halves), "deep": str(deep)}
        widen = "double r; __builtin_memcpy(&r, &x, 8); return r;"
        cases[-1] |= {"widen": widen if wide else f"return emu_factor((unsigned)x, {_OPERAND_FORMATS[atom.c_type]});"}
    return cases


def _tma_cases() -> list[dict[str, str]]:
    """Returns the words of the TMA helpers: `$rank` is the number of dimensions.

    Helpers take the coordinates in the order of the IR, contiguous dimension last; the assembly has the reverse order.

    - `$ints`: parameters for the coordinates. `$at`: their names.
    - `$reversed`: the coordinates as operands of the assembly.
    - `$from2`, `$from3`, `$from4`: numbers of these operands in the assembly, if the first one is number 2, 3 or 4.
    """
    return [
        {
            "rank": str(rank),
            "ints": _numbered("int c{}", 0, rank, ", "),
            "at": _numbered("c{}", 0, rank, ", "),
            "reversed": ", ".join(f'"r"(c{d})' for d in reversed(range(rank))),
            **{f"from{first}": _numbered("%{}", first, rank, ", ") for first in (2, 3, 4)},
        }
        for rank in _TMA_RANKS
    ]


def _access_cases() -> list[dict[str, str]]:
    """Returns the words of the helpers for wide accesses: `$n` elements of the C type `$t`, accessed as one `$word`."""
    return [
        _named(row.c)
        | {"n": str(n), "bytes": str(row.bytes), "word": _WIDE_FLOAT.get((row.c, n)) or _WORD_OF_BYTES[n * row.bytes]}
        for row in dtypes.DTYPES.values()
        for n in (2, 4, 8, 16)
        if row.c and n * row.bytes in _WORD_OF_BYTES
    ]


CASES = {"matrices": _matrix_cases(), "mma": _mma_cases(), "tma": _tma_cases(), "accesses": _access_cases()}
"""Name of a table in functions.cuh -> its rows: `$word` -> text."""


def _cases(text: str) -> list[dict[str, str]]:
    """Returns the rows of a table: one of `CASES`, or a literal such as `t = int; u = unsigned | t = long long`."""
    if text in CASES:
        return CASES[text]
    parts = ([word.partition("=") for word in case.split(";") if word] for case in text.split(" | "))
    return [{name.strip(): value.strip() for name, _, value in words} for words in parts]


def read_helpers(text: str) -> dict[str, Helper]:
    """Returns the helpers in a text of the format of functions.cuh, by key."""
    helpers: dict[str, Helper] = {}
    for section in re.split(r"^//// (?!host)", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        head, _, cases = head.partition(" for ")
        key, _, needs = head.partition(" needs ")
        # Comments are not printed. A comment at the end of a section introduces the following sections.
        cuda, _, host = re.sub(r"^// .*\n", "", body, flags=re.MULTILINE).strip().partition("\n//// host\n")
        for words in _cases(cases):
            name, device, host_text = (Template(t).safe_substitute(words) for t in (key, cuda, host))
            inline = device.replace("__device__ __forceinline__", "inline").replace("__device__", "inline")
            host_text = inline[: inline.index("{")] + host_text if host_text.startswith("{") else host_text
            keys = tuple(k for n in needs.split("; ") if (k := Template(n).substitute(words)))
            helpers[name] = Helper(name.split(".")[0], device, keys, host_text)
    return helpers


HELPERS = read_helpers((Path(__file__).parent / "functions.cuh").read_text(encoding="utf-8"))
HELPERS.update(atomic_helpers())
"""Key of a helper -> the helper, without those of `wgmma_helper`."""

TYPES = {
    "TensorMap": Helper("TensorMap", "struct __align__(64) TensorMap { unsigned long long words[16]; };"),
    **{c: Helper(c, f"struct {c} {{ {word} bits; }};") for c, word in dtypes.STRUCTS.items()},
}
"""Types that helpers and kernels use: 16-bit floats as bits without arithmetic, and the TMA descriptor."""

HELPERS.update(TYPES)


_ASSEMBLY = {helper.cuda: helper.host for helper in HELPERS.values() if helper.host}
"""CUDA definition of a helper with inline assembly -> its host text."""


def add_helpers(text: str) -> None:
    """Adds helpers of another package. `text` has the format of functions.cuh."""
    helpers = read_helpers(text)
    HELPERS.update(helpers)
    _ASSEMBLY.update({helper.cuda: helper.host for helper in helpers.values() if helper.host})


def host_text_of(cuda: str) -> str | None:
    """Returns the host text of the helper whose CUDA definition is `cuda`, or None if it has none."""
    product = re.search(r"(wgmma_(?:tf32_)?\d+[krt][kt])\(.*k\d+\.f32\.(bf16|f16|tf32)\.", cuda, re.DOTALL)
    if product is None:
        return _ASSEMBLY.get(cuda)
    helper = wgmma_helper(f"{product[1]}.{product[2].replace('tf32', 'float')}")
    return helper.host if helper.cuda == cuda else None


def helper_names() -> frozenset[str]:
    """Returns the C++ names of all helpers."""
    wgmma = {f"wgmma_{n}{a}{b}" for n in range(8, 257, 8) for a in "krt" for b in "kt"}
    tf32 = {f"wgmma_tf32_{n}{a}k" for n in range(8, 257, 8) for a in "kr"}
    return frozenset({h.name for h in HELPERS.values()} | wgmma | tf32)
