"""Device functions of sm_90a of which there are many: boxes through tensor maps, products of a warpgroup.

Their host texts call the emulator, which does with bytes what the instruction is documented to do; what is in flight,
and who may see what, is kept there.
"""

from __future__ import annotations

from .helper import Helper

BARRIER = "unsigned long long*"
_SHARED = "(unsigned)__cvta_generic_to_shared({})"


def _define(name: str, parameters: str, asm: str, operands: str, host: str, needs: tuple[str, ...] = ()) -> Helper:
    """A function of one instruction."""
    return Helper(
        name,
        f"static __device__ __forceinline__ void {name}({parameters}) {{\n"
        f'  asm volatile("{asm}" :: {operands + " " if operands else ""}: "memory");\n}}',
        f"static inline void {name}({parameters}) {{ {host} }}",
        needs,
    )


def _shared(name: str) -> str:
    return f'"r"({_SHARED.format(name)})'


def box_helpers() -> dict[str, Helper]:
    """Boxes of 1 to 5 dimensions; coordinates as in the IR, the fastest dimension last."""
    found: list[Helper] = []
    for rank in range(1, 6):
        names = [f"c{d}" for d in range(rank)]
        ints, reverse = ", ".join(f"int {n}" for n in names), list(reversed(names))
        array = f"const int at[] = {{{', '.join(names)}}};"
        places = ", ".join(f"%{3 + d}" for d in range(rank))
        operands = ", ".join(f'"r"({n})' for n in reverse)
        found.append(
            _define(
                f"tma_load{rank}",
                f"void* target, const TensorMap* map, {BARRIER} barrier, {ints}",
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                f"[%0], [%1, {{{places}}}], [%2];",
                f'{_shared("target")}, "l"(map), {_shared("barrier")}, {operands}',
                f"{array} emu_tma_load(target, map, barrier, at, {rank});",
                ("TensorMap",),
            )
        )
        found.append(_multicast(rank))
        places = ", ".join(f"%{2 + d}" for d in range(rank))
        found.append(
            _define(
                f"tma_store{rank}",
                f"const TensorMap* map, const void* source, {ints}",
                f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%0, {{{places}}}], [%1];",
                f'"l"(map), {_shared("source")}, {operands}',
                f"{array} emu_tma_store(map, source, at, {rank});",
                ("TensorMap",),
            )
        )
    return {h.name: h for h in found}


def _multicast(rank: int) -> Helper:
    """A box for all blocks of the cluster whose bit is set in `blocks`."""
    names = [f"c{d}" for d in range(rank)]
    places, operands = ", ".join(f"%{4 + d}" for d in range(rank)), ", ".join(f'"r"({n})' for n in reversed(names))
    return _define(
        f"tma_multicast{rank}",
        f"void* target, const TensorMap* map, {BARRIER} barrier, int blocks, {', '.join(f'int {n}' for n in names)}",
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        f"[%0], [%1, {{{places}}}], [%2], %3;",
        f'{_shared("target")}, "l"(map), {_shared("barrier")}, "h"((unsigned short)blocks), {operands}',
        f"const int at[] = {{{', '.join(names)}}}; emu_tma_multicast(target, map, barrier, at, {rank}, blocks);",
        ("TensorMap",),
    )


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
