"""Marks for tests that need a recent PyTorch."""

from __future__ import annotations

import pytest
import torch

VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
"""Major and minor version of PyTorch."""


def needs_torch(major: int, minor: int, reason: str) -> pytest.MarkDecorator:
    """Returns a mark that skips a test with older versions of PyTorch.

    Args:
        major, minor: oldest version that runs the test.
        reason: the feature that older versions lack.
    """
    return pytest.mark.skipif(VERSION < (major, minor), reason=f"PyTorch {torch.__version__} {reason}")
