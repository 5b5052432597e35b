"""Remarks: why a pass left something as it was.

A pattern that declines says so here instead of being silently absent from the result. Remarks are collected while
somebody listens (`collect_remarks`), and cost one context-variable look-up otherwise.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from xdsl.ir import Operation

from ..dialects.support.locations import location_text


@dataclass(frozen=True)
class Remark:
    """`pass_name` left `operator`, written at `location` (`file:line[:col]`), alone because of `why`."""

    pass_name: str
    operator: str
    why: str
    location: str | None

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}remark: [{self.pass_name}] {self.operator}: {self.why}"


_listener: ContextVar[list[Remark] | None] = ContextVar("deplodock_remarks", default=None)


def emit_remark(op: Operation, pass_name: str, why: str) -> None:
    """Record that pass `pass_name` declined to act on `op`; `why` is one line without a full stop at its end.

    The same remark about the same place is recorded once.
    """
    remarks = _listener.get()
    if remarks is None:
        return
    remark = Remark(pass_name, op.name, " ".join(why.split()), location_text(op))
    if remark not in remarks:
        remarks.append(remark)


@contextmanager
def collect_remarks() -> Generator[list[Remark]]:
    """Collect the remarks emitted inside the `with` block, in order."""
    remarks: list[Remark] = []
    token = _listener.set(remarks)
    try:
        yield remarks
    finally:
        _listener.reset(token)
