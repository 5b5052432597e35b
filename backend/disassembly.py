"""Machine code of kernels as data: instructions, functions, loops and the hot loop, of GPUs and of CPUs.

`backend/cuda/runtime/disassembly.py` reads SASS into these records, `backend/cpu/disassembly.py` the code of a CPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

TRIPS = 8
"""Assumed trips of a loop, by which loops are compared. Set by hand."""

ARITHMETIC_WORK = 10
"""Work of an arithmetic instruction or a memory access, in units of any other instruction. Set by hand."""

MATMUL_SHARE = 0.25
"""Least share of multiply-adds in the instructions of the main loop of a matmul on CUDA cores or a CPU. Set by hand."""

MULTIPLY_ADDS = {"FFMA", "FFMA2", "HFMA2", "DFMA", "fma", "dot"}


@dataclass(frozen=True)
class Instruction:
    """Machine instruction.

    Attributes:
        address: Address in the listing of the disassembler.
        text: Instruction with its operands, as the disassembler prints it.
        opcode: Whole mnemonic, such as `LDG.E.128.CONSTANT` or `vfmadd231ps`.
        operation: Name under which arithmetic is counted, such as `FFMA` or `fma`; "" for other instructions.
        access: Name under which a memory access is counted, such as `LDG` or `load`; "" for other instructions.
        bits: Bits that a memory access moves for a thread; 0 if the instruction does not encode them.
        spills: Whether the access is to local memory (GPU) or to the stack (CPU).
        vector: Bits of the widest vector register of the operands; 0 for scalar instructions and on a GPU.
        stall: Cycles that the instruction stalls the next one of its warp, as the compiler has encoded them.
        target: Address that the instruction jumps to or calls, or None.
        call: Whether the jump returns.
        ends: Whether the next instruction never follows.
        line: Line of the kernel's text that the instruction implements, or None.
    """

    address: int
    text: str
    opcode: str
    operation: str = ""
    access: str = ""
    bits: int = 0
    spills: bool = False
    vector: int = 0
    stall: int = 0
    target: int | None = None
    call: bool = False
    ends: bool = False
    line: int | None = None

    @property
    def multiplies_tiles(self) -> bool:
        return self.operation.endswith("MMA") or self.operation == "tile dot"


@dataclass(frozen=True)
class Region:
    """Instructions of a kernel, of a function or of a loop, with their counts."""

    instructions: Sequence[Instruction]

    def __len__(self) -> int:
        return len(self.instructions)

    @cached_property
    def opcodes(self) -> Counter[str]:
        """Number of instructions by whole mnemonic."""
        return Counter(i.opcode for i in self.instructions)

    def count(self, opcode: str) -> int:
        """Returns the number of instructions with an opcode (`"FFMA"`), with any modifiers."""
        return sum(n for name, n in self.opcodes.items() if name.split(".")[0] == opcode)

    @property
    def operations(self) -> dict[str, int]:
        """Number of arithmetic instructions by name."""
        return dict(Counter(i.operation for i in self.instructions if i.operation))

    @property
    def accesses(self) -> dict[str, dict[int, int]]:
        """Number of memory accesses by name and by the bits that they move."""
        names = dict.fromkeys(i.access for i in self.instructions if i.access)
        return {name: self.widths(name) for name in names}

    def widths(self, access: str) -> dict[int, int]:
        """Returns the number of memory accesses of a name (`"LDG"`) by the bits that they move."""
        return dict(sorted(Counter(i.bits for i in self.instructions if i.access == access).items()))

    @property
    def stall_cycles(self) -> int:
        """Sum of the encoded stalls: a lower bound of the cycles in which a warp issues the instructions."""
        return sum(i.stall for i in self.instructions)

    @property
    def spills(self) -> int:
        """Number of accesses to local memory or the stack: spilled registers and arrays."""
        return sum(i.spills for i in self.instructions)

    @property
    def vector_bits(self) -> int:
        """Bits of the widest vector register; 0 without vectors."""
        return max((i.vector for i in self.instructions), default=0)

    def facts(self) -> dict[str, object]:
        """Returns the counts as JSON data."""
        widths = {name: {str(bits): n for bits, n in by.items()} for name, by in self.accesses.items()}
        issue = {"issue_cycles": self.stall_cycles} if self.stall_cycles else {}
        vector = {"vector_bits": self.vector_bits} if self.vector_bits else {}
        counts = {"operations": self.operations, "accesses": widths, "local_accesses": self.spills}
        return {"instructions": len(self), **issue, **vector, **counts}

    def described(self) -> str:
        """Returns the counts as one line: `24 instructions, 61 issue cycles; FFMA x 16; LDG.128 x 4`."""
        parts = [f"{len(self)} instruction{'s' * (len(self) != 1)}"]
        parts += [f"{self.stall_cycles} issue cycles"] if self.stall_cycles else []
        parts += [f"vectors of {self.vector_bits} bits"] if self.vector_bits else []
        operations = ", ".join(f"{name} x {n}" for name, n in sorted(self.operations.items(), key=lambda o: -o[1]))
        widths = [(name, bits, n) for name, by in self.accesses.items() for bits, n in by.items()]
        accesses = ", ".join(f"{name}{f'.{bits}' if bits else ''} x {n}" for name, bits, n in widths)
        return "; ".join(filter(None, [", ".join(parts), operations, accesses]))


@dataclass(frozen=True)
class Loop(Region):
    """Loop of a function: the instructions between its first one and a jump back to it.

    Attributes:
        depth: Number of loops around it in its function.
        outer: Instructions that are in no inner loop.
    """

    depth: int = 0
    outer: Sequence[Instruction] = ()

    def rank(self, depth: int) -> tuple[int, float, int]:
        """Returns a key by which loops of a kernel are compared: the hot loop has the largest one.

        Most matmuls of tiles come first, then the largest share of multiply-adds of at least `MATMUL_SHARE`, then the
        most work. Matmuls and work count `TRIPS` times for each loop around.

        Args:
            depth: Number of loops around the function.
        """
        times = TRIPS ** (self.depth + depth)
        tiles = sum(i.multiplies_tiles for i in self.outer)
        share = sum(i.operation in MULTIPLY_ADDS for i in self.outer) / len(self.instructions)
        work = sum(ARITHMETIC_WORK if i.operation or i.access else 1 for i in self.outer)
        return tiles * times, share if share >= MATMUL_SHARE or tiles else 0.0, work * times


@dataclass(frozen=True)
class Function(Region):
    """Function in machine code. `labels`: names by address. `name`: name as the disassembler prints it."""

    name: str = ""
    labels: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def address(self) -> int:
        """Address of the first instruction."""
        return self.instructions[0].address if self.instructions else -1

    @cached_property
    def loops(self) -> list[Loop]:
        """Loops in the order of their first instructions.

        A jump back ends a loop if the control flow always passes its target before. Of several jumps to one target the
        last conditional one counts: code that spins on a barrier is placed after a loop, and jumps back into it.
        """
        code, index = self.instructions, {i.address: n for n, i in enumerate(self.instructions)}
        jumps = {n: index[i.target] for n, i in enumerate(code) if i.target in index and not i.call}
        if not any(target <= n for n, target in jumps.items()):
            return []
        flow = _Flow(code, jumps)
        ends: dict[int, tuple[bool, int]] = {}
        for n, target in jumps.items():
            if target <= n and not (target == n and code[n].ends) and flow.passes(target, n):
                ends[target] = max(ends.get(target, (False, 0)), (not code[n].ends, n))
        bodies = {target: flow.body(target, end) for target, (_, end) in ends.items()}
        loops: list[Loop] = []
        for target, body in sorted(bodies.items()):
            depth = sum(other != target and target in b for other, b in bodies.items())
            inner = {n for other, b in bodies.items() if other != target and other in body for n in b}
            outer = [code[n] for n in body if n not in inner]
            loops.append(Loop([code[n] for n in body], depth, outer))
        return loops


class _Flow:
    """Control flow of a function, whose basic blocks are named by the indices of their first instructions."""

    def __init__(self, code: Sequence[Instruction], jumps: Mapping[int, int]) -> None:
        firsts = {0, *jumps.values()} | {n + 1 for n, i in enumerate(code[:-1]) if n in jumps or i.ends}
        self.starts = sorted(firsts)
        self.ends = dict(zip(self.starts, [*self.starts[1:], len(code)], strict=True))
        self.before: dict[int, list[int]] = {start: [] for start in self.starts}
        for start, end in self.ends.items():
            last = end - 1
            if last in jumps:
                self.before[jumps[last]].append(start)
            if not code[last].ends and end < len(code):
                self.before[end].append(start)
        for start in self.starts[1:]:  # Targets of a jump table.
            self.before[start] = self.before[start] or [0]
        self.dominators = self._dominators()

    def _dominators(self) -> dict[int, set[int]]:
        """Returns for each block the blocks that the control flow always passes before it, including itself."""
        dominators = {start: set(self.starts) for start in self.starts}
        dominators[0] = {0}
        changed = True
        while changed:
            changed = False
            for start in self.starts[1:]:
                common = set.intersection(*(dominators[b] for b in self.before[start])) | {start}
                if common != dominators[start]:
                    dominators[start], changed = common, True
        return dominators

    def block(self, n: int) -> int:
        """Returns the block of an instruction."""
        return self.starts[bisect_right(self.starts, n) - 1]

    def passes(self, target: int, n: int) -> bool:
        """Returns true if the control flow always passes the block `target` before the instruction `n`."""
        return target in self.dominators[self.block(n)]

    def body(self, target: int, end: int) -> list[int]:
        """Returns the instructions from `target` to the jump `end` that can reach the jump without passing `target`."""
        blocks, pending = {target}, [self.block(end)]
        while pending:
            if (block := pending.pop()) not in blocks:
                blocks.add(block)
                pending += self.before[block]
        return [n for b in sorted(blocks) for n in range(b, self.ends[b]) if target <= n <= end]


@dataclass(frozen=True)
class Code(Region):
    """Machine code of a kernel: its own functions, then the functions that they call.

    Attributes:
        functions: The functions. `instructions` has the instructions of all functions.
        counted: Whether the counts of instructions are known; if not, only their texts and lines are.
    """

    functions: Sequence[Function] = ()
    counted: bool = True

    @classmethod
    def of(cls, functions: Sequence[Function], counted: bool = True) -> Code:
        return cls([i for f in functions for i in f.instructions], functions, counted)

    @property
    def loops(self) -> list[Loop]:
        """Loops of all functions."""
        return [loop for f in self.functions for loop in f.loops]

    @cached_property
    def hot_loop(self) -> Loop | None:
        """Loop in which the kernel is expected to spend most of its time (`Loop.rank`), or None without a loop.

        Trip counts are unknown: each loop around a loop, and around a call of its function, counts as `TRIPS`.
        """
        depths = self._depths()
        ranked = [(loop.rank(depths[f.address]), loop) for f in self.functions for loop in f.loops]
        return max(ranked, key=lambda r: r[0])[1] if ranked and self.counted else None

    def _depths(self) -> dict[int, int]:
        """Returns the loops around the deepest call of each function, by the address of the function."""
        depths = {f.address: 0 for f in self.functions}
        for f in self.functions:  # A caller is before the functions that it calls.
            for i in f.instructions:
                if i.call and i.target in depths and i.target != f.address:
                    loops = sum(i in loop.instructions for loop in f.loops)
                    depths[i.target] = max(depths[i.target], depths[f.address] + loops)
        return depths

    def listing(self, texts: Mapping[int, str], hot: bool = False, first: int = 0) -> str:
        """Returns the instructions as text. A line of the kernel's text precedes its instructions.

        Instructions of the hot loop are marked with `>`.

        Args:
            texts: Lines of the kernel's text by number.
            hot: Whether only the hot loop is listed.
            first: Number that is added to printed line numbers.
        """
        loop = {i.address for i in self.hot_loop.instructions} if self.hot_loop is not None else set[int]()
        lines: list[str] = []
        for function in self.functions:
            shown = [i for i in function.instructions if not hot or i.address in loop]
            lines += [f"{function.name}:"] if shown else []
            line: int | None = None
            for i in shown:
                if i.address in function.labels:
                    lines.append(f"{function.labels[i.address]}:")
                mark = ">" if i.address in loop else " "
                if i.line is not None and i.line != line and i.line in texts:
                    lines.append(f"{mark}         // {i.line + first}: {texts[i.line].strip()}")
                line = i.line
                lines.append(f"{mark} {i.address:6x}  {i.text}")
        return "".join(f"{line}\n" for line in lines)
