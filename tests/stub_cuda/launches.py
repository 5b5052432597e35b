"""Checks launches against the kernel IR and the printed CUDA, and runs them in the emulator."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.dtypes import dtype_of
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import Buffer, Launch, LaunchPlan, TensorMap
from deplodock.dialects import kernel
from deplodock.dialects.kernel import is_written, kernel_names, symbols_in, tensor_maps
from deplodock.dialects.shapes.binding import Sizes
from deplodock.dialects.shapes.extents import extents_of, static
from deplodock.target.attribute import get_target

from .libcuda import EncodedMap, decoded
from .state import DEVICE, StubError

WITHOUT_ASKING = 48 * 1024
"""Bytes of dynamic shared memory that a kernel may have without the attribute."""

MOST_BLOCKS = 2**31 - 1
WIDEST = 16
"""Bytes of the widest access of a kernel: to that buffers are aligned."""

TYPES = {"ui8": 0, "i8": 0, "i1": 0, "i16": 1, "i32": 3, "i64": 5, "index": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
"""CUtensorMapDataType, by element type, as cuda.h numbers them."""

NUMPY = {0: "ui8", 1: "i16", 3: "i32", 5: "i64", 6: "f16", 7: "f32", 8: "f64", 9: "bf16"}

_HEAD = (
    r'extern "C" __global__ void (?:__cluster_dims__\((\d+), 1, 1\) )?'
    r"(?:__launch_bounds__\((\d+)[^)]*\) )?%s\((.*)\) \{"
)


class Source:
    """A loaded program: the IR at the kernel level and the compiled CUDA.

    A program that was made from a launch plan has no IR; its launches are checked against the plan.
    """

    def __init__(self, module: ModuleOp | LaunchPlan, cuda: str, arch: str) -> None:
        self.plan = module if isinstance(module, LaunchPlan) else None
        self.kernels: dict[str, kernel.FuncOp] = {}
        if not isinstance(module, LaunchPlan):
            names = kernel_names(module)
            self.kernels = {names[f.sym_name.data]: f for f in module.body.ops if isinstance(f, kernel.FuncOp)}
        self.cuda, self.arch = cuda, arch

    @cached_property
    def built(self) -> Any:
        """The program, compiled for the emulator."""
        return compile_many([self.cuda])[0]


@dataclass
class Request:
    """Arguments of a launch, as the driver gets them."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int
    allowed: int
    """Bytes of dynamic shared memory that the function's attribute permits."""


@dataclass
class Checked:
    """A checked launch, with the data that the emulator needs."""

    source: Source
    request: Request
    dtypes: list[str]
    written: list[int]
    addresses: list[int]
    shapes: list[tuple[int, ...]]
    maps: list[TensorMap]
    sizes: tuple[int, ...]
    size_bytes: int

    def run(self) -> None:
        """Runs the launch on the memory of its arguments. Raises StubError for an error that the emulator reports."""
        written = self.written
        given = [Buffer(f"p{i}", s, d, 0, 0) for i, (s, d) in enumerate(zip(self.shapes, self.dtypes, strict=True))]
        results = [Buffer(f"r{i}", given[i].shape, given[i].dtype, 0, 0, written=True) for i in written]
        place = {i: len(given) + n for n, i in enumerate(written)}
        r = self.request
        where = tuple(place.get(i, i) for i in range(len(given)))
        sizes: dict[str, Any] = {"sizes": self.sizes, "size_bytes": self.size_bytes}
        launch = Launch(r.name, r.grid, r.block, r.shared, where, (), tuple(self.maps), **sizes)
        pairs = tuple((n, i) for i, n in place.items())
        plan = LaunchPlan((*given, *results), (launch,), len(given) + len(results), len(given), in_place=pairs)
        arrays = [_read(a, b) for a, b in zip(self.addresses, given, strict=True)]
        outputs, reports = EmulatedProgram(self.source.cuda, plan, self.source.built).run(arrays, seeds=(0,))
        if reports and reports[0].kind in ("assertion", "trap"):  # which the host sees when it waits
            DEVICE.lost = True
        elif reports:
            raise StubError(f"launch of {r.name}: {reports[0]}")
        for i, output in zip(written, outputs, strict=True):
            ctypes.memmove(self.addresses[i], output.ctypes.data, output.nbytes)


def _read(address: int, buffer: Buffer) -> np.ndarray:
    data = np.frombuffer(ctypes.string_at(address, buffer.bytes), buffer.numpy_dtype)
    return data.reshape(buffer.shape)  # pyright: ignore[reportArgumentType]


