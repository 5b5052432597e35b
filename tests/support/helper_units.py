"""Kernels that each test one CUDA device function which no kernel of `hopper_units.py` or `cluster_units.py` calls.

The same CUDA text runs on a GPU, where the device function is an instruction, and in the emulator, where it is plain
C++. The results must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from deplodock.backend.cpp.device import atomic_helpers
from deplodock.backend.cpp.writer import helper_section
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import Buffer, Launch, LaunchPlan, TensorMap

C_TYPES = {"f32": "float", "f64": "double", "i32": "int", "i64": "long long", "bf16": "bf16", "f16": "f16"}
NUMPY = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
NUMPY |= {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
IR = {c: name for name, c in C_TYPES.items()}


@dataclass(frozen=True)
class HelperUnit:
    """A kernel `k0` with inputs `a`, `b`, `c` and a result `y`, which tests one or more device functions.

    Attributes:
        keys: names of the device functions under test.
        body: CUDA text of the kernel's body.
        inputs: element type and values of each input.
        result: element type of the result.
        count: number of elements of the result.
        threads: threads of a block.
        cluster: blocks of a cluster.
        more: names of other device functions that the body calls.
        box: the unit's tensor map, or None: index of the argument that it describes (inputs first, then the result),
            shape of the box, shape of the tensor.
        exact: whether results on a GPU must equal those of the emulator bit for bit.
        shape: shape of the result, if it has more than one dimension.
    """

    keys: tuple[str, ...]
    body: str
    inputs: tuple[tuple[str, np.ndarray], ...]
    result: str
    count: int
    threads: int = 128
    cluster: int = 1
    more: tuple[str, ...] = ()
    box: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None
    exact: bool = True
    shape: tuple[int, ...] = field(default=())

    def text(self) -> str:
        """Returns the CUDA text, with the helpers that the printer would add."""
        names = [f"const {C_TYPES[d]}* __restrict__ {n}" for (d, _), n in zip(self.inputs, "abc", strict=False)]
        names.append(f"{C_TYPES[self.result]}* __restrict__ y")
        names += ["const __grid_constant__ TensorMap boxes"] if self.box else []
        types = {t for t in (*[d for d, _ in self.inputs], self.result) if t in ("bf16", "f16")}
        keys = {*self.keys, *self.more, *types, *(["TensorMap"] if self.box else [])}
        cluster = f"__cluster_dims__({self.cluster}, 1, 1) " if self.cluster > 1 else ""
        head = f'extern "C" __global__ void {cluster}__launch_bounds__({self.threads}) k0({", ".join(names)}) {{'
        begin = "  extern __shared__ __align__(1024) unsigned char smem[];\n  const int t = threadIdx.x;"
        return f"// --- helpers\n{helper_section(keys)}\n// --- kernels\n{head}\n{begin}\n{self.body}\n}}\n"

    def plan(self) -> LaunchPlan:
        """Returns a plan with one launch.

        It has one cluster if the unit has clusters, one thread per element of the result if the body reads `blockIdx`,
        and otherwise one block.
        """
        shapes = [a.shape for _, a in self.inputs]
        buffers = [Buffer(f"x{i}", s, d, 0, 0) for i, ((d, _), s) in enumerate(zip(self.inputs, shapes, strict=True))]
        buffers.append(Buffer("y", self.shape or (self.count,), self.result, 0, 0, written=True))
        maps = ()
        if self.box is not None:
            argument, box, shape = self.box
            maps = (TensorMap(argument, shape, buffers[argument].dtype, box, 0),)
        block_count = (
            self.cluster if self.cluster > 1 else -(-self.count // self.threads) if "blockIdx" in self.body else 1
        )
        launch = Launch("k0", (block_count,), (self.threads,), 16384, tuple(range(len(buffers))), maps=maps)
        return LaunchPlan(tuple(buffers), (launch,), len(buffers), len(buffers) - 1)


def _bits(dtype: str) -> np.ndarray:
    """Returns all numbers of a 16-bit type, or a sample of the numbers of a wider type."""
    if dtype in ("bf16", "f16"):
        return np.arange(0, 2**16, dtype=np.uint16).view(NUMPY[dtype])
    if dtype == "f32":
        values = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
        # Make NaNs quiet, as arithmetic does: an H200 rounds the signalling NaN 0xff80069f to infinity in tf32.
        values[np.isnan(values.view("f4"))] |= 0x400000
        return np.concatenate([values, np.array([0x7F800000, 0xFF800000, 0x33000001, 0x80000000], np.uint32)]).view(
            "f4"
        )
    rng = np.random.default_rng(1)
    return rng.integers(-(2**62), 2**62, 4096, dtype=np.int64) >> rng.integers(0, 62, 4096)


def _elementwise(key: str, result: str, expression: str, *inputs: str, **options: Any) -> HelperUnit:
    """Returns the unit of an elementwise function.

    Args:
        key: name of the device function.
        result: element type of the result.
        expression: C++ expression of `a[i]` and `b[i]`.
        *inputs: element types of the inputs. The second input has the numbers of the first one in another order.
        **options: fields of `HelperUnit`; `shifts` and `raises` make the second input a shift count or an exponent.
    """
    arrays: list[tuple[str, np.ndarray]] = []
    for i, dtype in enumerate(inputs):
        with np.errstate(invalid="ignore"):  # The conversion makes NaNs quiet.
            values = _bits({"f64": "f32", "i32": "i64"}.get(dtype, dtype)).astype(NUMPY[dtype])
        arrays.append((dtype, np.ascontiguousarray(np.roll(values, 997 * i)[:: -1 if i else 1])))
    if options.pop("shifts", False):
        # Shift counts include negative ones and counts beyond the width of the type.
        arrays[1] = (inputs[1], arrays[1][1] % 83 - 9)
    if options.pop("raises", False):
        arrays[1] = (inputs[1], arrays[1][1] % 13)
    count = arrays[0][1].size
    body = f"  const int i = blockIdx.x * 128 + t;\n  if (i < {count}) y[i] = {expression};"
    return HelperUnit((key,), body, tuple(arrays), result, count, **options)


def _scalars() -> list[HelperUnit]:
    units = [
        _elementwise("to_f32.bf16", "f32", "to_f32(a[i])", "bf16"),
        _elementwise("to_f32.f16", "f32", "to_f32(a[i])", "f16"),
        _elementwise("to_bf16", "bf16", "to_bf16(a[i])", "f32"),
        _elementwise("to_f16", "f16", "to_f16(a[i])", "f32"),
        _elementwise("round_tf32", "f32", "round_tf32(a[i])", "f32"),
        _elementwise("round_bf16", "f32", "round_bf16(a[i])", "f32"),
        _elementwise("exp2_approx", "f32", "exp2_approx(a[i])", "f32", exact=False),
        _elementwise("floor_div", "i64", "floor_div(a[i], b[i])", "i64", "i64"),
        _elementwise("ceil_div", "i64", "ceil_div(a[i], b[i])", "i64", "i64"),
        _elementwise("asserted", "i64", 'asserted(a[i], a[i] == a[i], "holds")', "i64"),
        _elementwise("int_pow", "i64", "int_pow(a[i], b[i])", "i64", "i64", raises=True),
        _elementwise("bits_to_float", "f32", "bits_to_float(a[i])", "i32"),
        _elementwise("bits_to_int", "i32", "bits_to_int(a[i])", "f32"),
        _elementwise("bits_to_double", "f64", "bits_to_double(a[i])", "i64"),
        _elementwise("bits_to_long", "i64", "bits_to_long(a[i])", "f64"),
    ]
    for name in ("inf", "nan"):
        units += [_elementwise(f"{name}{n}", f"f{n}", f"{name}{n}()", f"f{n}") for n in (32, 64)]
    for name in ("max_nan", "min_nan"):
        units += [_elementwise(f"{name}.{C_TYPES[d]}", d, f"{name}(a[i], b[i])", d, d) for d in ("f32", "f64")]
    for d in ("f32", "f64"):
        units.append(_elementwise(f"log_add_exp.{C_TYPES[d]}", d, "log_add_exp(a[i], b[i])", d, d, exact=False))
    for name in ("int_div", "int_rem", "shift_left", "shift_right"):
        for d in ("i32", "i64"):
            c = C_TYPES[d]
            u = {"int": "unsigned", "long long": "unsigned long long"}[c]
            shifts = name.startswith("shift")
            units.append(_elementwise(f"{name}.{c}", d, f"{name}(a[i], b[i])", d, d, shifts=shifts))
            units.append(_elementwise(f"{name}.{u}", d, f"({c}){name}(({u})a[i], ({u})b[i])", d, d, shifts=shifts))
    for name in ("wrap_add", "wrap_sub", "wrap_mul"):
        units += [_elementwise(f"{name}.{C_TYPES[d]}", d, f"{name}(a[i], b[i])", d, d) for d in ("i32", "i64")]
    return units


def _numbers(dtype: str, count: int) -> np.ndarray:
    return ((np.arange(count) * 7) % 251 - 120).astype(NUMPY[dtype])


def _matrices() -> list[HelperUnit]:
    """Returns the units of a warp's loads and stores of 8x16-byte matrices (ldmatrix, stmatrix)."""
    units: list[HelperUnit] = []
    for c in ("bf16", "f16", "float"):
        row, each = (4, 1) if c == "float" else (8, 2)
        for n in (1, 2, 4):
            for trans in ("",) if c == "float" else ("", "_trans"):
                size, place = 8 * n * row, f"s + (t % {8 * n}) * {row}"
                fill = f"  {c}* s = ({c}*)smem;\n  __align__(16) {c} r[{n * each}];\n"
                load = (
                    f"{fill}  for (int j = t; j < {size}; j += 32) s[j] = a[j];\n  __syncthreads();\n"
                    f"  ldmatrix_x{n}{trans}(r, {place});\n"
                    f"  for (int j = 0; j < {n * each}; ++j) y[t * {n * each} + j] = r[j];"
                )
                store = (
                    f"{fill}  for (int j = 0; j < {n * each}; ++j) r[j] = a[t * {n * each} + j];\n"
                    f"  stmatrix_x{n}{trans}({place}, r);\n  __syncthreads();\n"
                    f"  for (int j = t; j < {size}; j += 32) y[j] = s[j];"
                )
                x = ((IR[c], _numbers(IR[c], size)),)
                for name, body in (("ldmatrix", load), ("stmatrix", store)):
                    units.append(HelperUnit((f"{name}_x{n}{trans}.{c}",), body, x, IR[c], size, 32))
    return units


