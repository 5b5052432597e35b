"""Device functions of sm_90a: mbarriers, boxes through tensor maps, products of a warpgroup, registers of partitions.

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


def barrier_helpers() -> dict[str, Helper]:
    """mbarriers, and barriers of some warps."""
    bar, at = f"{BARRIER} barrier", _shared("barrier")
    found = [
        _define(
            "mbar_init",
            f"{bar}, int arrivals",
            "mbarrier.init.shared::cta.b64 [%0], %1;",
            f'{at}, "r"(arrivals)',
            "emu_mbar_init(barrier, arrivals);",
        ),
        _define(
            "mbar_expect",
            f"{bar}, int bytes",
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
            f'{at}, "r"(bytes)',
            "emu_mbar_arrive(barrier, bytes);",
        ),
        _define("mbar_arrive", bar, "mbarrier.arrive.shared::cta.b64 _, [%0];", at, "emu_mbar_arrive(barrier, 0);"),
        _define("fence_mbar_init", "", "fence.mbarrier_init.release.cluster;", "", "emu_fence_mbar_init();"),
        _define("fence_async", "", "fence.proxy.async.shared::cta;", "", "emu_fence_async();"),
        *(_wait(name, scope) for name, scope in (("mbar_wait", ""), ("mbar_wait_cluster", ".acquire.cluster"))),
        Helper(
            "group_barrier",
            "template <int threads> static __device__ __forceinline__ void group_barrier(int number) {\n"
            '  asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(threads) : "memory");\n}',
            "template <int threads> static inline void group_barrier(int number) "
            '{ emu_named_barrier(0, "group_barrier", number, threads); }',
        ),
    ]
    for name, mode, more in (("take_registers", "inc", "true"), ("give_registers", "dec", "false")):
        asm = f'asm volatile("setmaxnreg.{mode}.sync.aligned.u32 %0;" :: "n"(n));'
        found.append(
            Helper(
                name,
                f"template <int n> static __device__ __forceinline__ void {name}() {{ {asm} }}",
                f"template <int n> static inline void {name}() {{ emu_set_registers(n, {more}); }}",
            )
        )
    return {h.name: h for h in found}


def _wait(name: str, scope: str) -> Helper:
    """The wait for a phase of an mbarrier at which threads within `scope` arrive."""
    return Helper(
        name,
        f"static __device__ __forceinline__ void {name}({BARRIER} barrier, int parity) {{\n"
        "  for (unsigned done = 0; !done;)\n"
        f'    asm volatile("{{\\n.reg .pred p;\\nmbarrier.try_wait.parity{scope}.shared::cta.b64 p, [%1], %2;\\n'
        'selp.u32 %0, 1, 0, p;\\n}"\n'
        f'                 : "=r"(done) : {_shared("barrier")}, "r"(parity) : "memory");\n}}',
        f"static inline void {name}({BARRIER} barrier, int parity) {{ emu_mbar_wait(barrier, parity); }}",
    )


def cluster_helpers() -> dict[str, Helper]:
    """The barrier of a cluster, other blocks' shared memory and barriers. A pointer from `cluster_peer` is generic, so
    ordinary loads read through it."""
    remote = "{\\n.reg .b32 at;\\nmapa.shared::cluster.u32 at, %0, %1;\\n"
    found = [
        _define(
            "cluster_barrier",
            "",
            "barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;",
            "",
            "emu_cluster_barrier();",
        ),
        *(
            _define(
                name,
                f"{BARRIER} barrier, int rank",
                f"{remote}mbarrier.arrive{scope}.shared::cluster.b64 _, [at];\\n}}",
                f'{_shared("barrier")}, "r"(rank)',
                f"emu_mbar_arrive_at(barrier, rank, {only});",
            )
            for name, scope, only in (("mbar_arrive_at", ".release.cluster", "false"), ("mbar_signal_at", "", "true"))
        ),
        Helper(
            "cluster_peer",
            "template <class T> static __device__ __forceinline__ const T* cluster_peer(const T* p, int rank) {\n"
            "  const T* peer;\n"
            '  asm("mapa.u64 %0, %1, %2;" : "=l"(peer) : "l"(p), "r"(rank));\n'
            "  return peer;\n}",
            "template <class T> static inline const T* cluster_peer(const T* p, int rank) "
            "{ return (const T*)emu_cluster_peer(p, rank); }",
        ),
    ]
    return {h.name: h for h in found}


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
    found.append(_define("bulk_commit", "", "cp.async.bulk.commit_group;", "", "emu_bulk_commit();"))
    for name, mode in (("bulk_wait", ""), ("bulk_wait_read", ".read")):
        found.append(
            Helper(
                name,
                f"template <int n> static __device__ __forceinline__ void {name}() "
                f'{{ asm volatile("cp.async.bulk.wait_group{mode} %0;" :: "n"(n) : "memory"); }}',
                f"template <int n> static inline void {name}() {{ emu_bulk_wait(n); }}",
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


def product_helpers() -> dict[str, Helper]:
    """Descriptors of matrices in shared memory, and what orders products. The products are `wgmma_helper`'s."""
    parameters = "const void* p, unsigned leading, unsigned stride, unsigned swizzle"
    fields = (
        "((unsigned long long)(leading >> 4) << 16) | ((unsigned long long)(stride >> 4) << 32)"
        " | ((unsigned long long)(swizzle == 128 ? 1 : swizzle == 64 ? 2 : 3) << 62)"
    )
    found = [
        Helper(
            "matrix",
            f"static __device__ __forceinline__ unsigned long long matrix({parameters}) {{\n"
            f'  unsigned at; asm("{{\\n.reg .u64 a;\\ncvta.to.shared.u64 a, %1;\\ncvt.u32.u64 %0, a;\\n}}" '
            ': "=r"(at) : "l"(p));\n'
            f"  return ((at & 0x3ffff) >> 4) | {fields};\n}}",
            f"static inline unsigned long long matrix({parameters}) "
            f"{{ return (emu_shared_address(p) >> 4) | {fields}; }}",
        ),
        _define("wgmma_fence", "", "wgmma.fence.sync.aligned;", "", "emu_wgmma_fence();"),
        _define("wgmma_commit", "", "wgmma.commit_group.sync.aligned;", "", "emu_wgmma_commit();"),
        Helper(
            "wgmma_wait",
            "template <int n> static __device__ __forceinline__ void wgmma_wait() "
            '{ asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(n) : "memory"); }',
            "template <int n> static inline void wgmma_wait() { emu_wgmma_wait(n); }",
        ),
        # Registers are no memory: only what an asm names stays behind the wait (CUTLASS's warpgroup_fence_operand).
        Helper(
            "wgmma_wait_for",
            "template <int count> static __device__ __forceinline__ void wgmma_wait_for(float (&d)[count]) {\n"
            '  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
            "#pragma unroll\n"
            '  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i]) :: "memory");\n}',
            "template <int count> static inline void wgmma_wait_for(float (&)[count]) { emu_wgmma_wait(0); }",
        ),
    ]
    return {h.name: h for h in found}


def matrix_helpers() -> dict[str, Helper]:
    """A warp's stores of 8 x 8 matrices."""
    found: dict[str, Helper] = {}
    for element in ("bf16", "f16", "float"):
        for count in (1, 2, 4):
            for trans in ("", "_trans")[: 1 if element == "float" else 2]:
                found[f"stmatrix_x{count}{trans}.{element}"] = _stmatrix(element, count, trans)
    return found


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
        f'               :: {_shared("p")}, {inputs} : "memory");\n}}',
        f"static inline void {name}{parameters} {{\n  emu_wide(r, 4);\n"
        "  const int lane = threadIdx.x % 32;\n"
        f"  if (lane < {8 * count}) emu_wide(p, 16);\n"
        f"  for (int m = 0; m < {count}; ++m)\n"
        f"    for (int e = 0; e < {each}; ++e) {{\n"
        f"      const long long to = __shfl_sync(~0u, (long long)p, m * 8 + ({row}) % 8);\n"
        f"      (({element}*)to)[{column}] = r[m * {each} + e];\n"
        "    }\n}",
        () if element == "float" else (element,),
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
