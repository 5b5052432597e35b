"""Static gates: checks of a compiled kernel without a GPU, against its schedule and the planner's estimates.

A kernel is compiled to machine code, and its first block runs in the simulator. Gates check spills, the instructions
and the width of memory accesses, occupancy, and memory traffic. A failed gate is a line of text. The tables of this
file have the known exceptions with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import KernelUse, compile_cubin
from deplodock.backend.disassembly import Region
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
from support.printed_text import unaligned_arrays
from support.seed84 import make_case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

TRAFFIC_TOLERANCE = 1.05
"""Largest ratio of moved bytes to planned bytes."""

MATMUL_TRAFFIC_TOLERANCE = 2.0
"""Largest ratio of moved bytes to necessary bytes of matmuls, which read operands again after L2 evicts them."""

MAX_NARROW_SHARE = {False: 0.1, True: 0.25}
"""Largest fraction of loads or stores in accesses narrower than 16 bytes; True is the limit of kernels with matmuls.

Kernels load scalars per row or column (a mean, a bias) in narrow accesses. Matmuls also load operand tiles that have
fewer than 16 bytes per thread.
"""

OCCUPANCY_TOLERANCE = 0.85
"""Least ratio of resident to planned blocks; the planner estimates registers. `blocks_per_sm` must hold exactly."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel.

    Attributes:
        name: name of the kernel.
        target: the GPU.
        schedule: its schedule.
        model: planning model of its nest.
        planned: the planner's prediction for the schedule.
        work: necessary operations and bytes.
        function: the kernel in IR.
        use: registers, stack and spills, as NVRTC reports them.
        warnings: warnings of NVRTC for the whole program.
        cuda: CUDA text of the whole program.
        code: machine instructions.
        counts: memory accesses of the first block in the simulator.
    """

    name: str
    target: Target
    schedule: ScheduleAttr
    model: GpuModel
    planned: Prediction
    work: Work
    function: kernel.FuncOp
    use: KernelUse
    warnings: tuple[str, ...]
    cuda: str
    code: Region
    counts: KernelCounts

    @property
    def atom(self) -> str:
        return self.schedule.data.atom

    @property
    def narrowest(self) -> tuple[int, int, int]:
        """Bytes of the narrowest loaded element type, of the narrowest stored one, and of the widest of all."""
        read = [element_bytes(op.source.type) for op in self.model.info.loads] or [1]
        written = [element_bytes(v.type) for v in self.model.info.nest.res]
        return min(read), min(written), max(*read, *written)

    @property
    def products(self) -> int:
        return len(self.model.products)


# Opcode -> predicate of kernels in which narrow accesses are as good, and the reason.
NARROW_ACCESS_EXCEPTIONS = {
    "STG": (
        lambda k: k.products > 0,
        "a thread has two or four contiguous accumulators of a matmul",
    ),
    "LDGSTS": (
        lambda k: k.atom == "fma" and k.products > 0,
        "CUDA cores read an operand by columns, so the copy transposes it in units of 4 bytes",
    ),
    "LDG": (
        lambda k: k.products > 0 and smallest_operand(k) < 16 * 32 * k.schedule.data.warps,
        "a small tile of one operand has less than 16 bytes for each thread",
    ),
}


def smallest_operand(k: Kernel) -> float:
    """Returns the bytes of the smallest operand tile of the kernel's matmuls."""
    tiles, info = Tiles.of(k.model.info, k.schedule.data), k.model.info
    operands = [f for p in k.model.products for f in p.factors]
    return min(float(tiles.elements(info.dependence.of(f))[0]) for f in operands) * (4 if k.atom == "fma" else 2)


def least_width(k: Kernel, opcode: str) -> float:
    """Returns the least bytes of an access that do not count as narrow.

    They are 16 in matmuls. In other kernels a thread has equally many elements of all tensors, so if f32 is loaded in
    16 bytes, bf16 is loaded or stored in 8.
    """
    read, written, widest = k.narrowest
    return 16 if k.products else 16 * (written if opcode == "STG" else read) / widest


