"""Small kernels that each test one instruction of sm_90a: TMA loads and stores, wgmma, stmatrix.

A unit has the kernel's IR (`text`), its inputs, and the expected output. The expected output is computed here from the
layouts in the PTX documentation, independent of the library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def swizzled(indices: np.ndarray, swizzle: int, item: int) -> np.ndarray:
    """Returns the swizzled indices of elements in shared memory.

    A swizzle permutes the 16-byte chunks of each row by XOR with bits of the row's number.

    Args:
        indices: indices of elements in row order.
        swizzle: width of the pattern in bytes: 0, 32, 64 or 128.
        item: bytes of an element.
    """
    address = indices * item
    return (address ^ (((address >> 7) & (max(swizzle, 16) // 16 - 1)) << 4)) // item


def _constants(*numbers: int) -> str:
    return "\n".join(f"  %c{n} = arith.constant {n} : index" for n in sorted({0, 1, 128, *numbers}))


@dataclass(frozen=True)
class BoxLoad:
    """A TMA load of the tile `box` at the offset `at` of a buffer of `shape`. The output is the shared memory."""

    shape: tuple[int, ...]
    box: tuple[int, ...]
    at: tuple[int, ...]
    swizzle: int = 0
    type: str = "bf16"

    @property
    def size(self) -> int:
        """Number of elements of the box."""
        return math.prod(self.box)

    def text(self) -> str:
        x = f"memref<{'x'.join(map(str, self.shape))}x{self.type}>"
        swizzle = f", swizzle {self.swizzle}" if self.swizzle else ""
        t = f"!kernel.tensor_map<{'x'.join(map(str, self.box))}x{self.type}{swizzle}>"
        o, s = f"memref<{self.size}x{self.type}>", f'memref<{self.size}x{self.type}, "shared">'
        b, item = 'memref<1x!kernel.mbarrier, "shared">', np.dtype(DTYPES[self.type]).itemsize
        at = ", ".join(f"%at{d}" for d in range(len(self.at)))
        starts = "\n".join(f"  %at{d} = arith.constant {c} : index" for d, c in enumerate(self.at))
        return f"""
func.func @main(%x: {x}, %o: {o}) {{
  kernel.launch @unit(%x, %o) : {x}, {o}
  func.return
}}
kernel.func @unit(%x: {x}, %o: {o}) grid [1] warps 4 {{
{_constants(self.size)}
{starts}
  %boxes = kernel.tensor_map %x : {x} -> {t}
  %s = kernel.shared : {s}
  %full = kernel.shared : {b}
  %t = kernel.id thread
  %first = payload.cmp eq %t, %c0 : index
  scf.if %first {{
    kernel.mbar_init %full[%c0] arrivals 1 : {b}
    kernel.fence_mbar_init
  }}
  kernel.barrier
  scf.if %first {{
    kernel.mbar_expect %full[%c0] bytes {self.size * item} : {b}
    kernel.tma_load %boxes[{at}] to %s[%c0] signal %full[%c0] : {t}, {s}, {b}
  }}
  kernel.mbar_wait %full[%c0] parity %c0 : {b}
  scf.for %i = %c0 to %c{self.size} step %c128 {{
    %j = arith.addi %i, %t : index
    %v = kernel.load %s[%j] : {s} -> vector<1x{self.type}>
    kernel.store %v, %o[%j] : {o}, vector<1x{self.type}>
  }}
}}
"""

    def inputs(self) -> list[np.ndarray]:
        count = math.prod(self.shape)
        return [(np.arange(count) % 251 - 120).reshape(self.shape).astype(DTYPES[self.type])]

    def expected(self) -> np.ndarray:
        (x,) = self.inputs()
        padded = np.pad(x, [(b, b) for b in self.box])
        window = tuple(slice(b + a, 2 * b + a) for a, b in zip(self.at, self.box, strict=True))
        memory = np.zeros(self.size, x.dtype)
        memory[swizzled(np.arange(self.size), self.swizzle, x.dtype.itemsize)] = padded[window].reshape(-1)
        return memory


@dataclass(frozen=True)
class BoxStore:
    """A TMA store of a tile from shared memory into a zero buffer of `shape`, at the offset `at`."""

    shape: tuple[int, int]
    box: tuple[int, int]
    at: tuple[int, int]
    swizzle: int = 0
    type: str = "bf16"

    def text(self) -> str:
        size = math.prod(self.box)
        x, o = f"memref<{size}x{self.type}>", f"memref<{self.shape[0]}x{self.shape[1]}x{self.type}>"
        s, total = f'memref<{size}x{self.type}, "shared">', math.prod(self.shape)
        swizzle = f", swizzle {self.swizzle}" if self.swizzle else ""
        t = f"!kernel.tensor_map<{self.box[0]}x{self.box[1]}x{self.type}{swizzle}>"
        return f"""
