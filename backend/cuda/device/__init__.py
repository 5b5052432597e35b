"""The device functions that generated kernels call: the only place with inline assembly and intrinsics.

Every helper has a CUDA text and a host text with the same meaning in plain C++, so that the printed kernels can also be
compiled for a CPU, with host texts in the section between `// --- helpers` and `// --- kernels`. Only helpers that a
module uses are printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from .atomic import atomic_helpers
from .helper import Helper
from .mma import matrix_load_helpers, warp_product_helpers
from .shuffle import pair_helpers
from .sm90 import (
    barrier_helpers,
    box_helpers,
    cluster_helpers,
    matrix_helpers,
    product_helpers,
    wgmma_helper,
    wgmma_names,
)


def _same(name: str, text: str, needs: tuple[str, ...] = ()) -> Helper:
    """A helper that needs nothing but C++."""
    return Helper(name, f"static __device__ {text}", f"static inline {text}", needs)


_ROUND_F16 = """static inline f16 to_f16(float x) {
  unsigned u; __builtin_memcpy(&u, &x, 4);
  const unsigned sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return f16{(unsigned short)0x7fff};
  if (a >= 0x477ff000u) return f16{(unsigned short)(sign | 0x7c00u)};
  if (a < 0x38800000u) {
    if (a < 0x33000000u) return f16{(unsigned short)sign};
    const unsigned shift = 126u - (a >> 23), full = (a & 0x7fffffu) | 0x800000u;
    const unsigned half_up = 1u << (shift - 1), kept = full >> shift, rest = full & ((1u << shift) - 1);
    return f16{(unsigned short)(sign | (kept + (rest > half_up || (rest == half_up && (kept & 1)))))};
  }
  const unsigned r = a + 0xfffu + ((a >> 13) & 1) - 0x38000000u;
  return f16{(unsigned short)(sign | (r >> 13))};
}"""

_WIDEN_F16 = """static inline float to_f32(f16 x) {
  const unsigned sign = (unsigned)(x.bits & 0x8000) << 16, e = (x.bits >> 10) & 31, f = x.bits & 0x3ff;
  unsigned u = sign | (f << 13) | (e == 31 ? 0x7f800000u : (e + 112) << 23);
  if (e == 0) { const float v = (float)f * 5.9604644775390625e-8f; __builtin_memcpy(&u, &v, 4); u |= sign; }
  float r; __builtin_memcpy(&r, &u, 4); return r;
}"""

_TO_BF16 = """static inline bf16 to_bf16(float x) {
  unsigned u; __builtin_memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{(unsigned short)0x7fff};
  return bf16{(unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}"""

_POWER = """{
  if (n < 0) return b == 1 ? 1 : b == -1 ? (n % 2 ? -1 : 1) : 0;
  unsigned long long r = 1, p = (unsigned long long)b;
  for (; n; n >>= 1, p *= p) r = n & 1 ? r * p : r;
  return (long long)r;
}"""

HELPERS: dict[str, Helper] = {
    "to_f32.bf16": Helper(
        "to_f32",
        "static __device__ float to_f32(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }",
        "static inline float to_f32(bf16 x) {\n"
        "  const unsigned u = (unsigned)x.bits << 16; float r; __builtin_memcpy(&r, &u, 4); return r;\n}",
        ("bf16",),
    ),
    "to_bf16": Helper(
        "to_bf16",
        'static __device__ bf16 to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); '
        "return r; }",
        _TO_BF16,
        ("bf16",),
    ),
    "to_f32.f16": Helper(
        "to_f32",
        'static __device__ float to_f32(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); '
        "return r; }",
        _WIDEN_F16,
        ("f16",),
    ),
    "to_f16": Helper(
        "to_f16",
        # The conversion of two numbers: that of one, behind products of warpgroups that run on into the next iteration,
        # is a reason for ptxas to make these wait for each other (C7514).
        "static __device__ f16 to_f16(float x) {\n"
        '  unsigned r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(0.0f), "f"(x));\n'
        "  return {(unsigned short)r};\n}",
        _ROUND_F16,
        ("f16",),
    ),
    "round_tf32": Helper(
        "round_tf32",
        "static __device__ float round_tf32(float x) {\n"
        '  unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return __uint_as_float(r);\n}',
        "static inline float round_tf32(float x) {\n"
        "  unsigned u; __builtin_memcpy(&u, &x, 4);\n"
        "  u = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : (u + 0x1000u) & 0xffffe000u;\n"
        "  __builtin_memcpy(&x, &u, 4); return x;\n}",
    ),
    "exp2_approx": Helper(
        "exp2_approx",
        "static __device__ float exp2_approx(float x) "
        '{ float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }',
        "static inline float exp2_approx(float x) { return x < -126.0f ? 0.0f : __builtin_exp2f(x); }",
    ),
    "asserted": Helper(
        "asserted",
        "static __device__ long long asserted(long long x, bool holds, const char* what) {\n"
        '  if (!holds) { printf("%s: %lld\\n", what, x); asm volatile("trap;"); }\n  return x;\n}',
        "static inline long long asserted(long long x, bool holds, const char* what) "
        "{ if (!holds) emu_assert(what, x); return x; }",
    ),
    "inf32": Helper(
        "inf32",
        "static __device__ float inf32() { return __uint_as_float(0x7f800000u); }",
        "static inline float inf32() { return __builtin_inff(); }",
    ),
    "nan32": Helper(
        "nan32",
        "static __device__ float nan32() { return __uint_as_float(0x7fc00000u); }",
        'static inline float nan32() { return __builtin_nanf(""); }',
    ),
    "inf64": Helper(
        "inf64",
        "static __device__ double inf64() { return __longlong_as_double(0x7ff0000000000000ll); }",
        "static inline double inf64() { return __builtin_inf(); }",
    ),
    "nan64": Helper(
        "nan64",
        "static __device__ double nan64() { return __longlong_as_double(0x7ff8000000000000ll); }",
        'static inline double nan64() { return __builtin_nan(""); }',
    ),
    "floor_div": _same(
        "floor_div",
        "long long floor_div(long long a, long long b) "
        "{ return int_div(a, b) - (int_rem(a, b) != 0 && (a < 0) != (b < 0)); }",
        ("int_div.long long", "int_rem.long long"),
    ),
    "ceil_div": _same(
        "ceil_div",
        "long long ceil_div(long long a, long long b) "
        "{ return int_div(a, b) + (int_rem(a, b) != 0 && (a < 0) == (b < 0)); }",
        ("int_div.long long", "int_rem.long long"),
    ),
    "int_pow": _same("int_pow", f"long long int_pow(long long b, long long n) {_POWER}"),
}


def _nan_propagating(name: str, sign: str) -> None:
    asm = f'asm("{name[:3]}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b))'
    body = f"{{ return a != a || a {sign} b ? a : b; }}"
    HELPERS[f"{name}.float"] = Helper(
        name,
        f"static __device__ float {name}(float a, float b) {{ float r; {asm}; return r; }}",
        f"static inline float {name}(float a, float b) {body}",
    )
    HELPERS[f"{name}.double"] = _same(name, f"double {name}(double a, double b) {body}")


_nan_propagating("max_nan", ">")
_nan_propagating("min_nan", "<")


def _wrapping(name: str, operator: str) -> None:
    """Two's complement arithmetic on signed integers, which C++ leaves undefined on overflow."""
    for t, u in (("int", "unsigned"), ("long long", "unsigned long long")):
        text = f"{t} {name}({t} a, {t} b) {{ return ({t})(({u})a {operator} ({u})b); }}"
        HELPERS[f"{name}.{t}"] = _same(name, text)


for _name, _operator in (("wrap_add", "+"), ("wrap_sub", "-"), ("wrap_mul", "*")):
    _wrapping(_name, _operator)


def _shifting() -> None:
    """Shifts by any number of bits, which C++ leaves undefined where the type has not so many, and to the left of what
    is negative: all bits leave, as they would one by one. A negative number is more than any type has."""
    for t, bits in (("int", 32), ("unsigned", 32), ("long long", 64), ("unsigned long long", 64)):
        u = t if t.startswith("unsigned") else f"unsigned {t}".removesuffix(" int")
        left = f"{{ return ({u})b < {bits} ? ({t})(({u})a << b) : 0; }}"
        right = f"{{ return a >> (({u})b < {bits} ? b : {bits - 1}); }}"
        right = right if t != u else f"{{ return b < {bits} ? a >> b : 0; }}"
        HELPERS[f"shift_left.{t}"] = _same("shift_left", f"{t} shift_left({t} a, {t} b) {left}")
        HELPERS[f"shift_right.{t}"] = _same("shift_right", f"{t} shift_right({t} a, {t} b) {right}")


_shifting()


def _dividing() -> None:
    """Division of integers in every lane, also one that holds no element: by zero it gives all ones, the quotient of
    the least number and -1 wraps. C++ leaves both undefined."""
    for t, u in (("int", "unsigned"), ("long long", "unsigned long long")):
        for name, operator, by_minus_one in (("int_div", "/", f"({t})(0 - ({u})a)"), ("int_rem", "%", "0")):
            signed = f"{{ return b == 0 ? -1 : b == -1 ? {by_minus_one} : a {operator} b; }}"
            HELPERS[f"{name}.{t}"] = _same(name, f"{t} {name}({t} a, {t} b) {signed}")
            unsigned = f"{{ return b == 0 ? ~({u})0 : a {operator} b; }}"
            HELPERS[f"{name}.{u}"] = _same(name, f"{u} {name}({u} a, {u} b) {unsigned}")


_dividing()


def _bit_casts() -> None:
    pairs = [
        ("float", "int", "__int_as_float(x)", "__float_as_int(x)", "float", "int"),
        ("double", "long long", "__longlong_as_double(x)", "__double_as_longlong(x)", "double", "long"),
    ]
    for f, n, to_float, to_int, float_word, int_word in pairs:
        for result, source, expression, word in ((f, n, to_float, float_word), (n, f, to_int, int_word)):
            name = f"bits_to_{word}"
            HELPERS[name] = Helper(
                name,
                f"static __device__ {result} {name}({source} x) {{ return {expression}; }}",
                f"static inline {result} {name}({source} x) "
                f"{{ {result} r; __builtin_memcpy(&r, &x, sizeof r); return r; }}",
            )


_bit_casts()


def _copy_helpers() -> None:
    """Asynchronous copies from global to shared memory; `_or_zero` brings zeros where `inside` is false."""
    address = '"r"((unsigned)__cvta_generic_to_shared(target)), "l"(source)'
    for size in (4, 8, 16):
        mode, name = "cg" if size == 16 else "ca", f"copy_async{size}"
        parameters = "void* target, const void* source"
        copy = f"cp.async.{mode}.shared.global [%0], [%1], {size}"
        HELPERS[name] = Helper(
            name,
            f'static __device__ void {name}({parameters}) {{\n  asm volatile("{copy};" :: {address} : "memory");\n}}',
            f"static inline void {name}({parameters}) {{ emu_copy_async(target, source, {size}, true); }}",
        )
        HELPERS[f"{name}_or_zero"] = Helper(
            f"{name}_or_zero",
            f"static __device__ void {name}_or_zero({parameters}, bool inside) {{\n"
            f'  asm volatile("{copy}, %2;" :: {address}, "r"(inside ? {size} : 0) : "memory");\n}}',
            f"static inline void {name}_or_zero({parameters}, bool inside) "
            f"{{ emu_copy_async(target, source, {size}, inside); }}",
        )
    HELPERS["copy_async_commit"] = Helper(
        "copy_async_commit",
        'static __device__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }',
        "static inline void copy_async_commit() { emu_copy_commit(); }",
    )
    HELPERS["copy_async_wait"] = Helper(
        "copy_async_wait",
        "template <int n> static __device__ void copy_async_wait() "
        '{ asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory"); }',
        "template <int n> static inline void copy_async_wait() { emu_copy_wait(n); }",
    )


_copy_helpers()


HELPERS.update(
    {**matrix_load_helpers(), **warp_product_helpers(), **barrier_helpers(), **box_helpers(), **product_helpers()}
)
HELPERS.update({**matrix_helpers(), **cluster_helpers(), **pair_helpers(), **atomic_helpers()})

STRUCTS = {
    "TensorMap": "struct __align__(64) TensorMap { unsigned long long words[16]; };",
    "bf16": "struct bf16 { unsigned short bits; };",
    "f16": "struct f16 { unsigned short bits; };",
}
"""Storage types, sixteen bits on which nothing is computed, and what the host passes. They come first in both texts."""

_WORD_OF_BYTES = {2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
_WIDE_FLOAT = {("float", 4): "float4", ("float", 2): "float2", ("double", 2): "double2"}


def access_helper(key: str) -> Helper:
    """A wide access, by a key such as `ld4.float.4`: kind and count, element type, its bytes.

    `ldN(r, p)` reads N elements at p into the registers r, `stN(p, r)` writes them, both as one access aligned to its
    size; `fillN(r, v)` sets N registers.
    """
    head, element, size = key.split(".")
    kind, count = re.fullmatch(r"(ld|st|fill)(\d+)", head).groups()  # pyright: ignore[reportOptionalMemberAccess]
    needs = (element,) if element in STRUCTS else ()
    if kind == "fill":
        body = f"{{ for (int i = 0; i < {count}; ++i) r[i] = v; }}"
        return _same(head, f"void {head}({element}* r, {element} v) {body}", needs)
    wide = _WIDE_FLOAT.get((element, int(count))) or _WORD_OF_BYTES[int(count) * int(size)]
    if kind == "ld":
        parameters, body = f"({element}* r, const {element}* p)", f"{{ *({wide}*)r = *(const {wide}*)p; }}"
        host = "{ for (int i = 0; i < " + count + "; ++i) r[i] = p[i]; }"
        generic = f"template <class P> static inline void {head}({element}* r, P p) {host}"
    else:
        parameters, body = f"({element}* p, const {element}* r)", f"{{ *({wide}*)p = *(const {wide}*)r; }}"
        host = "{ for (int i = 0; i < " + count + "; ++i) p[i] = r[i]; }"
        generic = f"template <class P> static inline void {head}(P p, const {element}* r) {host}"
    return Helper(head, f"static __device__ void {head}{parameters} {body}", generic, needs)


def get_helper(key: str) -> Helper:
    """The helper of a key of `HELPERS`, a wide access (`ld4.float.4`) or a product (`wgmma_128kk.bf16`)."""
    if key in HELPERS:
        return HELPERS[key]
    return wgmma_helper(key) if key.startswith("wgmma_") else access_helper(key)


@cache
def _assembly() -> dict[str, str]:
    """The host text for the text, without white space, of every fixed helper with inline assembly."""
    return {"".join(h.cuda.split()): h.host for h in HELPERS.values() if "asm" in h.cuda}


def host_text_of(cuda: str) -> str | None:
    """The host text of a helper, from its CUDA text with any white space; None for what is no helper."""
    squeezed = "".join(cuda.split())
    product = re.search(r"(wgmma_(?:tf32_)?\d+[krt][kt])\(.*k\d+\.f32\.(bf16|f16|tf32)\.", squeezed)
    if product is None:
        return _assembly().get(squeezed)
    helper = wgmma_helper(f"{product[1]}.{product[2].replace('tf32', 'float')}")
    return helper.host if "".join(helper.cuda.split()) == squeezed else None


def helper_names() -> frozenset[str]:
    """Every C++ name that a helper may have."""
    wide = {f"{kind}{1 << n}" for kind in ("ld", "st", "fill") for n in range(1, 5)}
    return frozenset({h.name for h in HELPERS.values()} | wide | set(STRUCTS) | wgmma_names())


def helper_section(keys: Iterable[str], *, host: bool = False) -> str:
    """The definitions of the helpers in `keys` and of what they need, for the device or for the host."""
    wanted: set[str] = set()
    todo = list(keys)
    while todo:
        key = todo.pop()
        if key not in wanted:
            wanted.add(key)
            todo += () if key in STRUCTS else get_helper(key).needs
    lines = [STRUCTS[key] for key in STRUCTS if key in wanted]
    for key in sorted(wanted - set(STRUCTS), key=lambda k: (not set(get_helper(k).needs) <= set(STRUCTS), k)):
        helper = get_helper(key)  # those that need another one last
        lines.append(helper.host if host else helper.cuda)
    return "\n".join(lines) + "\n" if lines else ""
