"""Checks the machine code of the benchmarks for a GPU: spills, warnings of the compiler, and slow conversions.

Unlike the static gates it runs no simulator and ignores the plan, so that large programs are quick.

    python tests/machine_code.py [TEXT]    # the 84 shapes in f32 and bf16 and the classes for sm_90a, with a count
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.static_gates import machine_code

from benchmarks.common.cases import Case, cases
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation

TARGET = "sm_90a"
CASES: dict[str, Case] = {c.key: c for c in cases(("seed84", "classes"), "cuda", ("f32", "bf16"))}


def code_of(case: Case) -> dict[str, list[str]]:
    """Returns the faults of the machine code of a case, by kernel."""
    function, args = case.make()
    text = Compilation(capture(function, args).module, TARGET, **case.options).cuda
    return code_of_text(text, "f32_matmul_precision" in case.options)


def code_of_text(text: str, splits: bool = False) -> dict[str, list[str]]:
    """Returns the faults of the machine code of a CUDA text, by kernel.

    A kernel that `splits` f32 numbers into bf16 parts may convert single numbers.
    """
    compiled = compile_cubin(text, TARGET)
    listed = disassemble(compiled.cubin)
    return {n: [*machine_code(use, compiled.warnings, listed[n], splits)] for n, use in compiled.kernels.items()}


def main(only: str = "") -> None:
    """Prints each case with faults, and the number of cases without."""
    counts = Counter[str]()
    for key in (key for key in CASES if only in key):
        found = code_of(CASES[key])
        counts.update(cases=1, kernels=len(found), bad=any(found.values()))
        for name, faults in found.items():
            counts.update("spills" if "spilled" in f else "C75xx" if "C75" in f else "conversions" for f in faults)
            if faults:
                print(f"{key} {name}: {'; '.join(faults)}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