def conflicts(k: Kernel) -> float:
    """Returns the allowed ratio of shared-memory wavefronts to the ideal number.

    It exceeds 1 in attention whose probabilities move from tensor-core accumulators to operands of CUDA cores, because
    no layout serves both without bank conflicts.
    """
    mixed = k.atom == "mma" and k.products > 1
    return 1.1 if mixed and k.schedule.data.f32_matmul_precision == "ieee" else 1.0


@lru_cache(maxsize=1)
def captured_case(name: str, dtype: str) -> tuple[CapturedProgram, list[torch.Tensor]]:
    """Returns a captured case and its inputs, which are zeros because no gate depends on values."""
    case = make_case(name, DTYPES[dtype])
    inputs = [torch.zeros(shape, dtype=case.dtype) for shape in case.shapes.values()]
    return capture(case.function, inputs, names=list(case.shapes)), inputs


def kernels(captured: CapturedProgram, inputs: list[torch.Tensor], target: str) -> Iterator[Kernel]:
    """Compiles a captured case and yields its kernels.

    Args:
        captured: the case.
        inputs: its inputs.
        target: target name.
    """
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
        if function is None:  # Equal to another kernel, or fused with it.
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
    """Returns a line for each failed gate of a case.

    Args:
        name: name of the case.
        dtype: key of `DTYPES`.
        target: target name.
    """
    messages = [(k, why) for k in kernels(*captured_case(name, dtype), target) for why in check(k)]
    return [f"{name} {dtype} {target} {k.name} {str(k.schedule)[14:]}: {why}" for k, why in messages]


def check(k: Kernel) -> Iterator[str]:
    """Yields a line for each failed gate of a kernel."""
    yield from machine_code(k.use, k.warnings, k.code, k.schedule.data.f32_matmul_precision.startswith("bf16x3"))
    if missing := missing_registers(k.function, k.use):
        yield f"the partitions want {missing} registers more than the block has at its launch, and wait for ever"
    yield from unaligned_arrays(k.cuda)
    yield from _check_opcodes(k)
    yield from _check_widths(k)
    yield from _check_occupancy(k)
    yield from _check_traffic(k)


def machine_code(use: KernelUse, warnings: Sequence[str], code: Region, splits: bool) -> Iterator[str]:
    """Yields a line for each fault of the machine code that does not depend on the schedule.

    Args:
        use: registers, stack and spills of the kernel.
        warnings: warnings of NVRTC.
        code: machine instructions.
        splits: whether the kernel splits f32 numbers into bf16 parts, which needs single conversions.
    """
    if use.spills or use.stack or code.spills:
        yield f"{use.spills} bytes spilled, {use.stack} on the stack, {code.spills} local accesses"
    yield from warnings
    # F2F has 1/16 of the rate of arithmetic. F2FP converts two numbers at 1/4 of it.
    single = sum(code.opcodes[name] for name in ("F2F.BF16.F32", "F2F.F16.F32"))
    if single and not splits:
        yield f"{single} conversions from f32 to 16 bits of one number (F2F)"


def missing_registers(function: kernel.FuncOp, use: KernelUse) -> int:
    """Returns the number of registers that the warp partitions of a block request beyond those of its launch, or 0."""
    if function.partitions is None:
        return 0
    budgets = zip(function.partitions.partition_warps, function.partitions.partition_registers, strict=False)
    return max(0, sum(32 * w * r for w, r in budgets) - function.threads * use.registers)


