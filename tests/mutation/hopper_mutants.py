"""Bugs in the synchronisation of TMA loads, warpgroup matmuls and warp partitions, planted in `hopper_programs.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from support.hopper_programs import Gemm

from deplodock.backend.cpp.writer import KERNELS_MARK

SUBJECTS = {
    "ring": Gemm(m=128, n=64, k=192, stages=2, lag=True, staged=True, persistent=True),
    "two warpgroups": Gemm(m=256, n=64, k=128, stages=2, groups=2, lag=True, staged=True, persistent=True),
    "no lag": Gemm(m=64, n=64, k=192, stages=2),
}
"""Each subject has one block, and more chunks than stages of the circular buffer."""


@dataclass(frozen=True)
class TextMutant:
    """A bug in the IR or CUDA text of a subject: match `number` of `pattern` (-1: all) is replaced."""

    name: str
    pattern: str
    replacement: str = ""
    number: int = -1
    subject: str = "ring"
    cuda: bool = False

    def apply(self, text: str) -> str:
        """Returns the text with the bug. Device functions of CUDA text are not changed."""
        helpers, mark, text = text.partition(KERNELS_MARK) if self.cuda else ("", "", text)
        found = list(re.finditer(self.pattern, text))
        assert found, f"{self.name}: stale"
        chosen = found if self.number < 0 else [found[self.number]]
        for match in reversed(chosen):
            text = text[: match.start()] + match.expand(self.replacement) + text[match.end() :]
        return helpers + mark + text


def tell_missed(
    mutants: Sequence[TextMutant], verdicts: Sequence[str | None], where: str, summarise: Callable[[str], None]
) -> list[str]:
    """Adds the score to the terminal summary. Returns the names of the bugs that no checker detected."""
    missed = [m.name for m, v in zip(mutants, verdicts, strict=True) if v is None]
    for m, v in zip(mutants, verdicts, strict=True):
        print(f"{m.name:50} {(v or 'NOT CAUGHT')[:150]}")
    summarise(f"{where}: {len(mutants) - len(missed)} of {len(mutants)} planted bugs caught {missed or ''}")
    return missed


def _ir(name: str, pattern: str, replacement: str = "", number: int = -1, subject: str = "ring") -> TextMutant:
    return TextMutant(name, pattern, replacement, number, subject)


def _cuda(name: str, pattern: str, replacement: str = "", number: int = -1, subject: str = "ring") -> TextMutant:
    return TextMutant(name, pattern, replacement, number, subject, True)


_LINE = r"[^\n]*\n"
_FIRST_BARRIER = 0
_SECOND_BARRIER = 1

WAITS = [
    _ir("no wait for a full slot", r"kernel\.mbar_wait %full" + _LINE),
    _ir("no wait for an empty slot", r"kernel\.mbar_wait %empty" + _LINE),
    _ir(
        "full slots: the other parity",
        r"(kernel\.mbar_wait %full.* parity) %phase",
        r"%bad = arith.xori %phase, %c1 : index\n\1 %bad",
    ),
    _ir("empty slots: the other parity", r"parity %free", "parity %phase"),
    _ir("parity always 0", r"(mbar_wait %full.* parity) %phase", r"\1 %c0"),
    _ir(
        "the producer's phase never flips",
        r"scf\.yield %next, %flipped : index, index\n",
        "scf.yield %next, %phase : index, index\n",
    ),
    _ir("the consumer's phase never flips", r"scf\.yield %next, %flipped, %waited", "scf.yield %next, %phase, %waited"),
    _ir("waits for slot 0", r"mbar_wait %full\[%slot\]", "mbar_wait %full[%c0]"),
    _ir("one product too many in flight", r"wgmma_wait 1", "wgmma_wait 2"),
    _ir("products not waited for in the loop", r"wgmma_wait 1", "wgmma_wait 7"),
    _ir("registers before the last product is done", r"(%acc = kernel\.wgmma_wait) 0", r"\1 1"),
    _ir("no commit", r"kernel\.wgmma_commit"),
    _ir("commit before the product", r"(%product = [^:]*:[^\n]*\n)\s*kernel\.wgmma_commit", r"kernel.wgmma_commit\n\1"),
    _ir("no fence of registers", r"kernel\.wgmma_fence"),
    _ir(
        "fence of registers after the product",
        r"kernel\.wgmma_fence\n(\s*%product = [^:]*:[^\n]*\n)",
        r"\1kernel.wgmma_fence\n",
    ),
    _ir("no wait for products without lag", r"wgmma_wait 0, %product", "wgmma_wait 1, %product", -1, "no lag"),
]

RINGS = [
    _ir("the producer walks three slots", r"of 2", "of 3", 0),
    _ir("the consumer walks three slots", r"of 2", "of 3", 1),
    _ir("the producer walks one slot", r"of 2", "of 1", 0),
    _ir("the consumer walks one slot", r"of 2", "of 1", 1),
    _ir(
        "the consumer starts each tile at slot 0",
        r"%slot = %s0, %phase = %p0, %into",
        "%slot = %c0, %phase = %p0, %into",
    ),
    _ir(
        "the consumer starts each tile in phase 0",
        r"%slot = %s0, %phase = %p0, %into",
        "%slot = %s0, %phase = %c0, %into",
    ),
    _ir("the producer starts each tile in phase 0", r"%slot = %s0, %phase = %p0\)", "%slot = %s0, %phase = %c0)"),
    _ir("no release", r"kernel\.mbar_arrive %empty\[%before\]" + _LINE),
    _ir("no last release", r"kernel\.mbar_arrive %empty\[%left#3\]" + _LINE),
    _ir("release of the slot in use", r"mbar_arrive %empty\[%before\]", "mbar_arrive %empty[%slot]"),
    _ir(
        "release before the product",
        r"(kernel\.wgmma_fence\n)",
        r"scf.if %elected { kernel.mbar_arrive %empty[%slot] : BARS }\n\1",
        -1,
        "no lag",
    ),
    _ir("released twice", r"(kernel\.mbar_arrive %empty\[%before\][^\n]*\n)", r"\1\1"),
    _ir("released by every thread", r"scf\.if %release", "scf.if %more"),
    _ir("the first release is of nothing", r"scf\.if %release", "scf.if %elected"),
    _ir("always the same slot released", r"%waited, %slot :", "%waited, %before :"),
    _ir("more consumers expected", r"(mbar_init %empty.*arrivals) 1", r"\1 2"),
    _ir("fewer consumers expected", r"(mbar_init %empty.*arrivals) 2", r"\1 1", -1, "two warpgroups"),
    _ir("more producers expected", r"(mbar_init %full.*arrivals) 1", r"\1 2"),
    _ir("only one slot set up", r"scf\.for %i = %c0 to %c2 step", "scf.for %i = %c0 to %c1 step"),
    _ir("no fence of barriers", r"kernel\.fence_mbar_init"),
    _ir("no barrier after setting up", r"\n  kernel\.barrier\n", "\n"),
    _ir("the producer stops one chunk early", r"scf\.for %k = %c0 to %c192", "scf.for %k = %c0 to %c128", 0),
    _ir("the consumer stops one chunk early", r"scf\.for %k = %c0 to %c192", "scf.for %k = %c0 to %c128", 1),
    _ir("the producer forgets a tile", r"scf\.for %tile = %block to %tiles", "scf.for %tile = %block to %end", 0),
]

BOXES = [
    _ir("fewer bytes announced", r"bytes 16384", "bytes 16256"),
    _ir("more bytes announced", r"bytes 16384", "bytes 16512"),
    _ir("the bytes of one operand", r"bytes 16384", "bytes 8192"),
    _ir("nothing announced", r"kernel\.mbar_expect (.*) bytes 16384", r"kernel.mbar_arrive \1"),
    _ir("announced by a warp", r"(scf\.if) %first(?= \{\n +%done)", r"%w0 = payload.cmp eq %warp, %c0 : index\n\1 %w0"),
    _ir("a box signals another slot", r"signal %full\[%slot\]", "signal %full[%c0]", 1),
    _ir("A always into slot 0", r"to %as\[%oa\]", "to %as[%c0]"),
    _ir("B always into slot 0", r"to %bs\[%ob\]", "to %bs[%c0]"),
    _ir("A into B's ring", r"to %as\[%oa\]", "to %bs[%oa]"),
    _ir("coordinates exchanged", r"%boxes_a\[%i0, %k\]", "%boxes_a[%k, %i0]"),
    _ir("A from the next chunk", r"(kernel\.tma_load %boxes_a\[%i0,) %k", r"%kk = arith.addi %k, %c64 : index\n\1 %kk"),
    _ir("B read from slot 0", r", %bs\[%ob\] into", ", %bs[%c0] into"),
    _ir("A read from slot 0", r"wgmma %as\[%oa\]", "wgmma %as[%part]"),
    _ir("A starts between two swizzles", r"%oa = arith\.addi %oa0, %part", "%oa = arith.addi %oa0, %c64"),
    _ir(
        "both warpgroups read the first rows",
        r"%oa = arith\.addi %oa0, %part",
        "%oa = arith.addi %oa0, %c0",
        -1,
        "two warpgroups",
    ),
    _ir("operands swizzled otherwise", r"k_steps 4 swizzle 128", "k_steps 2 swizzle 64"),
    _ir("a slice of k forgotten", r"k_steps 4 swizzle", "k_steps 3 swizzle"),
    _ir("old accumulators count", r" use_acc %more", ""),
    _ir("every product is fresh", r"swizzle 128 use_acc %more", "swizzle 128 scale_d_zero"),
    _ir("boxes without a swizzle", r"64x64xbf16, swizzle 128>", "64x64xbf16>"),
]

STORES = [
    _ir("no fence before a box is stored", r"kernel\.fence_async"),
    _ir(
        "the fence after the barrier",
        r"kernel\.fence_async\n(\s*kernel\.group_barrier[^\n]*\n)",
        r"\1kernel.fence_async\n",
    ),
    _ir(
        "the fence by one thread",
        r"kernel\.fence_async",
        "scf.if %elected { kernel.fence_async }",
        -1,
        "two warpgroups",
    ),
    _ir("no barrier before a box is stored", r"kernel\.group_barrier" + _LINE, "", _SECOND_BARRIER),
    _ir("no barrier before the next tile is staged", r"kernel\.group_barrier" + _LINE, "", _FIRST_BARRIER),
    _ir("half of the warps at the barrier", r"kernel\.group_barrier 1 warps 4", "kernel.group_barrier 1 warps 2"),
    _ir("no wait before the next tile is staged", r"kernel\.bulk_wait 0 read"),
    _ir("waiting for all groups but one", r"kernel\.bulk_wait 0 read", "kernel.bulk_wait 1 read"),
    _ir("no wait at the end", r"kernel\.bulk_wait 0\n", "\n"),
    _ir("no commit of stores", r"kernel\.bulk_commit"),
    _ir("staged without a swizzle", r"%l2 = arith\.xori %column, %l1", "%l2 = arith.addi %column, %c0"),
    _ir("a wrong step of a register", r"\[512\]", "[256]"),
    _ir("rows of another tile", r"%boxes_c\[%r0,", "%boxes_c[%down,"),
    _ir(
        "both warpgroups stage in one place",
        r"%mine = arith\.muli %group, %bank",
        "%mine = arith.muli %c0, %bank",
        -1,
        "two warpgroups",
    ),
]

REGISTERS = [
    _ir("the producer keeps registers that consumers want", r"registers 40", "registers 56", -1, "two warpgroups"),
    _ir(
        "half as many registers at the launch", r"(grid \[\d+\] warps 12)", r"\1 blocks_per_sm 2", -1, "two warpgroups"
    ),
]

IR_MUTANTS = [*WAITS, *RINGS, *BOXES, *STORES, *REGISTERS]

CUDA_MUTANTS = [
    _cuda("full slots: the other parity", r"mbar_wait\(&full\[(\w+)\], (\w+)\)", r"mbar_wait(&full[\1], \2 ^ 1)"),
    _cuda("no wait for a full slot", r"mbar_wait\(&full" + _LINE, "\n"),
    _cuda("no wait for an empty slot", r"mbar_wait\(&empty" + _LINE, "\n"),
    _cuda("one product too many in flight", r"wgmma_wait<1>", "wgmma_wait<2>"),
    _cuda("the last product not waited for", r"wgmma_wait_for\(\w+\);", ""),
    _cuda("no fence of registers", r"wgmma_fence\(\);\n", "\n"),
    _cuda("no commit", r"wgmma_commit\(\);\n", "\n"),
    _cuda("a slice too far", r"slice \* 2", "slice * 4"),
    _cuda("one slice of A", r"as1 \+ slice \* 2", "as1"),
    _cuda("a descriptor with another swizzle", r"1024, 128\)", "1024, 64)"),
    _cuda("groups of rows too close", r"16, 1024, 128\)", "16, 512, 128)", 0),
    _cuda("always accumulates", r"slice > 0 \|\| \w+", "true"),
    _cuda("never accumulates", r"slice > 0 \|\| \w+", "false"),
    _cuda("no release", r"mbar_arrive\(&empty" + _LINE, "\n"),
    _cuda("no fence before a box is stored", r"    fence_async\(\);\n", "\n"),
    _cuda("no barrier before a box is stored", r"    group_barrier<128>" + _LINE, "\n", 1),
    _cuda(
        "one barrier for both groups of warps",
        r"group_barrier<128>\(1 \+ [^;]*;",
        "group_barrier<128>(1);",
        -1,
        "two warpgroups",
    ),
    _cuda("too many threads at a barrier", r"    group_barrier<128>", "    group_barrier<160>"),
    _cuda("no wait before the next tile is staged", r"bulk_wait_read<0>\(\);\n", "\n", 0),
    _cuda("boxes stored from the wrong place", r"(tma_store2\(&\w+, &cs\[)\w+\]", r"\g<1>64]"),
    _cuda("the ring wraps late", r"== 2 \? 0", "== 3 ? 0"),
    _cuda("fewer bytes announced", r", 16384\);", ", 16000);"),
    _cuda("no fence of barriers", r"    fence_mbar_init\(\);\n", "\n"),
    _cuda("no barrier after setting up", r"__syncthreads\(\);"),
    _cuda("the producer keeps registers", r"give_registers<40>", "give_registers<64>", -1, "two warpgroups"),
    _cuda("nobody gives registers up", r"give_registers<40>\(\);", "", -1, "two warpgroups"),
    _cuda("half as many registers", r"__launch_bounds__\(384, 1\)", "__launch_bounds__(384, 2)", -1, "two warpgroups"),
    _cuda(
        "registers as the compiler likes",
        r"__launch_bounds__\(384, 1\)",
        "__launch_bounds__(384)",
        -1,
        "two warpgroups",
    ),
]