def _copies() -> list[HelperUnit]:
    units: list[HelperUnit] = []
    for size in (4, 8, 16):
        n = size // 4
        for zero in ("", "_or_zero"):
            inside = ", t % 3 != 1" if zero else ""
            body = (
                f"  float* s = (float*)smem;\n  copy_async{size}{zero}(s + {n} * t, a + {n} * t{inside});\n"
                f"  copy_async_commit();\n  copy_async_wait<0>();\n  __syncthreads();\n"
                f"  for (int j = t; j < {128 * n}; j += 128) y[j] = s[j];"
            )
            more = ("copy_async_commit", "copy_async_wait")
            x = (("f32", _numbers("f32", 128 * n)),)
            units.append(HelperUnit((f"copy_async{size}{zero}",), body, x, "f32", 128 * n, more=more))
    return units


def _pairs() -> list[HelperUnit]:
    calls = {
        "shuffle_pair": "shuffle_pair(r, v, (t * 5 + 3) % 32)",
        "shuffle_xor_pair": "shuffle_xor_pair(r, v, 9)",
        "choose_pair": "choose_pair(r, v, w, t % 3 == 0)",
        "copy_pair": "copy_pair(r, v)",
    }
    units: list[HelperUnit] = []
    for d in ("bf16", "f16"):
        for name, call in calls.items():
            body = (
                f"  __align__(4) {d} r[2], v[2] = {{a[2 * t], a[2 * t + 1]}}, w[2] = {{a[63 - t], a[t]}};\n"
                f"  {call};\n  y[2 * t] = r[0];\n  y[2 * t + 1] = r[1];"
            )
            units.append(HelperUnit((f"{name}.{d}",), body, ((d, _numbers(d, 64)),), d, 64, 32))
    return units


