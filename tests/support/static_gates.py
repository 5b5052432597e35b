"""What can be said of a compiled kernel without a GPU, and whether it is what was planned.

A gate that does not hold is a line of text, unless there is a reason for it in the tables here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from deplodock.backend.cuda.runtime.nvrtc import KernelUse, compile_cubin
from deplodock.backend.simulator import KernelCounts, simulate
from deplodock.dialects import kernel, loop
from deplodock.dialects.kernel import kernel_names
from deplodock.dialects.loop.work import Work, nest_work
from deplodock.dialects.payload import element_bytes
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.captured_program import CapturedProgram
from deplodock.frontend.capture.export import capture
from deplodock.passes.analysis.nest_schedule import schedule_of
from deplodock.passes.planning.gpu.model import GpuModel
from deplodock.passes.planning.model import Prediction
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.passes.planning.tiles import Tiles, traffic
from deplodock.target.architectures import TARGETS
from deplodock.target.model import Target, occupancy
from support.disassembly import KernelCode, disassemble
from support.printed_text import unaligned_arrays
from support.seed84 import make_case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

CLOSE = 1.05
"""Bytes may be so many times what they should be."""

REREAD = 2.0
"""The same of products: what the level-2 cache does not hold until the next wave of blocks is read again."""

MOST_NARROW = {False: 0.1, True: 0.25}
"""Of what is loaded or stored so much may be in accesses of less than 16 bytes: what a row or a column has one of; in
products (True) also small tiles of one factor, with less than 16 bytes for each thread."""

NEARLY = 0.85
"""Of so many times the planned blocks at least a multiprocessor has room for: registers are estimated. What the
schedule says (`blocks_per_sm`) is kept to the block."""


@dataclass(frozen=True)
class Kernel:
    """One kernel: what was planned, what the compiler made of it, and what its first block did in the simulator."""

    name: str
    target: Target
    schedule: ScheduleAttr
    model: GpuModel
    planned: Prediction
    work: Work
    function: kernel.FuncOp
    use: KernelUse
    warnings: tuple[str, ...]
    """Of the compiler, of all kernels of the program."""
    cuda: str
    """The text of the whole program."""
    code: KernelCode
    counts: KernelCounts

    @property
    def atom(self) -> str:
        return self.schedule.data.atom

    @property
    def narrowest(self) -> tuple[int, int, int]:
        """Bytes of the narrowest elements read, of the narrowest written, and of the widest of all."""
        read = [element_bytes(op.source.type) for op in self.model.info.loads] or [1]
        written = [element_bytes(v.type) for v in self.model.info.nest.res]
        return min(read), min(written), max(*read, *written)

    @property
    def products(self) -> int:
        return len(self.model.products)


# Access -> when a narrower one is as good, and why.
NARROW = {
    "STG": (
        lambda k: k.products > 0,
        "sums of products lie in pairs or fours, as tensor cores and register tiles have them",
    ),
    "LDGSTS": (
        lambda k: k.atom == "fma" and k.products > 0,
        "CUDA cores read a factor by columns: it is transposed on its way, in pieces of 4 bytes",
    ),
    "LDG": (
        lambda k: k.products > 0 and smallest_operand(k) < 16 * 32 * k.schedule.data.warps,
        "a small tile of one operand has less than 16 bytes for each thread",
    ),
}


def smallest_operand(k: Kernel) -> float:
    """Bytes of the smallest tile of an operand of a matmul, in f32 on CUDA cores."""
    tiles, info = Tiles.of(k.model.info, k.schedule.data), k.model.info
    factors = [f for p in k.model.products for f in p.factors]
    return min(float(tiles.elements(info.dependence.of(f))[0]) for f in factors) * (4 if k.atom == "fma" else 2)


def least_width(k: Kernel, opcode: str) -> float:
    """Bytes of an access: 16, but outside of products a thread has as many elements of all tensors, so what is read in
    f32 in 16 bytes is read or written in bf16 in 8."""
    read, written, widest = k.narrowest
    return 16 if k.products else 16 * (written if opcode == "STG" else read) / widest


def conflicts(k: Kernel) -> float:
    """How many times more wavefronts than the fewest a kernel may take: more than once where weights of attention go
    from sums of tensor cores to factors of CUDA cores, which have no layout in common."""
    mixed = k.atom == "mma" and k.products > 1
    return 1.1 if mixed and k.schedule.data.f32_matmul_precision == "ieee" else 1.0


@lru_cache(maxsize=1)
def captured_case(name: str, dtype: str) -> tuple[CapturedProgram, list[torch.Tensor]]:
    """A case, captured, and inputs: zeros, because nothing here depends on values."""
    case = make_case(name, DTYPES[dtype])
    inputs = [torch.zeros(shape, dtype=case.dtype) for shape in case.shapes.values()]
    return capture(case.function, inputs, names=list(case.shapes)), inputs


def kernels(captured: CapturedProgram, inputs: list[torch.Tensor], target: str) -> Iterator[Kernel]:
    """The kernels of a captured case compiled for a target."""
    compilation = CompiledFunction(captured, target, "reference").compilation
    module = compilation.at("kernel")
    compiled = compile_cubin(compilation.cuda, target)
    code = disassemble(compiled.cubin)
    arrays = [to_numpy(t) for t in captured.bind(inputs)]
    launches = {c.kernel: c for c in simulate(module, arrays, max_blocks=1).report.launches}
    printed = kernel_names(module)
    functions = {op.sym_name.data: op for op in module.walk() if isinstance(op, kernel.FuncOp)}
    nests = [op for op in compilation.scheduled().walk() if isinstance(op, loop.NestOp)]
    for i, nest in enumerate(nests):
        function = functions.get(name := f"k{i}")
        if function is None:  # equal to another one, or launched together with it
            continue
        schedule, model = schedule_of(nest), GpuModel(NestInfo(nest), TARGETS[target])
        yield Kernel(
            name,
            TARGETS[target],
            schedule,
            model,
            model.predict(schedule),
            nest_work(nest),
            function,
            compiled.kernels[printed[name]],
            compiled.warnings,
            compilation.cuda,
            code[printed[name]],
            launches[name],
        )


def failures(name: str, dtype: str, target: str) -> list[str]:
    """The gates that a case does not pass."""
    found = [(k, why) for k in kernels(*captured_case(name, dtype), target) for why in check(k)]
    return [f"{name} {dtype} {target} {k.name} {str(k.schedule)[14:]}: {why}" for k, why in found]


def check(k: Kernel) -> Iterator[str]:
    """What is not as it should be."""
    yield from machine_code(k.use, k.warnings, k.code, k.schedule.data.f32_matmul_precision.startswith("bf16x3"))
    if missing := missing_registers(k.function, k.use):
        yield f"the partitions want {missing} registers more than the block has at its launch, and wait for ever"
    yield from unaligned_arrays(k.cuda)
    yield from _opcodes(k)
    yield from _widths(k)
    yield from _occupancy(k)
    yield from _traffic(k)


def machine_code(use: KernelUse, warnings: Sequence[str], code: KernelCode, splits: bool) -> Iterator[str]:
    """Yields what the compiler made badly of a kernel, whatever its plan, but that one which `splits` numbers of f32
    converts each part by itself."""
    if use.spills or use.stack or code.local_accesses:
        yield f"{use.spills} bytes spilled, {use.stack} on the stack, {code.local_accesses} local accesses"
    yield from warnings
    # A sixteenth of the rate of arithmetic; F2FP converts two numbers at a quarter.
    single = sum(code.opcodes[name] for name in ("F2F.BF16.F32", "F2F.F16.F32"))
    if single and not splits:
        yield f"{single} conversions from f32 to 16 bits of one number (F2F)"


def missing_registers(function: kernel.FuncOp, use: KernelUse) -> int:
    """Registers that the partitions of a compiled kernel want and its block does not have at its launch."""
    if function.partitions is None:
        return 0
    budgets = zip(function.partitions.partition_warps, function.partitions.partition_registers, strict=False)
    return max(0, sum(32 * w * r for w, r in budgets) - function.threads * use.registers)


def _opcodes(k: Kernel) -> Iterator[str]:
    """Tensor cores and boxes where planned, each as often as the kernel has it at least: loops may be unrolled."""
    ops = [*k.function.walk()]
    boxes = sum(isinstance(op, kernel.TmaLoadOp) for op in ops)
    parts = sum(op.k_steps.data for op in ops if isinstance(op, kernel.WgmmaOp))
    products = sum(isinstance(op, kernel.MmaOp) for op in ops)
    chosen = {k.atom, k.schedule.data.copy}
    for choice, opcode, least in (("mma", "HMMA", products), ("wgmma", "HGMMA", parts), ("tma", "UTMALDG", boxes)):
        found = k.code.count(opcode)
        if (choice in chosen) != (found > 0) or found < least:
            yield f"{found} {opcode} of {least}, with atom {k.atom} and copy {k.schedule.data.copy}"


def _widths(k: Kernel) -> Iterator[str]:
    """Accesses of 16 bytes: in the machine code, and of what is moved nearly all."""
    for opcode, (allowed, _) in NARROW.items():
        widths = k.code.widths(opcode)
        if widths and max(widths) < 8 * least_width(k, opcode) and not allowed(k):
            yield f"{opcode} of {max(widths)} bits at most"
    for what, opcodes, widths in (
        ("loaded", ("LDG", "LDGSTS"), k.counts.load_widths),
        ("stored", ("STG",), k.counts.store_widths),
    ):
        narrow = sum(n for width, n in widths.items() if width < least_width(k, opcodes[0]))
        share = narrow / max(1, sum(widths.values()))
        if share > MOST_NARROW[k.products > 0] and not any(NARROW[o][0](k) for o in opcodes if k.code.count(o)):
            yield f"{share:.0%} of what is {what} in narrower accesses than could be: {widths}"


def _occupancy(k: Kernel) -> Iterator[str]:
    shared = k.function.shared.data if k.function.shared is not None else 0
    blocks = occupancy(k.target, k.function.threads, k.use.registers, shared)
    if blocks < max(k.function.resident, int(k.planned.resident * NEARLY)):
        yield (
            f"{blocks} blocks on a multiprocessor, {k.planned.resident} planned: {k.use.registers} registers,"
            f" {k.planned.registers} estimated; {shared} bytes shared, {k.planned.shared} estimated"
        )


def _traffic(k: Kernel) -> Iterator[str]:
    c = k.counts
    if c.wavefronts > conflicts(k) * c.ideal_wavefronts:
        yield f"{c.wavefronts} wavefronts of shared memory instead of {c.ideal_wavefronts}"
    if c.sectors != c.ideal_sectors:
        yield f"{c.sectors} sectors of memory instead of {c.ideal_sectors}"
    tiles, shared = Tiles.of(k.model.info, k.schedule.data), k.schedule.data.num_ctas
    rounds = -(-int(tiles.blocks[0]) // shared) if shared else 1  # tiles of one block, one after the other
    planned = (
        float(traffic(tiles, k.target, np.ones(1, dtype=np.int64), k.model.operands).block[0])
        * rounds
        * k.function.cluster_size
    )
    fewest = 0 if k.products and len(k.model.info.reductions) > 1 else planned / CLOSE  # a mask may leave tiles empty
    if not fewest <= sum(c.loaded.values()) <= planned * CLOSE:
        yield f"a block loads {sum(c.loaded.values())} bytes, {planned:.0f} planned"
    moved = k.planned.read + k.planned.written
    if moved > (REREAD if k.products else CLOSE) * k.work.bytes:
        yield f"{moved:.0f} bytes to and from memory, of {k.work.bytes}"


if __name__ == "__main__":
    import sys

    from support.seed84 import NAMES

    names, dtypes, targets = (a.split(",") for a in sys.argv[1:4])
    for n in NAMES if names == ["all"] else [n for n in NAMES if any(n.startswith(p) for p in names)]:
        for d in dtypes:
            for t in targets:
                print("\n".join(failures(n, d, t)) or f"{n} {d} {t}: passed", flush=True)
