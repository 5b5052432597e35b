"""Programs as people write them, by field.

`PROGRAMS` has each by name: a function that makes a module (or a function of tensors) and its example arguments. They
are small versions of what is published; all were written for this corpus.
"""

from __future__ import annotations

from . import detection, diffusion, geometry, graphs, language, losses, recommenders, sequences, signals, vision
from .registry import PROGRAMS

__all__ = [
    "PROGRAMS",
    "detection",
    "diffusion",
    "geometry",
    "graphs",
    "language",
    "losses",
    "recommenders",
    "sequences",
    "signals",
    "vision",
]