def check(source: Source, request: Request) -> Checked:
    """Checks a launch against the IR and the text of its kernel. Raises StubError if they disagree."""
    if source.plan is not None:
        return _planned(source, source.plan, request)
    func = source.kernels[request.name]
    head = re.search(_HEAD % request.name, source.cuda)
    if head is None:
        raise StubError(f"the text has no kernel {request.name}")
    signature = _signature(head[3])
    buffers, maps = list(func.body.block.args), tensor_maps(func)
    kinds = ["pointer"] * len(buffers) + ["map"] * len(maps)
    if signature[: len(kinds)] != kinds or len(signature) != len(kinds) + len(symbols_in(func)):
        raise StubError(f"{request.name} takes {signature} in the text, and other things in the IR")
    if len(request.arguments) != len(signature):
        raise StubError(f"{len(request.arguments)} arguments for the {len(signature)} of {request.name}")
    for number, (kind, value) in enumerate(zip(signature, request.arguments, strict=True)):
        _check_type(request.name, number, kind, value)
    values = [int(v) for v in request.arguments[len(kinds) :]]
    sizes = Sizes({s.hint: v for s, v in zip(symbols_in(func), values, strict=True)})
    _check_shape(source, request, func, sizes, int(head[1] or 1), int(head[2] or 1024))
    addresses = [int(v) for v in request.arguments[: len(buffers)]]
    shapes = [_shape(a.type, sizes, address) for a, address in zip(buffers, addresses, strict=True)]
    _check_memory(request.name, func, addresses, shapes)
    records = request.arguments[len(buffers) : len(kinds)]
    described = [
        _check_map(op, decoded(r), addresses[buffers.index(op.memory)], shapes[buffers.index(op.memory)])  # pyright: ignore
        for op, r in zip(maps, records, strict=True)
    ]
    taken = [TensorMap(buffers.index(op.memory), *d) for op, d in zip(maps, described, strict=True)]  # pyright: ignore
    wide = 8 if "long long" in signature else 4
    dtypes = [dtype_of(a.type).name for a in buffers]  # pyright: ignore
    written = [i for i, a in enumerate(buffers) if is_written(a)]
    return Checked(source, request, dtypes, written, addresses, shapes, taken, tuple(values), wide)


def _planned(source: Source, plan: LaunchPlan, request: Request) -> Checked:
    """Checks a launch of a program without IR: types of arguments, grid and block, and tensor maps."""
    launch = next(x for x in plan.launches if x.kernel == request.name)
    head = re.search(_HEAD % request.name, source.cuda)
    signature = _signature(head[3]) if head is not None else []
    if len(signature) != len(request.arguments):
        raise StubError(f"{len(request.arguments)} arguments for the {len(signature)} of {request.name}")
    for number, (kind, value) in enumerate(zip(signature, request.arguments, strict=True)):
        _check_type(request.name, number, kind, value)
    if (request.grid, request.block) != ((*launch.blocks, 1, 1), (*launch.threads, 1, 1)):
        raise StubError(f"{request.name} on a grid of {request.grid} blocks of {request.block}")
    buffers = [plan.buffers[i] for i in launch.buffers]
    addresses = [int(v) for v in request.arguments[: len(buffers)]]
    shapes, dtypes = [static(b.shape) for b in buffers], [b.dtype for b in buffers]
    records = request.arguments[len(buffers) : len(buffers) + len(launch.maps)]
    for wanted, record in zip(launch.maps, records, strict=True):
        if decoded(record).address != addresses[wanted.argument]:
            raise StubError(f"a tensor map of {request.name} is of another buffer than argument {wanted.argument}")
    written = [i for i, b in enumerate(buffers) if b.written]
    rest = launch.values, launch.size_bytes
    return Checked(source, request, dtypes, written, addresses, shapes, list(launch.maps), *rest)


def _signature(parameters: str) -> list[str]:
    """Returns the kind of each parameter: `pointer`, `map`, or the C type of a number."""
    found: list[str] = []
    for text in parameters.split(", ") if parameters else []:
        number = re.match(r"(int|long long) \w+$", text)
        known = "pointer" if "*" in text else "map" if "TensorMap" in text else number and number[1]
        if not known:
            raise StubError(f"a parameter {text!r}")
        found.append(known)
    return found


def read_parameters(cuda: str, name: str, address: int) -> tuple[Any, ...]:
    """Returns the parameters of a kernel from an array of their addresses, copied as the driver does.

    Args:
        cuda: text with the kernel's signature.
        name: name of the kernel.
        address: address of the array of pointers.
    """
    head = re.search(_HEAD % name, cuda)
    if head is None:
        raise StubError(f"the text has no kernel {name}")
    kinds = _signature(head[3])
    found: list[Any] = []
    for kind, where in zip(kinds, (ctypes.c_uint64 * len(kinds)).from_address(address), strict=True):
        if not where:
            raise StubError(f"a parameter of {name} has no address")
        if kind == "map":
            found.append(np.frombuffer((ctypes.c_char * 128).from_address(where), "V128"))
        else:
            t = _NUMPY_TYPES[kind]
            found.append(t(np.frombuffer(ctypes.string_at(where, np.dtype(t).itemsize), t)[0]))
    return tuple(found)


