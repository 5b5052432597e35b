"""The text of a module at the kernel level, and of one kernel while it grows: lines, names, places of values.

The text of a module has two parts, each under a line of its own: `// --- helpers` and `// --- kernels`. Names are
minted; names and attributes of the input appear in comments only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, NoneAttr, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel import FuncOp, SharedOp, is_written, kernel_names, symbols_in, tensor_maps
from ...dialects.payload import CastOp, ConstantOp, ExtentOp, constant_of, element_type
from ...dialects.shapes.extents import Extent, ExtentsAttr, SymbolAttr, extents_of, most
from ...dialects.shapes.ranges import Ranges
from ...dialects.support.locations import blamed, line_text, location_of, refused
from ...errors import BorderError, CompileError
from ..dtypes import STRUCTS
from .device import HELPERS, TYPES, Helper, helper_names, wgmma_helper
from .expressions import Expr, Register, Scalars, add, bare, c_size, c_type, terms
from .ordering import is_view, linear_steps, registers

HELPERS_MARK = "// --- helpers\n"
KERNELS_MARK = "// --- kernels\n"
HOST_MARK = "// --- host program\n"


def folded(text: str) -> str:
    """Returns a text with its kernels, and the number of lines in place of the helpers and the host program."""
    stamp, _, rest = text.partition(HELPERS_MARK)
    helpers, _, rest = rest.partition(KERNELS_MARK)
    kernels, _, host = rest.partition(HOST_MARK)
    parts = [stamp, _fold(HELPERS_MARK, helpers), KERNELS_MARK, kernels, _fold(HOST_MARK, host)]
    return "".join(parts)


def _fold(mark: str, section: str) -> str:
    lines = len(section.strip().splitlines())
    return f"{mark.rstrip()}: {lines} lines, shown by --helpers\n" if lines else ""


def text_of_kernels(
    module: ModuleOp, section: Callable[[set[str]], str], print_kernel: Callable[[FuncOp, str], tuple[str, set[str]]]
) -> str:
    """Returns the text of a module: a section of helpers, then the kernels. `print_kernel` returns the text of a kernel
    and its helpers. A CompileError names the kernel and its place if it names nothing closer."""
    names = kernel_names(module)
    helpers, kernels = set[str](), list[str]()
    for op in module.body.ops:
        if not isinstance(op, FuncOp):
            _check_host(op)
            continue
        with blamed(op):
            text, used = print_kernel(op, names[op.sym_name.data])
        kernels.append(text)
        helpers |= used
    return HELPERS_MARK + section(helpers) + "\n" + KERNELS_MARK + "\n".join(kernels)


def helper_section(keys: Iterable[str]) -> str:
    """Returns the definitions of the helpers in `keys` and of those that they need. Types come first, helpers that need
    another one last."""
    helpers, todo = dict[str, Helper](), [*keys]
    while todo:
        if (key := todo.pop()) not in helpers:
            helpers[key] = HELPERS.get(key) or wgmma_helper(key)
            todo += helpers[key].needs
    order = sorted(helpers, key=lambda k: (k not in TYPES, not TYPES.keys() >= {*helpers[k].needs}, k))
    return "".join(f"{helpers[key].cuda}\n" for key in order)


_HOST = ("payload.constant", "scf.for", "scf.yield")
"""What loops of launches consist of besides launches."""


def _check_host(function: Operation) -> None:
    """Raises BorderError for anything but kernels and host functions that launch them: the text would miss it."""
    for op in function.walk():
        if op.dialect_name() not in ("kernel", "func") and op.name not in _HOST:
            advice = "run tensor-to-loop,loop-to-tile,tile-to-kernel on a program of the tensor level"
            raise refused(op, f"is not of the kernel level: {advice}", BorderError)


_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else
enum explicit export extern false float for friend goto half if inline int long mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq linux unix
main std asm_ smem i j m slice max min abs llabs printf assert malloc free memcpy memset
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor fma
fmax fmin fmod frexp hypot isfinite isinf isnan j0 j1 jn ldexp lgamma log log10 log1p log2 logb lrint lround modf nan
nearbyint nextafter norm pow remainder rint round rsqrt scalbn signbit sin sincos sinh sqrt tan tanh tgamma trunc y0 y1
yn normcdf cospi sinpi erfcx erfinv rcbrt rhypot clock clock64 trap brkpt index
""".split()

