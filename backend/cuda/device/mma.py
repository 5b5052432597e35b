"""Device functions of a warp's tensor cores: matrices from shared memory into registers, and products of blocks.

A matrix is 8 rows of 16 bytes; a lane holds one word of four bytes of it, two numbers of 16 bits or one f32.
"""

from __future__ import annotations

from ....dialects.kernel.mma import MMA_ATOMS
from ...dtypes import STRUCTS
from .helper import Helper

_STORED = {atom.c_type: (atom.c_type,) if atom.c_type in STRUCTS else () for atom in MMA_ATOMS}
"""The C++ types of elements, with the structs that they need."""


def matrix_helpers() -> dict[str, Helper]:
    """A warp's loads and stores of matrices; only those of 16-bit elements can be transposed."""
    found: dict[str, Helper] = {}
    for element in _STORED:
        for count in (1, 2, 4):
            for trans in ("", "_trans")[: 1 if element == "float" else 2]:
                found[f"ldmatrix_x{count}{trans}.{element}"] = _ldmatrix(element, count, trans)
                found[f"stmatrix_x{count}{trans}.{element}"] = _stmatrix(element, count, trans)
    return found


def warp_product_helpers() -> dict[str, Helper]:
    """The product of a pair of blocks: c and d are rows t / 4 and t / 4 + 8 of the accumulator."""
    found: dict[str, Helper] = {}
    for atom in MMA_ATOMS:
        element, name = atom.c_type, f"mma_{atom.shape}"
        parameters = f"(float* c, float* d, const {element}* a, const {element}* b)"
        found[f"{name}.{element}"] = Helper(
            name,
            f"static __device__ void {name}{parameters} {{\n"
            "  const unsigned *u = (const unsigned*)a, *v = (const unsigned*)b;\n"
            f'  asm volatile("{atom.instruction} {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"\n'
            '               : "+f"(c[0]), "+f"(c[1]), "+f"(d[0]), "+f"(d[1])\n'
            '               : "r"(u[0]), "r"(u[1]), "r"(u[2]), "r"(u[3]), "r"(v[0]), "r"(v[1]));\n}',
            f"static inline void {name}{parameters} {{\n{_LANE_WIDENS[element]}{_mma_host(element)}",
            _STORED[element],
        )
    return found


def _ldmatrix(element: str, count: int, trans: str) -> Helper:
    name, numbers = f"ldmatrix_x{count}{trans}", range(count)
    each = 1 if element == "float" else 2
    mode = f"m8n8.x{count}{trans.replace('_', '.')}.shared.b16"
    places, outputs = ",".join(f"%{i}" for i in numbers), ", ".join(f'"=r"(u[{i}])' for i in numbers)
    parameters = f"({element}* r, const {element}* p)"
    word = f"{each} * (lane % 4) + e"
    row, column = (word, "lane / 4") if trans else ("lane / 4", word)
    return Helper(
        name,
        f"static __device__ void {name}{parameters} {{\n"
        "  unsigned* u = (unsigned*)r;\n"
        f'  asm volatile("ldmatrix.sync.aligned.{mode} {{{places}}}, [%{count}];"\n'
        f'               : {outputs} : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory");\n}}',
        f"static inline void {name}{parameters} {{\n  emu_wide(r, 4);\n"
        "  const int lane = threadIdx.x % 32;\n"
        f"  if (lane < {8 * count}) emu_wide(p, 16);\n"
        f"  for (int m = 0; m < {count}; ++m)\n"
        f"    for (int e = 0; e < {each}; ++e) {{\n"
        f"      const long long from = __shfl_sync(~0u, (long long)p, m * 8 + ({row}) % 8);\n"
        f"      r[m * {each} + e] = ((const {element}*)from)[{column}];\n"
        "    }\n}",
        _STORED[element],
    )


