"""Machine code of the benchmarks' programs for a GPU, without the simulator: spills, C75xx, conversions of one number.
The plan is not looked at, so that large programs are quick.

    python tests/machine_code.py [TEXT]    # the 84 shapes in f32 and bf16 and the classes for sm_90a, with a count
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.disassembly import disassemble
from support.static_gates import machine_code

from benchmarks.common.cases import Case, cases
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation

TARGET = "sm_90a"
CASES: dict[str, Case] = {c.key: c for c in cases(("seed84", "classes"), "cuda", ("f32", "bf16"))}


def code_of(case: Case) -> dict[str, list[str]]:
    """Returns what the compiler made badly, by the name of each kernel."""
    function, args = case.make()
    text = Compilation(capture(function, args).module, TARGET, **case.options).cuda
    return code_of_text(text, "f32_matmul_precision" in case.options)


def code_of_text(text: str, splits: bool = False) -> dict[str, list[str]]:
    """Returns what the compiler made badly of a program's text, by the name of each kernel; one that `splits` numbers
    of f32 may convert one at a time."""
    compiled = compile_cubin(text, TARGET)
    listed = disassemble(compiled.cubin)
    return {n: [*machine_code(use, compiled.warnings, listed[n], splits)] for n, use in compiled.kernels.items()}


def main(only: str = "") -> None:
    """Prints each case that has faults, and how many have none."""
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
