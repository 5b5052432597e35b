"""What a device function of the generated text is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Helper:
    """`name` is the C++ name (overloads share it), `cuda` and `host` define it; `needs` are the keys of others."""

    name: str
    cuda: str
    host: str
    needs: tuple[str, ...] = ()
