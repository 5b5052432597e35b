"""Printing of whole modules at the kernel level, and `Writer`, the state of printing one kernel.

The text of a module has two sections: `// --- helpers` with the device functions that kernels call, then
`// --- kernels`. An SSA value is printed as a C++ variable, or as an array if a thread holds several registers of it
(elements of a vector or tile, numbered from 0).
All C++ identifiers are made by `Names`. Names and attributes of the IR appear in comments only, so that IR from an
untrusted source cannot inject code.
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
from ...dialects.support.printing import Owners, PrintedText
from ...errors import BorderError, CompileError
from ..dtypes import STRUCTS
from .device import HELPERS, TYPES, Helper, helper_names, wgmma_helper
from .expressions import Expr, Register, Scalars, add, c_size, c_type, terms, without_parentheses
from .ordering import is_view, linear_steps, registers

HELPERS_MARK = "// --- helpers\n"
KERNELS_MARK = "// --- kernels\n"
HOST_MARK = "// --- host program\n"
"""First lines of the sections of a module's text. Only C++ for CPUs has a host program."""


def fold_sections(text: str) -> str:
    """Returns a module's text in which the number of lines replaces the helpers and the host program."""
    stamp, _, after_stamp = text.partition(HELPERS_MARK)
    helpers, _, after_helpers = after_stamp.partition(KERNELS_MARK)
    kernels, _, host = after_helpers.partition(HOST_MARK)
    parts = [stamp, _fold_section(HELPERS_MARK, helpers), KERNELS_MARK, kernels, _fold_section(HOST_MARK, host)]
    return "".join(parts)


def _fold_section(mark: str, section: str) -> str:
    lines = len(section.strip().splitlines())
    return f"{mark.rstrip()}: {lines} lines, shown by --helpers\n" if lines else ""


def text_of_kernels(
    module: ModuleOp,
    section: Callable[[set[str]], str],
    print_kernel: Callable[[FuncOp, str], tuple[PrintedText, set[str]]],
) -> PrintedText:
    """Returns the text of a module: the helpers, then the kernels.

    Args:
        module: module at the kernel level.
        section: returns the definitions of helpers with the given keys.
        print_kernel: returns the text of a kernel with the given C++ name, and the keys of the helpers that it calls.

    Raises:
        CompileError: if an operation cannot be printed. The error names the kernel and its source line unless it
            names an operation.
    """
    names = kernel_names(module)
    helpers, kernels = set[str](), list[PrintedText]()
    for op in module.body.ops:
        if not isinstance(op, FuncOp):
            _check_host(op)
            continue
        with blamed(op):
            text, used = print_kernel(op, names[op.sym_name.data])
        kernels.append(text)
        helpers |= used
    # Empty lines separate the kernels.
    owners = tuple(owners for kernel in kernels for owners in (*kernel.owners, ()))[:-1]
    texts = PrintedText("\n".join(kernel.text for kernel in kernels), owners)
    return texts.preceded_by(HELPERS_MARK + section(helpers) + "\n" + KERNELS_MARK)


def helper_section(keys: Iterable[str]) -> str:
    """Returns the definitions of the helpers in `keys`, and of all helpers that these call.

    The order is: types, helpers that need at most types, helpers that call other helpers.
    """
    helpers, todo = dict[str, Helper](), [*keys]
    while todo:
        if (key := todo.pop()) not in helpers:
            helpers[key] = HELPERS.get(key) or wgmma_helper(key)
            todo += helpers[key].needs
    order = sorted(helpers, key=lambda k: (k not in TYPES, not TYPES.keys() >= {*helpers[k].needs}, k))
    return "".join(f"{helpers[key].cuda}\n" for key in order)


_HOST_OPS = ("payload.constant", "scf.for", "scf.yield", "host.bind_size")
"""Operations of host functions that are in neither the `kernel` nor the `func` dialect."""


