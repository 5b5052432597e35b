"""Programs, comparisons and runners that several test files use.

Tests import the package as `support`, because the folder `tests` is on their path.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent


def load_file(path: str) -> ModuleType:
    """Imports a test file, such as `passes/tensor/test_fusion`, for the programs in it. Returns the module."""
    spec = spec_from_file_location(path.replace("/", "_"), TESTS / f"{path}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