_VECTORS = "char uchar short ushort int uint long ulong longlong ulonglong float double dim".split()

RESERVED = (
    frozenset(
        [*_WORDS, *(w + "f" for w in _WORDS), *_VECTORS, *(f"{v}{n}" for v in _VECTORS for n in (1, 2, 3, 4)), "size_t"]
    )
    | helper_names()
)
"""Words that mean something in CUDA C++, or that the printer itself uses."""


def sanitise(text: str) -> str:
    """Returns `text` for a `//` comment: one line of plain ASCII, with no way out of the comment, not too long."""
    plain = re.sub(r"[?]{2,}", "?", re.sub(r"[^ -~]|\\|\*/|/[*/]", " ", text))
    plain = " ".join(plain.split())
    return plain if len(plain) <= 200 else plain[:197] + "..."


class Names:
    """Hands out identifiers, each once. They match `[a-z][a-z0-9_]*` and are no reserved words."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def mint(self, hint: str | None, default: str = "t") -> str:
        """Returns a new name like `hint`; `default` (a legal name) where no letter of the hint is legal."""
        stem = re.sub(r"[^a-z0-9]+", "_", (hint or "").lower())
        stem = stem.lstrip("0123456789_")[:32].rstrip("_") or default
        name, number = stem, 0
        while name in self._taken or name in RESERVED:
            number += 1
            name = f"{stem}_{number}" if stem[-1].isdigit() else f"{stem}{number}"
        self._taken.add(name)
        return name


_OPERATIONS = {
    "sum": "arith.addf arith.addi math.fma",
    "diff": "arith.subf arith.subi",
    "prod": "arith.mulf arith.muli",
    "quot": "arith.divf",
    "neg": "arith.negf",
    "hi": "arith.maximumf arith.maxnumf arith.maxsi",
    "lo": "arith.minimumf arith.minnumf arith.minsi",
    "e": "math.exp math.exp2",
    "ln": "math.log",
    "inv": "math.rsqrt",
    "root": "math.sqrt",
    "size": "math.absf",
    "sel": "payload.select",
    "acc": "scf.for kernel.outer_fma kernel.mma kernel.accumulators",
    "r": "kernel.shuffle kernel.shuffle_xor kernel.shuffle_registers kernel.permute_registers kernel.indices "
    "payload.cast",
}
WORDS = {name: word for word, names in _OPERATIONS.items() for name in names.split()}
"""A word for the result of an operation, by the operation's name."""

FOLDED = {"add": "total", "mul": "product", "max": "top", "min": "least", "and": "all", "or": "any", "xor": "parity"}


def hint_of(value: SSAValue) -> str:
    """Returns the name of `value`, or a word for its operation."""
    if value.name_hint is not None:
        return value.name_hint
    op, element = value.owner, element_type(value.type)
    if not isinstance(op, Operation):
        return "v"
    if element == i1 or isinstance(element, IndexType):
        return "is" if element == i1 else "n" if isinstance(op, CastOp) else "at"
    if isinstance(op, kernel.LoadOp | kernel.LdMatrixOp):
        return f"{op.memory.name_hint or 'mem'}_in"
    if isinstance(op, kernel.ReduceRegistersOp):
        return FOLDED[op.kind.data.value]
    return WORDS.get(op.name, "v")


WIDE = 2**30
"""Buffers with more elements than this are indexed with 64 bits."""


@dataclass(frozen=True)
class Place:
    """The variable of a value, or an array of `size` > 1. Arrays and `mutable` variables may be overwritten."""

    name: str
    size: int
    mutable: bool = False

    def __getitem__(self, register: Register) -> Expr:
        index = bare(register) if isinstance(register, str) and register.startswith("(") else register
        return Expr(self.name if self.size == 1 else f"{self.name}[{index}]")


