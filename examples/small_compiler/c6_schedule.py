"""Chapter 6: a schedule. The elements of a tensor are divided among the threads of the target.

This is the simplest schedule that uses a whole machine. On a GPU each thread computes one element, and threads with
consecutive numbers compute consecutive elements. On a CPU a block is one thread, which computes a run of elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import torch

from deplodock.dialects import loop

from . import c4_fusion, c5_kernels
from .c1_capture import Program
from .c5_kernels import Schedule

WARPS = 4
"""Warps of a block on a GPU. Blocks of 128 threads fill a multiprocessor on every architecture."""

MOST_CPU_BLOCKS = 64
"""Limit of the blocks on a CPU: enough for its cores, and so few that starting blocks takes little time."""


def compile(function: Callable[..., object], inputs: tuple[torch.Tensor, ...], target: str = "sm_90a") -> Program:
    """Compiles a PyTorch program to kernels, which a simulator executes.

    Args:
        function: a module, or a function of tensors.
        inputs: example inputs, whose shapes the program has.
        target: `cpu`, or a GPU such as `sm_90a`.
    """
    program = c4_fusion.compile(function, inputs)
    c5_kernels.make_kernels(program.module, lambda nest: choose(nest, target))
    return replace(program, run=c5_kernels.run)


def choose(nest: loop.NestOp, target: str) -> Schedule:
    """Returns the schedule of a nest.

    Args:
        nest: the nest.
        target: `cpu`, or a GPU such as `sm_90a`.
    """
    size = prod(nest.shape)
    if target != "cpu":
        return Schedule(-(-size // (WARPS * 32)), WARPS, lanes=32)
    # A number of blocks that divides the elements: then no block needs a check of bounds.
    return Schedule(next(n for n in range(min(size, MOST_CPU_BLOCKS), 0, -1) if size % n == 0))
