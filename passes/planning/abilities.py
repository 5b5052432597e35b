"""What the passes below planning carry out, of what a schedule can say."""

from __future__ import annotations

CARRIED_OUT = frozenset({"fma", "mma", "wgmma", "plain", "cp_async", "tma"})
"""Atoms and copies. The model predicts the others too; they are refused in programs until a pass makes them."""