def _boxes() -> list[HelperUnit]:
    """Returns the units of TMA tiles for each rank: two consecutive stores, and multicast loads of two blocks.

    The stored tiles fill the whole buffer, because TMA stores are not ordered after earlier writes of threads to it.
    """
    units: list[HelperUnit] = []
    for rank in range(1, 6):
        box = (*[2] * (rank - 1), 32)
        shape, size = (2 * box[0], *box[1:]), 2 ** (rank - 1) * 32
        zeros = ", 0" * (rank - 1)
        store = f"""  float* s = (float*)smem;
  for (int j = t; j < {2 * size}; j += 32) s[j] = a[j];
  fence_async();
  __syncthreads();
  if (t == 0) {{
    tma_store{rank}(&boxes, s, 0{zeros});
    tma_store{rank}(&boxes, s + {size}, {box[0]}{zeros});
    bulk_commit();
    bulk_wait_read<0>();
    bulk_wait<0>();
  }}"""
        x = (("f32", _numbers("f32", 2 * size)),)
        more = ("bulk_commit", "bulk_wait_read", "bulk_wait", "fence_async")
        fields: dict[str, Any] = {"more": more, "box": (1, box, shape), "shape": shape}
        units.append(HelperUnit((f"tma_store{rank}",), store, x, "f32", 2 * size, 32, **fields))
        both = f"""  float* s = (float*)smem;
  unsigned long long* full = (unsigned long long*)(smem + 8192);
  const int r = blockIdx.x % 2;
  if (t == 0) {{
    mbar_init(full, 1);
    fence_mbar_init();
  }}
  cluster_barrier();
  if (t == 0) {{
    mbar_expect(full, {8 * size});
    tma_multicast{rank}(s + r * {size}, &boxes, full, 3, {box[0]} * r{zeros});
  }}
  mbar_wait(full, 0);
  for (int j = t; j < {2 * size}; j += 32) y[r * {2 * size} + j] = s[j];
  cluster_barrier();"""
        whole = (("f32", _numbers("f32", 2 * size).reshape(shape)),)
        more = ("mbar_init", "fence_mbar_init", "cluster_barrier", "mbar_expect", "mbar_wait")
        fields = {"more": more, "box": (0, box, shape), "cluster": 2}
        units.append(HelperUnit((f"tma_multicast{rank}",), both, whole, "f32", 4 * size, 32, **fields))
    return units