_NUMPY_TYPES = {"pointer": np.uint64, "int": np.int32, "long long": np.int64}


def _check_type(name: str, number: int, kind: str, value: Any) -> None:
    """Raises StubError unless CuPy could pass a value: a NumPy scalar of the type, or one record for a map."""
    if kind == "map":
        right = isinstance(value, np.ndarray) and value.shape == (1,)
    else:
        right = type(value) is _NUMPY_TYPES[kind]
    if not right:
        raise StubError(f"argument {number} of {name} is a {type(value).__name__}, not a {kind}")


def _check_shape(source: Source, request: Request, func: kernel.FuncOp, sizes: Sizes, cluster: int, bound: int) -> None:
    """Checks grid, block, cluster and shared memory of a launch."""
    name, target = request.name, get_target(source.arch)
    grid = (prod(_count(sizes, n) for n in func.grid_shape), 1, 1)
    if request.grid != grid or not 0 < grid[0] <= MOST_BLOCKS:
        raise StubError(f"{name} on a grid of {request.grid}, not {grid}")
    if request.block != (func.threads, 1, 1) or func.threads > min(1024, bound):
        raise StubError(f"{name} with blocks of {request.block}, not of {func.threads} threads (bound {bound})")
    if cluster != func.cluster_size or cluster > 8 or grid[0] % cluster or cluster > 1 and not target.has("cluster"):
        raise StubError(f"{name} in clusters of {cluster} (the IR says {func.cluster_size}) on a grid of {grid[0]}")
    wanted = func.shared.data if func.shared is not None else 0
    if request.shared != wanted or wanted > target.shared_per_block:
        raise StubError(f"{name} with {request.shared} bytes of shared memory, not {wanted}")
    if wanted > max(WITHOUT_ASKING, request.allowed):
        raise StubError(f"{name} needs {wanted} bytes of shared memory, but its attribute permits {request.allowed}")


def _count(sizes: Sizes, factor: Any) -> int:
    return factor if isinstance(factor, int) else sizes.count(factor)


def _shape(t: Any, sizes: Sizes, address: int) -> tuple[int, ...]:
    """Returns the shape of a buffer. A first extent that the kernel does not get follows from the allocation."""
    extents, item = extents_of(t), dtype_of(t).bytes
    known = [sizes.values.get(getattr(e, "hint", ""), e) for e in extents]
    if known and not isinstance(known[0], int):
        known[0] = (DEVICE.memory.after(address) or 0) // max(item * prod(known[1:]), 1)
    return static(known)


def _check_memory(name: str, func: kernel.FuncOp, addresses: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> None:
    """Checks that each buffer is inside of one allocation and aligned, and that written buffers overlap no other."""
    ranges: list[tuple[int, int, bool]] = []
    for number, (arg, address, shape) in enumerate(zip(func.body.block.args, addresses, shapes, strict=True)):
        size = prod(shape) * dtype_of(arg.type).bytes  # pyright: ignore
        room = DEVICE.memory.after(address)
        if size and (room is None or room < size):
            raise StubError(f"argument {number} of {name} has {size} bytes, its allocation {room} from there on")
        if size and address % WIDEST:
            raise StubError(f"argument {number} of {name} is at {address:#x}, no multiple of {WIDEST}")
        ranges.append((address, address + size, is_written(arg)))
    for i, (start, end, written) in enumerate(ranges):
        for j, (other, last, _) in enumerate(ranges):
            if i != j and written and start < last and other < end:
                raise StubError(f"argument {i} of {name} is written, and overlaps argument {j}")


def _check_map(
    op: kernel.TensorMapOp, found: EncodedMap, address: int, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], str, tuple[int, ...], int]:
    """Checks an encoded tensor map against the IR and against the buffer of the launch.

    Returns:
        Shape and element type of the tensor, shape of the box, and the swizzle in bytes.
    """
    t = op.result.type
    assert isinstance(t, kernel.TensorMapType)
    dtype = dtype_of(t.element).name
    item = Buffer("", (), dtype).numpy_dtype.itemsize
    strides = tuple(prod(shape[d + 1 :]) * item for d in range(len(shape) - 1))[::-1]
    swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[t.swizzle.data]
    rank = len(shape)
    wanted = EncodedMap(TYPES[dtype], address, shape[::-1], strides, t.shape[::-1], (1,) * rank, 0, swizzle, 2, 0)
    if found != wanted:
        raise StubError(f"a tensor map is {found}, not {wanted}")
    box = found.box[::-1]
    return found.extents[::-1], NUMPY[found.type], box, {0: 0, 1: 32, 2: 64, 3: 128}[found.swizzle]