def _check_host(function: Operation) -> None:
    """Raises BorderError if `function` has operations above the kernel level, which would be missing in the text."""
    for op in function.walk():
        if op.dialect_name() not in ("kernel", "func") and op.name not in _HOST_OPS:
            advice = "run tensor-to-loop,loop-to-tile,tile-to-kernel on a program of the tensor level"
            raise refused(op, f"is above the kernel level: {advice}", BorderError)


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
"""Identifiers that kernels must not use: keywords and functions of CUDA C++, and names that the printer emits."""


def sanitise(text: str) -> str:
    """Returns `text` as one line for a `//` comment.

    The line is printable ASCII of at most 200 characters, without backslashes, comment delimiters and trigraphs, which
    could end or extend the comment.
    """
    plain = re.sub(r"[?]{2,}", "?", re.sub(r"[^ -~]|\\|\*/|/[*/]", " ", text))
    plain = " ".join(plain.split())
    return plain if len(plain) <= 200 else plain[:197] + "..."


class Names:
    """Source of unique identifiers. They match `[a-z][a-z0-9_]*` and are not in `RESERVED`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def mint(self, hint: str | None, default: str = "t") -> str:
        """Returns a new identifier derived from `hint`, or from `default` if `hint` has no usable letter.

        `default` must be a valid identifier.
        """
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
RESULT_WORDS = {name: word for word, names in _OPERATIONS.items() for name in names.split()}
"""Name of an operation -> the identifier of its result, if the IR has no name for it."""

REDUCTION_WORDS = {
    "add": "total",
    "mul": "product",
    "max": "top",
    "min": "least",
    "and": "all",
    "or": "any",
    "xor": "parity",
}


def hint_of(value: SSAValue) -> str:
    """Returns a hint for the C++ name of `value`: its name in the IR, or a word for the operation that computes it."""
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
        return REDUCTION_WORDS[op.kind.data.value]
    return RESULT_WORDS.get(op.name, "v")


MAX_ELEMENTS_WITH_INT_INDEX = 2**30
"""Largest number of elements of a buffer that is indexed with `int`. Larger buffers need `long long`."""


@dataclass(frozen=True)
class Variable:
    """C++ variable that holds a value: a scalar, or an array if a thread holds several registers of the value.

    Attributes:
        name: the identifier.
        size: number of registers; the variable is an array if `size` > 1.
        mutable: whether a scalar may be overwritten. Arrays always may.
    """

    name: str
    size: int
    mutable: bool = False

    def __getitem__(self, register: Register) -> Expr:
        index = without_parentheses(register) if isinstance(register, str) and register.startswith("(") else register
        return Expr(self.name if self.size == 1 else f"{self.name}[{index}]")


class Writer:
    """Text of one kernel, and the state of printing it.

    Attributes:
        func: the kernel.
        lines: the lines printed so far.
        owners: the operations that each line prints.
        names: source of identifiers.
        ranges: bounds of the index values of the kernel.
        variables: variable of each value that has one; other values are printed as expressions.
        helpers: keys of the helpers that the text calls.
        use: adds a key to `helpers`.
        index: C++ type of indices.
        scalars: printer of scalar operations.
        sizes: parameter that holds each symbolic extent.
        preferred: variables of loop-carried values, into which the results that the loop yields are computed.
    """

    ids = {"block": "blockIdx.x", "thread": "threadIdx.x", "lane": "threadIdx.x % 32", "warp": "threadIdx.x / 32"}

    UNIFORM_WARP = "__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)"
    """C++ of the warp index that nvcc keeps in a uniform register.

    `wgmma` descriptors that depend on the warp index then need no moves into uniform registers. The expression costs a
    register, so it is used only in kernels with `wgmma` operands in registers. Their threads issue many other
    instructions, and the moves would delay the tensor cores.
    """

    def __init__(self, func: kernel.FuncOp) -> None:
        self.func = func
        self.lines: list[str] = []
        self.owners: list[Owners] = []
        self.names = Names()
        self.ranges = Ranges(func)
        self.variables: dict[SSAValue, Variable] = {}
        self.helpers = set[str]()
        self.use = self.helpers.add
        self.index = index_type(func)
        self.scalars = Scalars(self.index, self.use, self.ranges)
        self.sizes: dict[SymbolAttr, Expr] = {}
        self.preferred: dict[SSAValue, Variable] = {}
        self._arrays: dict[str, tuple[int, int]] = {}
        """Name of an array -> index of its declaration in `lines`, and its alignment in bytes."""
        self._depth = 1
        self._scopes: list[dict[str, Expr]] = [{}]
        self._shown_location: str | None = None
        self._current: Owners = ()
        """Operations of the statement that is being printed."""
        self._inlined: list[Operation] = []
        """Operations that the next line prints as expressions."""
        if any(isinstance(op, kernel.WgmmaOp) and op.lhs_offset is None for op in func.walk()):
            self.ids = {**self.ids, "warp": self.UNIFORM_WARP}

    def line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)
        self.owners.append(tuple(dict.fromkeys((*self._current, *self._inlined))))
        self._inlined.clear()

    def begin(self, *ops: Operation) -> None:
        """Makes `ops` the operations of the following lines."""
        self._current = ops

    def inlines(self, op: Operation) -> None:
        """Adds an operation to the next line, which prints it as an expression."""
        self._inlined.append(op)

    @contextmanager
    def braces(self, head: str) -> Generator[None]:
        """Prints `head {` before the lines of the `with` block, and `}` after them."""
        self.line(f"{head} {{")
        self._depth += 1
        self._scopes.append({})
        current = self._current
        yield
        self._current = current
        self._scopes.pop()
        self._depth -= 1
        self.line("}")

    @contextmanager
    def registers_loop(self, size: int, step: int = 1) -> Generator[Register]:
        """Prints an unrolled loop around the lines of the `with` block.

        Yields the loop variable, or 0 if a single iteration needs no loop.

        Args:
            size: number of registers.
            step: registers per iteration.
        """
        if size == step:
            yield 0
            return
        self.unroll()
        with self.braces(f"for (int i = 0; i < {size}; {'++i' if step == 1 else f'i += {step}'})"):
            yield "i"

    def unroll(self, times: str = "", pad: str = "") -> None:
        self.line(f"{pad}#pragma unroll{times}")

    def unrolled(self, *loops: tuple[str, int]) -> str:
        """Prints the heads of nested unrolled loops, whose body is the next line. Returns the indentation of that line.

        Each loop is a pair of variable name and trip count. Loops with one iteration are left out.
        """
        pad = ""
        for variable, size in loops:
            if size > 1:
                self.unroll(pad=pad)
                self.line(f"{pad}for (int {variable} = 0; {variable} < {size}; ++{variable})")
                pad += "  "
        return pad

    def comment_location(self, op: Operation) -> None:
        """Prints the Python source line of `op` as a comment, unless the last such comment is the same.

        The following lines print `op`.
        """
        self.begin(op)
        source_line = line_text(location_of(op))
        if source_line is None or op.results and all(isinstance(r.type, IndexType) for r in op.results):
            return
        if source_line != self._shown_location:
            self._shown_location = source_line
            self.lines.append("  " * self._depth + f"// {sanitise(source_line)}")
            self.owners.append((op,))

    def type_of(self, value: SSAValue | Attribute) -> str:
        """Returns the C++ type of one register of `value`. Marks `bf16` and similar storage types as used helpers."""
        name = c_type(value.type if isinstance(value, SSAValue) else value, self.index)
        if name in STRUCTS:
            self.use(name)
        return name

    def named(self, make: Expr, hint: str) -> None:
        """Declares a C++ constant for an index expression, unless one is in scope. `find` returns the constant."""
        if self.find(make.text) is None:
            name = self.names.mint(hint)
            self.line(f"const {self.index} {name} = {make.text};")
            self._scopes[-1][make.text] = Expr(name)

    def find(self, text: str) -> Expr | None:
        """Returns the constant that `named` declared for an index expression, or None if none is in scope."""
        return next((scope[text] for scope in reversed(self._scopes) if text in scope), None)

    def name(self, value: SSAValue, default: str) -> str:
        """Returns a new name for the scalar or pointer `value`. The caller prints the declaration."""
        name = self.names.mint(value.name_hint, default)
        self.variables[value] = Variable(name, 1)
        return name

    def declare(self, value: SSAValue) -> Variable:
        """Returns the variable for `value`: the one in `preferred`, or a new one.

        A new array is declared at once. A new scalar is declared by the line that computes it.
        """
        variable = self.preferred.get(value)
        if variable is None:
            variable = Variable(self.names.mint(hint_of(value)), registers(value))
            if variable.size > 1:
                self.array(variable, value)
        self.variables[value] = variable
        return variable

    def define(self, value: SSAValue, text: Callable[[Register], str]) -> None:
        """Declares `value` and assigns to each of its registers the C++ that `text` returns for it."""
        variable = self.declare(value)
        with self.registers_loop(variable.size) as r:
            is_new = variable.size == 1 and value not in self.preferred
            head = f"const {self.type_of(value)} {variable.name}" if is_new else variable[r].text
            self.line(f"{head} = {text(r)};")

    def array(self, variable: Variable, value: SSAValue, start: str = "", head: str = "") -> None:
        """Prints the declaration of an array.

        Args:
            variable: name and size of the array.
            value: value whose element type the array has.
            start: initializer, such as " = {}".
            head: text before the declaration, such as an alignment.
        """
        self._arrays[variable.name] = len(self.lines), c_size(value.type)
        self.line(f"{head}{self.type_of(value)} {variable.name}[{variable.size}]{start};")

    def pointer(self, array: str, index: str, size: int) -> str:
        """Returns a pointer into an array of registers, and raises the array's alignment to `size`.

        All wide accesses to registers use this method, so that each array is aligned to its widest access.

        Args:
            array: name of the array.
            index: C++ of the element's index; an empty text is 0.
            size: width of the access in bytes.
        """
        number, aligned = self._arrays[array]
        if size > aligned:
            self._arrays[array] = number, size
            self.lines[number] = re.sub(r"^( *)(__align__\(\d+\) )?", rf"\1__align__({size}) ", self.lines[number])
        return array if index in ("", "0") else f"&{array}[{index}]"

    def start(self, value: SSAValue, text: str) -> Variable:
        """Declares a mutable scalar for `value`, initialised with the C++ expression `text`."""
        variable = Variable(self.names.mint(hint_of(value)), 1, True)
        self.line(f"{self.type_of(value)} {variable.name} = {text};")
        self.variables[value] = variable
        return variable

    # -- reading values

    def read(self, value: SSAValue, register: Register = 0) -> Expr:
        """Returns the C++ expression that reads one register of `value`.

        Raises CompileError if `value` has no variable and cannot be printed as an expression.
        """
        variable = self.variables.get(value)
        if variable is not None:
            return variable[register]
        op = value.owner
        if not isinstance(op, Operation) or not is_view(op):
            raise CompileError("a value is used before it is computed", operator=getattr(op, "name", None))
        self.inlines(op)
        if (view := _VIEWS.get(type(op))) is not None:
            return view(self, op, register)
        return self.scalars.print(op, [self.read(v, register) for v in op.operands])

    def size(self, extent: Extent) -> Expr:
        return Expr(str(extent)) if isinstance(extent, int) else self.sizes[extent]


def _read_constant(writer: Writer, op: ConstantOp | arith.ConstantOp, register: Register) -> Expr:
    if (value := constant_of(op.result)) is None:
        raise CompileError(f"expected a scalar constant, but got {op.value}", operator=op.name)
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
    raise CompileError("expected shared memory with an offset; run kernel-allocate-shared first", operator=op.name)


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
"""Printers of operations that are neither statements nor payload: each returns the C++ of one result register."""


def index_type(func: kernel.FuncOp) -> str:
    """Returns the C++ type of indices and sizes in a kernel: `int`, or `long long` where 32 bits are not safe.

    Large buffers and large numbers need 64 bits. So do 64-bit indices that are loaded from memory: truncated to 32
    bits, an index that is out of bounds could pass the bounds check.
    """
    large = any(_elements(a.type) > MAX_ELEMENTS_WITH_INT_INDEX for a in func.body.block.args)
    large |= any(s.minimum < -(1 << 31) or s.maximum >= 1 << 31 for s in symbols_in(func))
    return (
        "long long" if large or any(_depends_on_memory(op) for op in func.walk() if isinstance(op, CastOp)) else "int"
    )


def _depends_on_memory(op: CastOp) -> bool:
    """Returns true if `op` converts an i64 that depends on a load from global memory to an index."""
    if element_type(op.result.type) != IndexType() or element_type(op.operand.type) != i64:
        return False
    seen, pending = set[SSAValue](), [op.operand]
    while pending:
        value = pending.pop()
        if value in seen or element_type(value.type) == IndexType():
            continue
        seen.add(value)
        if not isinstance(value.owner, Operation):
            return True
        if isinstance(value.owner, kernel.LoadOp) and not kernel.is_shared(value.owner.memory.type):
            return True
        pending += value.owner.operands
    return False


def _elements(t: Attribute) -> int:
    return prod(map(most, extents_of(t))) if isinstance(t, MemRefType) else 1  # pyright: ignore[reportUnknownArgumentType]


def kernel_text(func: FuncOp, head: str, writer: Writer, after: str = "") -> PrintedText:
    """Returns the text of a kernel with the operations of each line.

    Args:
        func: the kernel.
        head: the first line of the C++ function.
        writer: the writer of the kernel, which has printed the body.
        after: text after the function, such as a further function.
    """
    first = [*header(func), head]
    lines = [*first, *writer.lines, "}", *([after] if after else [])]
    return PrintedText(
        "\n".join(lines) + "\n", (*[()] * len(first), *writer.owners, *[()] * (1 + after.count("\n") + bool(after)))
    )


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
    """Returns the C++ parameters of a kernel: buffers, tensor maps and sizes. Assigns their variables in `writer`."""
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
    """Returns the extents of a dense memref type.

    Raises CompileError for memrefs with a layout, and for memrefs of indices.
    """
    assert isinstance(t, MemRefType)
    if not isinstance(t.layout, NoneAttr | ExtentsAttr):
        raise CompileError(f"expected a dense memref, but got {t}")
    if isinstance(t.element_type, IndexType):
        raise CompileError(f"{t}: elements of type index have no size in memory; store i32 or i64")
    return extents_of(t)  # pyright: ignore[reportUnknownArgumentType]


def declare_shared(writer: Writer, buffers: Iterable[SharedOp], memory: str) -> None:
    """Declares the shared buffers of a kernel as pointers into one array.

    Args:
        writer: the writer of the kernel.
        buffers: the buffers, with their offsets.
        memory: name of the array of bytes that contains all buffers.

    Raises:
        CompileError: if `kernel-allocate-shared` has not assigned offsets yet.
    """
    for op in buffers:
        if op.offset is None:
            raise refused(op, "expected shared memory with an offset; run kernel-allocate-shared first", CompileError)
        c, start = writer.type_of(op.result), f"({memory} + {op.offset.data})" if op.offset.data else memory
        writer.line(f"{c}* const {writer.name(op.result, 'buf')} = ({c}*){start};")
