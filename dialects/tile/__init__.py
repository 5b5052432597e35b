"""The tile dialect: a block's program over tiles.

A tile is a value: `tensor<64x128xf32>`, later with a layout as its encoding; a tile of no dimensions is a scalar
(`f32`), the same in all threads of the block. The payload computes on tiles, `scf.for` loops over chunks. Buffers in
global memory are memrefs, the arguments of the kernel; results are its trailing arguments. A kernel never loads what it
writes, so loads are pure.
"""

# pyright: reportUnusedImport=false
# ruff: noqa: F401, F403, F405  the package offers everything that its files define

from __future__ import annotations

from xdsl.ir import Dialect

from ..support.assembly import definitions
from .async_dot import *
from .copies import *
from .kernel import *
from .row_cache import *
from .schedule import ScheduleAttr

Tile = Dialect("tile", *definitions("tile", globals()))
