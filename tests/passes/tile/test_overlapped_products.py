"""wgmma that are in flight across iterations: planted bugs are detected."""

from __future__ import annotations

import numpy as np
import pytest
from support.warpgroup_products import PRODUCTS

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.errors import DeplodockError

SUBJECT = PRODUCTS["boxes"]

BUGS = {
    "the slot of this iteration is given back": (
        r"kernel.mbar_arrive %empty[%last_1]",
        r"kernel.mbar_arrive %empty[%slot_1]",
        r"mbar_arrive(&empty[last]);",
        r"mbar_arrive(&empty[slot]);",
    ),
    "two groups are left": ("kernel.wgmma_wait 1,", "kernel.wgmma_wait 2,", "wgmma_wait<1>", "wgmma_wait<2>"),
    "the first iteration gives back a slot": (
        "%free = arith.andi %elected, %more",
        "%free = arith.andi %elected, %elected",
        "free1 = elected && more",
        "free1 = elected",
    ),
    "the first product adds": (
        "k_steps 4 swizzle 128 use_acc %more",
        "k_steps 4 swizzle 128",
        "slice > 0 || more",
        "true",
    ),
}
"""Name -> a mistake in the IR and in the CUDA: what becomes what."""


def test_waits() -> None:
    """The loop waits for the previous iteration's wgmma only, and all have finished after the loop."""
    text = print_module(SUBJECT.lowered())
    assert text.count("kernel.wgmma_wait 1") == text.count("kernel.wgmma_wait 0") == 1
    assert "wgmma_resume" not in text


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_are_noticed(bug: str) -> None:
    """For a bug in the IR or in the CUDA the emulator reports an error or computes wrong results."""
    old, new, cuda_old, cuda_new = BUGS[bug]
    (wanted,) = run(SUBJECT.parse(), SUBJECT.inputs(), "typed")
    sound = SUBJECT.lowered()
    text, source = print_module(sound), print_cuda(sound)
    assert old in text
    assert cuda_old in source
    broken = parse_module(make_context(), text.replace(old, new), "broken.mlir")
    try:
        outputs, reports = EmulatedProgram(print_cuda(broken), make_plan(broken)).run(SUBJECT.inputs(), (0, 1))
        assert reports or _differ(outputs[0], wanted)
    except DeplodockError as error:
        assert "waits" in str(error)  # noqa: PT017
    outputs, reports = EmulatedProgram(source.replace(cuda_old, cuda_new), make_plan(sound)).run(
        SUBJECT.inputs(), (0, 1)
    )
    assert reports or _differ(outputs[0], wanted)


def _differ(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool((found.astype(np.float32) != wanted.astype(np.float32)).any())