class Writer:
    """The text of one kernel, and the state of printing it."""

    ids = {"block": "blockIdx.x", "thread": "threadIdx.x", "lane": "threadIdx.x % 32", "warp": "threadIdx.x / 32"}

    UNIFORM_WARP = "__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)"
    """The number of the warp, which the compiler keeps in a uniform register in this form. Descriptors of `wgmma` that
    depend on it need no moves into uniform registers then. It takes a register where it is not recomputed, so it is for
    kernels whose threads compute operands of products, and issue more instructions than tensor cores wait for."""

    def __init__(self, func: kernel.FuncOp) -> None:
        self.func = func
        self.lines: list[str] = []
        self.names = Names()
        self.ranges = Ranges(func)
        self.places: dict[SSAValue, Place] = {}
        self.helpers = set[str]()
        self.use = self.helpers.add
        self.index = index_type(func)
        self.scalars = Scalars(self.index, self.use, self.ranges)
        self.sizes: dict[SymbolAttr, Expr] = {}
        self.preferred: dict[SSAValue, Place] = {}
        """Places of carried values, into which results that a loop yields are computed."""
        self._arrays: dict[str, tuple[int, int]] = {}
        """Line of the declaration and alignment of every array."""
        self._depth = 1
        self._scopes: list[dict[str, Expr]] = [{}]
        self._place_shown: str | None = None
        if any(isinstance(op, kernel.WgmmaOp) and op.lhs_offset is None for op in func.walk()):
            self.ids = {**self.ids, "warp": self.UNIFORM_WARP}

    def line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Generator[None]:
        """A braced block under the line `head {`."""
        self.line(f"{head} {{")
        self._depth += 1
        self._scopes.append({})
        yield
        self._scopes.pop()
        self._depth -= 1
        self.line("}")

    @contextmanager
    def registers_loop(self, size: int, step: int = 1) -> Generator[Register]:
        """An unrolled loop over register numbers; no loop if there is one step."""
        if size == step:
            yield 0
            return
        self.unroll()
        with self.braces(f"for (int i = 0; i < {size}; {'++i' if step == 1 else f'i += {step}'})"):
            yield "i"

    def unroll(self, times: str = "", pad: str = "") -> None:
        self.line(f"{pad}#pragma unroll{times}")

    def unrolled(self, *loops: tuple[str, int]) -> str:
        """Prints heads of unrolled loops around the next line, by variable and size; returns its indentation."""
        pad = ""
        for variable, size in loops:
            if size > 1:
                self.unroll(pad=pad)
                self.line(f"{pad}for (int {variable} = 0; {variable} < {size}; ++{variable})")
                pad += "  "
        return pad

    def comment_place(self, op: Operation) -> None:
        """Prints a comment with the source line of `op`, where it changes."""
        place = line_text(location_of(op))
        if place is None or op.results and all(isinstance(r.type, IndexType) for r in op.results):
            return
        if place != self._place_shown:
            self._place_shown = place
            self.line(f"// {sanitise(place)}")

    def type_of(self, value: SSAValue | Attribute) -> str:
        """Returns the C++ type of one register of a value, and notes the definition of a storage type."""
        name = c_type(value.type if isinstance(value, SSAValue) else value, self.index)
        if name in STRUCTS:
            self.use(name)
        return name

    def named(self, make: Expr, hint: str) -> None:
        """Declares a constant for an index expression that occurs often, once in each scope; `find` returns it."""
        if self.find(make.text) is None:
            name = self.names.mint(hint)
            self.line(f"const {self.index} {name} = {make.text};")
            self._scopes[-1][make.text] = Expr(name)

    def find(self, text: str) -> Expr | None:
        """Returns the constant for an index expression, if it is in scope."""
        return next((scope[text] for scope in reversed(self._scopes) if text in scope), None)

    def name(self, value: SSAValue, default: str) -> str:
        """Returns a new name, which is the place of the scalar or pointer `value`."""
        name = self.names.mint(value.name_hint, default)
        self.places[value] = Place(name, 1)
        return name

    def declare(self, value: SSAValue) -> Place:
        """Returns the place for `value`: the preferred one, or a new array that is declared here, or a new scalar that
        is declared where it is computed."""
        place = self.preferred.get(value)
        if place is None:
            place = Place(self.names.mint(hint_of(value)), registers(value))
            if place.size > 1:
                self.array(place, value)
        self.places[value] = place
        return place

    def define(self, value: SSAValue, text: Callable[[Register], str]) -> None:
        """Declares `value`, and sets each of its registers to the `text` for it."""
        place = self.declare(value)
        with self.registers_loop(place.size) as r:
            is_new = place.size == 1 and value not in self.preferred
            head = f"const {self.type_of(value)} {place.name}" if is_new else place[r].text
            self.line(f"{head} = {text(r)};")

    def array(self, place: Place, value: SSAValue, start: str = "", head: str = "") -> None:
        """Declares the array `place` of registers of the type of `value`, after `head`, initialised with `start`."""
        self._arrays[place.name] = len(self.lines), c_size(value.type)
        self.line(f"{head}{self.type_of(value)} {place.name}[{place.size}]{start};")

    def pointer(self, array: str, index: str, size: int) -> str:
        """Returns a pointer to element `index` of an array of registers for accesses of `size` bytes. All wide accesses
        of registers are printed through it, so arrays are aligned to the widest access."""
        number, aligned = self._arrays[array]
        if size > aligned:
            self._arrays[array] = number, size
            self.lines[number] = re.sub(r"^( *)(__align__\(\d+\) )?", rf"\1__align__({size}) ", self.lines[number])
        return array if index in ("", "0") else f"&{array}[{index}]"

    def start(self, value: SSAValue, text: str) -> Place:
        """Returns a new variable for `value`, set to `text`, that may be overwritten later."""
        place = Place(self.names.mint(hint_of(value)), 1, True)
        self.line(f"{self.type_of(value)} {place.name} = {text};")
        self.places[value] = place
        return place

    # -- reading values

    def read(self, value: SSAValue, register: Register = 0) -> Expr:
        """Returns the C++ of one register of a value."""
        place = self.places.get(value)
        if place is not None:
            return place[register]
        op = value.owner
        if not isinstance(op, Operation) or not is_view(op):
            raise CompileError("a value is used before it is computed", operator=getattr(op, "name", None))
        if (view := _VIEWS.get(type(op))) is not None:
            return view(self, op, register)
        return self.scalars.print(op, [self.read(v, register) for v in op.operands])

    def size(self, extent: Extent) -> Expr:
        return Expr(str(extent)) if isinstance(extent, int) else self.sizes[extent]


