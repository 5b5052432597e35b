# pyright: basic
"""Runs every lit test under `tests/filecheck`: each in this process, and one of each folder as real commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lit.discovery
import lit.LitConfig
import lit.Test
import pytest
from support import TESTS

ROOT = TESTS / "filecheck"


def _discover() -> dict[str, tuple[lit.Test.Test, lit.LitConfig.LitConfig]]:
    config = lit.LitConfig.LitConfig(
        progname="lit",
        path=[],
        diagnostic_level="error",
        useValgrind=False,
        valgrindLeakCheck=False,
        valgrindArgs=[],
        noExecute=False,
        debug=False,
        isWindows=False,
        order="smart",
        params={},
    )
    tests = lit.discovery.find_tests_for_inputs(config, [str(ROOT)])
    named = {Path(test.getSourcePath()).relative_to(ROOT).as_posix(): (test, config) for test in tests}
    return dict(sorted(named.items()))


TESTS = _discover()


@pytest.mark.parametrize("name", TESTS)
def test_file(name: str) -> None:
    test, config = TESTS[name]
    result = test.config.test_format.execute(test, config)
    if result.code is lit.Test.UNSUPPORTED:
        pytest.skip(result.output)
    assert not result.code.isFailure, result.output


def test_real_executables() -> None:
    """The shortest file of each folder runs as separate processes with pipes."""
    files = sorted((ROOT / name for name in TESTS), key=lambda file: file.stat().st_size, reverse=True)
    first_of_folder = {file.parent: file for file in files}
    lit_tool = Path(sys.executable).with_name("lit")
    command = [str(lit_tool), "-j2", "-DSUBPROCESS", "-v", *map(str, sorted(first_of_folder.values()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