def _check_opcodes(k: Kernel) -> Iterator[str]:
    """Yields lines if tensor-core or TMA instructions are not planned, or are fewer than in the IR."""
    ops = [*k.function.walk()]
    boxes = sum(isinstance(op, kernel.TmaLoadOp) for op in ops)
    wgmma_steps = sum(op.k_steps.data for op in ops if isinstance(op, kernel.WgmmaOp))
    mma_ops = sum(isinstance(op, kernel.MmaOp) for op in ops)
    chosen = {k.atom, k.schedule.data.copy}
    for choice, opcode, least in (("mma", "HMMA", mma_ops), ("wgmma", "HGMMA", wgmma_steps), ("tma", "UTMALDG", boxes)):
        count = k.code.count(opcode)
        if (choice in chosen) != (count > 0) or count < least:
            yield f"{count} {opcode} of {least}, with atom {k.atom} and copy {k.schedule.data.copy}"


def _check_widths(k: Kernel) -> Iterator[str]:
    """Yields lines if the machine code has no wide accesses, or the simulated block too many narrow ones."""
    for opcode, (allowed, _) in NARROW_ACCESS_EXCEPTIONS.items():
        widths = k.code.widths(opcode)
        if widths and max(widths) < 8 * least_width(k, opcode) and not allowed(k):
            yield f"{opcode} of {max(widths)} bits at most"
    for direction, opcodes, widths in (
        ("loaded", ("LDG", "LDGSTS"), k.counts.load_widths),
        ("stored", ("STG",), k.counts.store_widths),
    ):
        narrow = sum(n for width, n in widths.items() if width < least_width(k, opcodes[0]))
        share = narrow / max(1, sum(widths.values()))
        if share > MAX_NARROW_SHARE[k.products > 0] and not any(
            NARROW_ACCESS_EXCEPTIONS[o][0](k) for o in opcodes if k.code.count(o)
        ):
            yield f"{share:.0%} of what is {direction} in narrower accesses than could be: {widths}"


def _check_occupancy(k: Kernel) -> Iterator[str]:
    shared = k.function.shared.data if k.function.shared is not None else 0
    blocks = occupancy(k.target, k.function.threads, k.use.registers, shared)
    if blocks < max(k.function.resident, int(k.planned.resident * OCCUPANCY_TOLERANCE)):
        yield (
            f"{blocks} blocks on a multiprocessor, {k.planned.resident} planned: {k.use.registers} registers,"
            f" {k.planned.registers} estimated; {shared} bytes shared, {k.planned.shared} estimated"
        )


def _check_traffic(k: Kernel) -> Iterator[str]:
    c = k.counts
    if c.wavefronts > conflicts(k) * c.ideal_wavefronts:
        yield f"{c.wavefronts} wavefronts of shared memory instead of {c.ideal_wavefronts}"
    if c.sectors != c.ideal_sectors:
        yield f"{c.sectors} sectors of memory instead of {c.ideal_sectors}"
    tiles, shared = Tiles.of(k.model.info, k.schedule.data), k.schedule.data.num_ctas
    rounds = -(-int(tiles.blocks[0]) // shared) if shared else 1  # Tiles that one block computes.
    planned = (
        float(traffic(tiles, k.target, np.ones(1, dtype=np.int64), k.model.operands).block[0])
        * rounds
        * k.function.cluster_size
    )
    fewest = (
        0 if k.products and len(k.model.info.reductions) > 1 else planned / TRAFFIC_TOLERANCE
    )  # A mask may skip tiles.
    if not fewest <= sum(c.loaded.values()) <= planned * TRAFFIC_TOLERANCE:
        yield f"a block loads {sum(c.loaded.values())} bytes, {planned:.0f} planned"
    moved = k.planned.read + k.planned.written
    if moved > (MATMUL_TRAFFIC_TOLERANCE if k.products else TRAFFIC_TOLERANCE) * k.work.bytes:
        yield f"{moved:.0f} bytes to and from memory, of {k.work.bytes}"


if __name__ == "__main__":
    import sys

    from support.seed84 import NAMES

    names, dtypes, targets = (a.split(",") for a in sys.argv[1:4])
    for n in NAMES if names == ["all"] else [n for n in NAMES if any(n.startswith(p) for p in names)]:
        for d in dtypes:
            for t in targets:
                print("\n".join(failures(n, d, t)) or f"{n} {d} {t}: passed", flush=True)
