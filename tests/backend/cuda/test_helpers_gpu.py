"""Device functions on a GPU, where each is an instruction, against their C++ bodies in the emulator."""

from __future__ import annotations

import os
import re
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from support.cluster_units import UNITS
from support.exchanges import CASES, lowered
from support.f64_products import PRODUCTS as F64_PRODUCTS
from support.helper_units import HELPER_UNITS, emulated_result, save_results, saved_results
from support.hopper_running import allocated
from support.tensor_core_products import PRODUCTS
from support.tf32_products import PRODUCTS as TF32_PRODUCTS
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpp.device import HELPERS
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime import CudaProgram
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.frontend.capture.arrays import to_numpy, to_torch


def used_helpers(module: ModuleOp) -> set[str]:
    """Returns the names of the device functions in the CUDA of a module."""
    text = print_cuda(module)
    return {key for key, helper in HELPERS.items() if helper.cuda in text}


@cache
def wanted(name: str) -> np.ndarray:
    """Returns the emulator's result of a unit, from the file `HELPER_RESULTS` if it is set, or else computed now."""
    saved = os.environ.get("HELPER_RESULTS")
    return emulated_result(name) if saved is None else saved_results(saved)[name]


@pytest.mark.parametrize("name", HELPER_UNITS)
def test_emulated(name: str) -> None:
    found = emulated_result(name)
    assert found.size == HELPER_UNITS[name].count
    assert len(np.unique(found[~np.isnan(found)])) > 1 or name[:3] in ("inf", "nan")


def test_results_travel_to_another_machine(tmp_path: Path) -> None:
    save_results(tmp_path / "helpers.npz")
    saved = saved_results(str(tmp_path / "helpers.npz"))
    assert saved.keys() == HELPER_UNITS.keys()
    for name, found in saved.items():
        expected = emulated_result(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


def test_assembly_is_accepted() -> None:
    for name, unit in HELPER_UNITS.items():
        assert compile_cubin(unit.text(), "sm_90a").warnings == (), name


def test_every_helper_is_tested_on_the_device() -> None:
    """Each device function is in a helper unit or in the IR of another test with the marker `gpu`.

    Loads, stores and fills are excluded: all widths share one text.
    """
    products = (*PRODUCTS.values(), *TF32_PRODUCTS.values(), *F64_PRODUCTS.values())
    modules = chain(
        (allocated(unit.text()) for unit in UNITS.values()),
        (lowered(name) for name in CASES),
        (product.lowered() for product in products),
    )
    accesses = {key for key in HELPERS if re.match(r"(ld|st|fill)\d", key)}
    missing = HELPERS.keys() - accesses - {key for unit in HELPER_UNITS.values() for key in (*unit.keys, *unit.more)}
    while missing and (module := next(modules, None)):
        missing -= used_helpers(module)
    assert not missing


@pytest.mark.gpu
@pytest.mark.parametrize("name", HELPER_UNITS)
def test_device(name: str) -> None:
    unit = HELPER_UNITS[name]
    (result,) = CudaProgram(unit.plan(), unit.text()).run([to_torch(a) for _, a in unit.inputs])
    found, expected = to_numpy(result), wanted(name)
    if not unit.exact:
        np.testing.assert_allclose(found, expected, rtol=2.0**-21, atol=2.0**-126)
        return
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    bits = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(found[~nan].view(bits), expected[~nan].view(bits))
