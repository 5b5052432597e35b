"""Texts do not depend on Python's hash seed: captured programs, fusion, records, and printed CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from support import load_file

from deplodock.dialects import make_context
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.records import Record

printer = load_file("backend/cuda/test_cuda_printer")
fusion = load_file("passes/tensor/test_fusion")
levels = load_file("tools/test_levels")
records = load_file("passes/planning/test_records")

SEED = "77"
"""Beside that of the process that tests, which is random."""


def texts() -> Iterator[str]:
    """Yields the texts that are compared."""
    for name in levels.PROGRAMS:
        program = levels.compiled(name)
        yield from (program.ir(level) for level in (*levels.DIALECT_LEVELS, "cuda"))
    module, _ = fusion._tensor_level(*fusion.ONE_NEST["attention_of_heads"])
    run_passes(make_context(), module, parse_passes(f"tensor-plan-fusion,{fusion.LOWER}"))
    yield str(module)
    record = Record("plans.json")
    records.planned(records.TWO, "plan-schedules", record)
    yield record.text()
    body = "".join(
        f"%v{i} = {name} %r_x : vector<4xf32>\n{printer.store(f'%v{i}', i, 'f32')}\n"
        for i, name in enumerate(printer.UNARY)
    )
    yield printer.print_cuda(printer.program({"x": "f32"}, ["f32"] * len(printer.UNARY), body))


def test_texts_do_not_depend_on_the_hash_seed() -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"PYTHONHASHSEED": SEED, "PYTHONPATH": path}
    found = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
    text = "\n".join(texts()) + "\n"
    assert found.stdout == text
    assert text.count("__global__") >= 4
    assert "loop.staged_reduce" in text


if __name__ == "__main__":
    print("\n".join(texts()))