func.func @main(%x: {x}, %o: {o}) {{
  kernel.launch @clear(%o) : {o}
  kernel.launch @unit(%x, %o) : {x}, {o}
  func.return
}}
kernel.func @clear(%o: {o}) grid [{-(-total // 128)}] warps 4 {{
{_constants(self.shape[1])}
  %z = payload.constant 0.0 : vector<1x{self.type}>
  %block = kernel.id block
  %t = kernel.id thread
  %b = arith.muli %block, %c128 : index
  %n = arith.addi %b, %t : index
  %i = arith.divui %n, %c{self.shape[1]} : index
  %j = arith.remui %n, %c{self.shape[1]} : index
  kernel.store %z, %o[%i, %j] : {o}, vector<1x{self.type}>
}}
kernel.func @unit(%x: {x}, %o: {o}) grid [1] warps 4 {{
{_constants(size)}
  %at0 = arith.constant {self.at[0]} : index
  %at1 = arith.constant {self.at[1]} : index
  %boxes = kernel.tensor_map %o : {o} -> {t}
  %s = kernel.shared : {s}
  %t = kernel.id thread
  %first = payload.cmp eq %t, %c0 : index
  scf.for %i = %c0 to %c{size} step %c128 {{
    %j = arith.addi %i, %t : index
    %v = kernel.load %x[%j] : {x} -> vector<1x{self.type}>
    kernel.store %v, %s[%j] : {s}, vector<1x{self.type}>
  }}
  kernel.fence_async
  kernel.group_barrier 1 warps 4
  scf.if %first {{
    kernel.tma_store %s[%c0] to %boxes[%at0, %at1] : {s}, {t}
    kernel.bulk_commit
    kernel.bulk_wait 0
  }}
}}
"""

    def inputs(self) -> list[np.ndarray]:
        return [(np.arange(math.prod(self.box)) % 251 + 1).astype(DTYPES[self.type])]

    def expected(self) -> np.ndarray:
        (x,) = self.inputs()
        box = x[swizzled(np.arange(x.size), self.swizzle, x.dtype.itemsize)].reshape(self.box)
        memory = np.zeros([n + 2 * b for n, b in zip(self.shape, self.box, strict=True)], x.dtype)
        (r, c), (h, w) = self.at, self.box
        memory[h + r : 2 * h + r, w + c : 2 * w + c] = box
        return memory[h:-h, w:-w]


def _dirty(x: np.ndarray) -> np.ndarray:
    """Sets some of the low 13 bits of f32 numbers, which tensor cores ignore. Returns other types unchanged."""
    if x.dtype != np.float32:
        return x
    return (x.view(np.uint32) | np.arange(x.size, dtype=np.uint32) * 2654435761 % 8192).view(np.float32)


@dataclass(frozen=True)
class WarpgroupProduct:
    """Two warpgroup matmuls that accumulate 2 * A * B. The output has the accumulators of each thread.

    Attributes:
        columns: columns of B.
        left: layout of A: `k` (contiguous along k), `t` (transposed) or `r` (in registers).
        right: layout of B: `k` or `t`.
        swizzle: swizzle of shared memory in bytes.
        k_steps: number of wgmma instructions along k.
        type: element type of A and B.
    """

    columns: int
    left: str = "k"
    right: str = "k"
    swizzle: int = 128
    k_steps: int = 1
    type: str = "bf16"

    @property
    def item(self) -> int:
        return np.dtype(DTYPES[self.type]).itemsize

    @property
    def depth(self) -> int:
        return 32 // self.item * self.k_steps

    @property
    def row(self) -> int:
        return self.swizzle // self.item

    @property
    def panel(self) -> int:
        return self.depth * self.row

    def size(self, lines: int, side: str) -> int:
        """Returns the number of elements that an operand takes in shared memory.

        Args:
            lines: extent of the operand in its other dimension than k: rows of A, or columns of B.
            side: layout of the operand, as in `left` and `right`.
        """
        return -(-lines // self.row) * self.panel if side == "t" else lines * self.row

    def indices(self, lines: int, side: str) -> np.ndarray:
        """Returns the index of each element (line, k) of an operand in shared memory. Arguments are those of `size`."""
        line, k = np.arange(lines)[:, None], np.arange(self.depth)[None, :]
        place = line * self.row + k if side == "k" else line // self.row * self.panel + k * self.row + line % self.row
        return swizzled(place, self.swizzle, self.item)

    def text(self) -> str:
        registers, count = self.columns // 2, self.depth // 2
        a_size = 128 * count if self.left == "r" else self.size(64, self.left)
        b_size = -(-self.size(self.columns, self.right) // 128) * 128
        x, y = f"memref<{a_size}x{self.type}>", f"memref<{b_size}x{self.type}>"
        sx, sy = f'memref<{a_size}x{self.type}, "shared">', f'memref<{b_size}x{self.type}, "shared">'
        o, p = f"memref<128x{registers}xf32>", f"!kernel.async_accumulators<vector<{registers}xf32>>"
        bits = [[1 << b] for b in range(count.bit_length() - 1)]
        left = "%held" if self.left == "r" else f"%a[%c0]{' transposed' if self.left == 't' else ''}"
        lt = f"vector<{count}x{self.type}>" if self.left == "r" else sx
        panels = self.right == "t" and self.columns > self.row
        right = (
            f"%b[%c0]{' transposed' if self.right == 't' else ''}{f' leading_offset {self.panel}' if panels else ''}"
        )
        ways = f"k_steps {self.k_steps} swizzle {self.swizzle}"
        copy_a = "" if self.left == "r" else self._copy("x", "a", x, sx, a_size)
        held = f"""
  %base = arith.muli %t, %c{count} : index
  %held = kernel.load %x[%base] regs {bits} : {x} -> vector<{count}x{self.type}>"""
        return f"""
func.func @main(%x: {x}, %y: {y}, %o: {o}) {{
  kernel.launch @unit(%x, %y, %o) : {x}, {y}, {o}
  func.return
}}
kernel.func @unit(%x: {x}, %y: {y}, %o: {o}) grid [1] warps 4 {{
{_constants(a_size, b_size, count)}
  %t = kernel.id thread
  %a = kernel.shared : {sx}
  %b = kernel.shared : {sy}
{copy_a}
{self._copy("y", "b", y, sy, b_size)}
{held if self.left == "r" else ""}
  kernel.fence_async
  kernel.barrier
  %p = kernel.accumulators : {p}
  kernel.wgmma_fence
  %q = kernel.wgmma {left}, {right} into %p {ways} scale_d_zero : {lt}, {sy}, {p}
  %r = kernel.wgmma {left}, {right} into %q {ways} : {lt}, {sy}, {p}
  kernel.wgmma_commit
  %acc = kernel.wgmma_wait 0, %r : {p} -> vector<{registers}xf32>
  kernel.store %acc, %o[%t, %c0] regs {[[0, 1 << b] for b in range(registers.bit_length() - 1)]}
      : {o}, vector<{registers}xf32>
}}
"""

    def _copy(self, source: str, target: str, x: str, s: str, size: int) -> str:
        return f"""
  scf.for %i = %c0 to %c{size} step %c128 {{
    %j = arith.addi %i, %t : index
    %v = kernel.load %{source}[%j] : {x} -> vector<1x{self.type}>
    kernel.store %v, %{target}[%j] : {s}, vector<1x{self.type}>
  }}"""

    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.columns + self.k_steps)
        a, b = (rng.integers(-4, 5, (n, self.depth)).astype(np.float32) for n in (64, self.columns))
        return a, b

    def inputs(self) -> list[np.ndarray]:
        a, b = self._numbers()
        dtype = DTYPES[self.type]
        if self.left == "r":
            t, e = np.arange(128)[:, None], np.arange(self.depth // 2)[None, :]
            if self.type == "f32":
                rows, k = t // 32 * 16 + t % 32 // 4 + 8 * (e & 1), e // 4 * 8 + t % 4 + 4 * (e >> 1 & 1)
            else:
                rows = t // 32 * 16 + t % 32 // 4 + 8 * (e >> 1 & 1)
                k = e // 8 * 16 + 2 * (t % 4) + (e & 1) + 8 * (e >> 2 & 1)
            x = a[rows, k].reshape(-1)
        else:
            x = np.zeros(self.size(64, self.left), np.float32)
            x[self.indices(64, self.left)] = a
        y = np.zeros(-(-self.size(self.columns, self.right) // 128) * 128, np.float32)
        y[self.indices(self.columns, self.right)] = b
        return [_dirty(x.astype(dtype)), _dirty(y.astype(dtype))]

    def expected(self) -> np.ndarray:
        a, b = self._numbers()
        t, r = np.arange(128)[:, None], np.arange(self.columns // 2)[None, :]
        rows, columns = t // 32 * 16 + t % 32 // 4 + 8 * (r >> 1 & 1), r // 4 * 8 + 2 * (t % 4) + (r & 1)
        return 2 * (a @ b.T)[rows, columns]


@dataclass(frozen=True)
class MatrixStore:
    """`steps` stmatrix instructions of a warp, each of `count` 8x8 matrices. The output is the filled shared memory."""

    count: int
    trans: bool = False
    steps: int = 1
    type: str = "bf16"

    def text(self) -> str:
        held, size = 2 * self.count * self.steps, 64 * self.count * self.steps
        x, o = f"memref<{32 * held}x{self.type}>", f"memref<{size}x{self.type}>"
        s, v = f'memref<{size}x{self.type}, "shared">', f"vector<{held}x{self.type}>"
        bits = [[1 << b] for b in range(held.bit_length() - 1)]
        steps = [64 * self.count << b for b in range(self.steps.bit_length() - 1)]
        trans = "trans " if self.trans else ""
        return f"""
func.func @main(%x: {x}, %o: {o}) {{
  kernel.launch @unit(%x, %o) : {x}, {o}
  func.return
}}
kernel.func @unit(%x: {x}, %o: {o}) grid [1] warps 1 {{
{_constants(8, 32, held, size, 8 * self.count)}
  %s = kernel.shared : {s}
  %t = kernel.id thread
  %at = arith.muli %t, %c{held} : index
  %v = kernel.load %x[%at] regs {bits} : {x} -> {v}
  %lane = arith.remui %t, %c{8 * self.count} : index
  %row = arith.muli %lane, %c8 : index
  kernel.stmatrix count {self.count} {trans}%v, %s[%row]{f" steps {steps}" if steps else ""} : {v}, {s}
  kernel.barrier
  scf.for %i = %c0 to %c{size} step %c32 {{
    %j = arith.addi %i, %t : index
    %w = kernel.load %s[%j] : {s} -> vector<1x{self.type}>
    kernel.store %w, %o[%j] : {o}, vector<1x{self.type}>
  }}
}}
"""

    def inputs(self) -> list[np.ndarray]:
        return [(np.arange(64 * self.count * self.steps) % 241 + 1).astype(DTYPES[self.type])]

    def expected(self) -> np.ndarray:
        x = self.inputs()[0].reshape(32, self.steps, self.count, 2)
        lane, e = np.arange(32)[:, None], np.arange(2)[None, :]
        row, element = lane // 4 + 0 * e, 2 * (lane % 4) + e
        if self.trans:
            row, element = element, row
        memory = np.zeros((self.steps, self.count, 8, 8), x.dtype)
        memory[:, :, row, element] = x.transpose(1, 2, 0, 3)
        return memory.reshape(-1)


UNITS = {
    "a box of one dimension": BoxLoad((512,), (128,), (256,), type="f32"),
    "a box": BoxLoad((48, 80), (16, 24), (8, 32)),
    "a box at a corner": BoxLoad((48, 80), (16, 64), (40, 48), 128),
    "a box before the start": BoxLoad((48, 80), (32, 64), (-5, -16), 128),
    "a box in rows of 64 bytes": BoxLoad((64, 64), (32, 32), (7, 8), 64),
    "a box in rows of 32 bytes": BoxLoad((64, 64), (64, 8), (3, 16), 32, "f32"),
    "a box of three dimensions": BoxLoad((6, 20, 80), (2, 16, 64), (3, 7, 8), 128, "f16"),
    "a box of four dimensions": BoxLoad((3, 4, 5, 64), (2, 2, 4, 16), (1, 1, 2, 16)),
    "a box of five dimensions": BoxLoad((2, 3, 3, 4, 32), (1, 2, 2, 2, 16), (1, 1, 1, 1, 8)),
    "a stored box": BoxStore((48, 80), (16, 24), (8, 32)),
    "a stored box at a corner": BoxStore((48, 80), (32, 64), (40, 48), 128, "f16"),
    "a stored box in rows of 32 bytes": BoxStore((64, 64), (64, 8), (3, 16), 32, "f32"),
    "four matrices": MatrixStore(4, steps=2),
    "four matrices, transposed": MatrixStore(4, True, type="f16"),
    "two matrices": MatrixStore(2, steps=4),
    "two matrices, transposed": MatrixStore(2, True),
    "one matrix": MatrixStore(1, type="f16"),
    "one matrix, transposed": MatrixStore(1, True, steps=2),
    "64 columns": WarpgroupProduct(64, k_steps=4),
    "8 columns": WarpgroupProduct(8, type="f16"),
    "256 columns": WarpgroupProduct(256, k_steps=2),
    "rows of 64 bytes": WarpgroupProduct(128, swizzle=64, k_steps=2, type="f16"),
    "rows of 32 bytes": WarpgroupProduct(32, swizzle=32),
    "left across": WarpgroupProduct(64, "t", k_steps=4),
    "right across": WarpgroupProduct(64, right="t", k_steps=4, type="f16"),
    "right across in panels": WarpgroupProduct(128, right="t", k_steps=2),
    "both across": WarpgroupProduct(64, "t", "t", k_steps=2),
    "tf32": WarpgroupProduct(64, k_steps=4, type="f32"),
    "tf32, rows of 64 bytes": WarpgroupProduct(256, swizzle=64, k_steps=2, type="f32"),
    "tf32, rows of 32 bytes": WarpgroupProduct(8, swizzle=32, type="f32"),
    "tf32, left in registers": WarpgroupProduct(32, "r", k_steps=4, type="f32"),
    "left in registers": WarpgroupProduct(64, "r", k_steps=4),
    "left in registers, right across": WarpgroupProduct(128, "r", "t", k_steps=2, type="f16"),
}
