"""Fixture with a small program for tests of the CUDA runtime."""

from __future__ import annotations

import pytest
from support.scaled_rows import KERNEL, MAIN, module
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda


@pytest.fixture(scope="module")
def program() -> tuple[ModuleOp, str]:
    """Returns the module of `scaled_rows.py` at the kernel level and its CUDA."""
    kernels = module(KERNEL + MAIN)
    return kernels, print_cuda(kernels)
