"""Device functions of the products of a warpgroup, of which there are many.

Their host texts call the emulator, which does with bytes what the instruction is documented to do; what is in flight,
and who may see what, is kept there.
"""

from __future__ import annotations

from .helper import Helper


def wgmma_key(columns: int, element: str, registers: bool, lhs_transposed: bool, rhs_transposed: bool) -> str:
    """The key of a product: 64 x `columns` x 16 (8 of float), A in `registers` or in shared memory."""
    a = "r" if registers else "t" if lhs_transposed else "k"
    tf32 = "tf32_" if element == "float" else ""
    return f"wgmma_{tf32}{columns}{a}{'t' if rhs_transposed else 'k'}.{element}"


def wgmma_names() -> set[str]:
    """What products may be called."""
    narrow = {f"wgmma_{n}{a}{b}" for n in range(8, 257, 8) for a in "krt" for b in "kt"}
    return narrow | {f"wgmma_tf32_{n}{a}k" for n in range(8, 257, 8) for a in "kr"}


_FORMATS = {"bf16": 0, "f16": 1, "float": 2}
"""What the emulator calls the formats of factors."""


def wgmma_helper(key: str) -> Helper:
    """The product of a key of `wgmma_key`: d = (accumulate ? d : 0) + a * b."""
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
        f"static inline void {name}({parameters}) "
        f"{{ {check}emu_wgmma(d, {columns}, {'0, a' if registers else 'a, 0'}, b, accumulate, "
        f"{int(a == 't')}, {int(b == 't')}, {_FORMATS[element]}); }}",
        () if wide else (element,),
    )