def _read_constant(writer: Writer, op: ConstantOp | arith.ConstantOp, register: Register) -> Expr:
    if (value := constant_of(op.result)) is None:
        raise CompileError(f"constant {op.value}: only scalars", operator=op.name)
    return writer.scalars.literal(value, op.result.type)


def _read_shuffled(writer: Writer, op: kernel.ShuffleRegistersOp, register: Register) -> Expr:
    if registers(op.source) == 1:
        return writer.read(op.source)
    steps = linear_steps(op.registers)
    assert steps is not None
    text = add(terms(register, steps[1]), Expr(str(steps[0]))).text
    return writer.read(op.source, int(text) if text.isdigit() else text)


def _read_indices(writer: Writer, op: kernel.IndicesOp, register: Register) -> Expr:
    return add(writer.read(op.origin), terms(register, op.steps.get_values()))


def _read_shared(writer: Writer, op: kernel.SharedOp, register: Register) -> Expr:
    raise CompileError("shared memory has no place yet: run kernel-allocate-shared", operator=op.name)


_VIEWS: dict[type[Operation], Callable[[Writer, Any, Register], Expr]] = {
    ConstantOp: _read_constant,
    arith.ConstantOp: _read_constant,
    ExtentOp: lambda writer, op, _: writer.scalars.cast(writer.size(op.symbol), IndexType(), op.result.type),
    kernel.SplatOp: lambda writer, op, _: writer.read(op.source),
    kernel.ExtractOp: lambda writer, op, _: writer.read(op.source, op.register.data),
    kernel.ShuffleRegistersOp: _read_shuffled,
    kernel.IndicesOp: _read_indices,
    kernel.SharedOp: _read_shared,
}
"""Views that are no payload operations: how a register of their result is read."""