def _stmatrix(element: str, count: int, trans: str) -> Helper:
    name, numbers = f"stmatrix_x{count}{trans}", range(count)
    mode = f"m8n8.x{count}{trans.replace('_', '.')}.shared.b16"
    places, inputs = ",".join(f"%{i + 1}" for i in numbers), ", ".join(f'"r"(u[{i}])' for i in numbers)
    parameters = f"({element}* p, const {element}* r)"
    each = 1 if element == "float" else 2
    word = f"{each} * (lane % 4) + e"
    row, column = (word, "lane / 4") if trans else ("lane / 4", word)
    return Helper(
        name,
        f"static __device__ __forceinline__ void {name}{parameters} {{\n"
        "  const unsigned* u = (const unsigned*)r;\n"
        f'  asm volatile("stmatrix.sync.aligned.{mode} [%0], {{{places}}};"\n'
        f'               :: "r"((unsigned)__cvta_generic_to_shared(p)), {inputs} : "memory");\n}}',
        f"static inline void {name}{parameters} {{\n  emu_wide(r, 4);\n"
        "  const int lane = threadIdx.x % 32;\n"
        f"  if (lane < {8 * count}) emu_wide(p, 16);\n"
        f"  for (int m = 0; m < {count}; ++m)\n"
        f"    for (int e = 0; e < {each}; ++e) {{\n"
        f"      const long long to = __shfl_sync(~0u, (long long)p, m * 8 + ({row}) % 8);\n"
        f"      (({element}*)to)[{column}] = r[m * {each} + e];\n"
        "    }\n}",
        _STORED[element],
    )


_LANE_WIDENS = {
    "bf16": "  const auto widen = [](unsigned x) { x <<= 16; float r; __builtin_memcpy(&r, &x, 4); return r; };\n",
    "f16": """  const auto widen = [](unsigned x) {
    const unsigned sign = (x & 0x8000) << 16, e = (x >> 10) & 31, f = x & 0x3ff;
    unsigned u = sign | (f << 13) | (e == 31 ? 0x7f800000u : (e + 112) << 23);
    if (e == 0) { const float v = (float)f * 5.9604644775390625e-8f; __builtin_memcpy(&u, &v, 4); u |= sign; }
    float r; __builtin_memcpy(&r, &u, 4); return r;
  };
""",
    "float": """  const auto widen = [](unsigned x) {
    x &= 0xffffe000u; float r; __builtin_memcpy(&r, &x, 4); return r;
  };
""",
}
"""From bits to a float; of an f32 the last 13 do not count."""


def _mma_host(element: str) -> str:
    """The four lanes of a row of A, and of a column of B, have all of its k between them."""
    each = 1 if element == "float" else 2
    factors = "widen(u[2 * i + h]) * widen(v[2 * e + i])"
    if each == 2:
        factors = "widen(u[2 * i + h] >> n & 0xffff) * widen(v[2 * e + i] >> n & 0xffff)"
    halves = "          for (int n = 0; n < 32; n += 16)\n  " if each == 2 else ""
    return f"""  emu_wide(a, 4), emu_wide(b, 4);
  const int lane = threadIdx.x % 32, first = lane & ~3;
  float s[4] = {{c[0], c[1], d[0], d[1]}};
  for (int q = 0; q < 4; ++q) {{
    unsigned u[4], v[4];
    for (int i = 0; i < 4; ++i) {{
      unsigned w; __builtin_memcpy(&w, a + {each} * i, 4);
      u[i] = __shfl_sync(~0u, w, first + q);
    }}
    for (int e = 0; e < 2; ++e)
      for (int i = 0; i < 2; ++i) {{
        unsigned w; __builtin_memcpy(&w, b + {each} * i, 4);
        v[2 * e + i] = __shfl_sync(~0u, w, (2 * (lane % 4) + e) * 4 + q);
      }}
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 2; ++e)
        for (int i = 0; i < 2; ++i)
{halves}          s[2 * h + e] += {factors};
  }}
  c[0] = s[0]; c[1] = s[1]; d[0] = s[2]; d[1] = s[3];
}}"""
