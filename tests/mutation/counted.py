"""Counts the planted bugs of the optimisations: `python tests/mutation/counted.py`."""

from __future__ import annotations

import sys
from collections.abc import Sized
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))


def groups() -> dict[str, Sized]:
    """Returns the planted bugs of each optimisation, which the tests of the named files must detect."""
    from support import load_file

    from mutation.cluster_mutants import CUDA_MUTANTS, IR_MUTANTS
    from mutation.lowering_mutants import WARPGROUPS
    from mutation.printer_mutants import PRINTER_MUTANTS
    from mutation.schedule_mutants import PROMOTED

    return {
        "partial sums (test_mutation.py)": PROMOTED,
        "sums of tensor cores (test_tensor_core_sums.py)": load_file("backend/emulator/test_tensor_core_sums").MUTANTS,
        "delayed dots, fused exponents (test_mutation.py)": [
            *WARPGROUPS,
            *(m for m in PRINTER_MUTANTS if "attention of warpgroups" in vars(m).values()),
        ],
        "sums of a cluster (test_cluster_mutation.py)": [
            m for m in (*IR_MUTANTS, *CUDA_MUTANTS) if "sums" in vars(m).values()
        ],
        "plans of fusion (test_plan_mutation.py)": load_file("mutation/test_plan_mutation").MUTANTS,
        "build cache (test_compiling_at_once.py)": load_file("backend/host/test_compiling_at_once").FAULTS,
    }


if __name__ == "__main__":
    found = {name: len(mutants) for name, mutants in groups().items()}
    for name, count in found.items():
        print(f"{count:4} {name}")
    print(f"{sum(found.values()):4} in all")