def _signal() -> HelperUnit:
    body = """  unsigned long long* full = (unsigned long long*)smem;
  if (t == 0) {
    mbar_init(full, 1);
    fence_mbar_init();
  }
  cluster_barrier();
  if (t == 0) mbar_signal_at(full, 1 - (int)(blockIdx.x % 2));
  mbar_wait(full, 0);
  y[blockIdx.x * 32 + t] = a[t] + 1.0f;
  cluster_barrier();"""
    more = ("mbar_init", "fence_mbar_init", "cluster_barrier", "mbar_wait")
    return HelperUnit(("mbar_signal_at",), body, (("f32", _numbers("f32", 32)),), "f32", 64, 32, 2, more)


def _print() -> HelperUnit:
    """Returns the unit of `printf`: one thread prints, and the result is the argument."""
    body = """  if (t == 0) print_line("[%lld] = %.9g\\n", (long long)t, (double)a[t]);
  y[t] = a[t];"""
    return HelperUnit(("print_line",), body, (("f32", _numbers("f32", 32)),), "f32", 32, 32)


def _atomics() -> list[HelperUnit]:
    """Returns the units of atomics: 128 threads update 8 elements with values for which the order has no effect."""
    units: list[HelperUnit] = []
    for key in atomic_helpers():
        name, c = key.split(".")
        dtype, rng = IR[c], np.random.default_rng(len(key))
        if name == "atomic_mul":
            values = rng.choice([-2, -1, 1, 2, 3] if dtype[0] == "i" else [-2.0, -1.0, 0.5, 1.0, 4.0], 136)
        elif name in ("atomic_and", "atomic_or"):
            values = (1 << rng.integers(0, 31, 136)) ^ (-1 if name == "atomic_and" else 0)
        else:
            values = rng.integers(-(2**20), 2**20, 136)
        numbers = values.astype(NUMPY[dtype])
        body = f"""  if (t < 8) y[t] = b[t];
  __syncthreads();
  {name}(&y[t % 8], a[t]);"""
        units.append(HelperUnit((key,), body, ((dtype, numbers[8:]), (dtype, numbers[:8])), dtype, 8))
    return units


_UNITS = (*_scalars(), *_matrices(), *_copies(), *_pairs(), *_boxes(), _signal(), _print(), *_atomics())
HELPER_UNITS = {unit.keys[0]: unit for unit in _UNITS}


@cache
def _emulated() -> dict[str, EmulatedProgram]:
    """Returns all units, built for the emulator with one run of the C++ compiler."""
    texts = {name: unit.text() for name, unit in HELPER_UNITS.items()}
    built = compile_many(list(texts.values()))
    return {n: EmulatedProgram(texts[n], HELPER_UNITS[n].plan(), b) for n, b in zip(texts, built, strict=True)}


@cache
def emulated_result(name: str) -> np.ndarray:
    """Runs a unit in the emulator. Returns the result; asserts that the emulator reports no error."""
    (result,), reports = _emulated()[name].run([a for _, a in HELPER_UNITS[name].inputs], (0, 1))
    assert [str(r) for r in reports] == []
    return result


def save_results(file: Path) -> None:
    """Writes the emulated results of all units to a file. They are stored as bytes, because NumPy cannot save bf16."""
    np.savez_compressed(file, **{name: emulated_result(name).view(np.uint8) for name in HELPER_UNITS})  # pyright: ignore


@cache
def saved_results(file: str) -> dict[str, np.ndarray]:
    """Reads a file of `save_results`. Returns the results by unit name."""
    with np.load(file) as arrays:
        return {name: arrays[name].view(NUMPY[HELPER_UNITS[name].result]) for name in arrays.files}