def index_type(func: kernel.FuncOp) -> str:
    """Returns the C++ type of indices and sizes in a kernel. Large buffers need 64 bits, and so do indices of 64 bits
    that are read from memory: cut off at 32 bits one could look as if it were inside."""
    large = any(_elements(a.type) > WIDE for a in func.body.block.args)
    return "long long" if large or any(_is_read(op) for op in func.walk() if isinstance(op, CastOp)) else "int"


def _is_read(op: CastOp) -> bool:
    """Returns true if `op` makes an index of an integer of 64 bits that follows from the contents of a buffer."""
    if element_type(op.result.type) != IndexType() or element_type(op.operand.type) != i64:
        return False
    seen, left = set[SSAValue](), [op.operand]
    while left:
        value = left.pop()
        if value in seen or element_type(value.type) == IndexType():
            continue
        seen.add(value)
        if not isinstance(value.owner, Operation):
            return True
        if isinstance(value.owner, kernel.LoadOp) and not kernel.is_shared(value.owner.memory.type):
            return True
        left += value.owner.operands
    return False


def _elements(t: Attribute) -> int:
    return prod(map(most, extents_of(t))) if isinstance(t, MemRefType) else 1  # pyright: ignore[reportUnknownArgumentType]


def header(func: FuncOp) -> list[str]:
    shared = func.shared.data if func.shared is not None else 0
    grid = " * ".join(map(str, func.grid_shape))
    shape = f"{grid} {'block' if func.threads > 1 else 'task'}" + ("" if grid == "1" else "s")
    shape += f" of {func.threads} threads" if func.threads > 1 else ""
    shape += f" in clusters of {func.cluster_size}" if func.cluster_size > 1 else ""
    lines = [sanitise(f"{func.sym_name.data}: {shape}" + (f", {shared} bytes of shared memory" if shared else ""))]
    lines += [sanitise(f"{key} = {value}") for key, value in sorted(func.attributes.items())]
    return [f"// {line}" for line in lines]


def parameters(writer: Writer, func: FuncOp) -> list[str]:
    """Returns the parameters of a kernel: buffers, tensor maps and sizes."""
    texts: list[str] = []
    for argument in func.body.block.args:
        memory_extents(argument.type)
        pointer = f"{'' if is_written(argument) else 'const '}{writer.type_of(argument)}*"
        texts.append(f"{pointer} __restrict__ {writer.name(argument, 'p')}")
    for op in tensor_maps(func):
        writer.use("TensorMap")
        texts.append(f"const __grid_constant__ TensorMap {writer.name(op.result, 'boxes')}")
    for symbol in symbols_in(func):
        name = writer.names.mint(symbol.hint, "n")
        writer.sizes[symbol] = Expr(name)
        texts.append(f"{writer.index} {name}")
    return texts


def memory_extents(t: Attribute) -> tuple[Extent, ...]:
    """Returns the extents of a dense memref. Raises CompileError for any other."""
    assert isinstance(t, MemRefType)
    if not isinstance(t.layout, NoneAttr | ExtentsAttr):
        raise CompileError(f"{t} is no dense memory")
    if isinstance(t.element_type, IndexType):
        raise CompileError(f"{t}: an index has no size in memory, store i32 or i64")
    return extents_of(t)  # pyright: ignore[reportUnknownArgumentType]


def declare_shared(writer: Writer, buffers: Iterable[SharedOp], memory: str) -> None:
    """Declares the buffers in shared memory as pointers into all of it, the array `memory`."""
    for op in buffers:
        if op.offset is None:
            raise refused(op, "shared memory has no place yet: run kernel-allocate-shared", CompileError)
        c, start = writer.type_of(op.result), f"({memory} + {op.offset.data})" if op.offset.data else memory
        writer.line(f"{c}* const {writer.name(op.result, 'buf')} = ({c}*){start};")
