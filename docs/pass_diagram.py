"""Draws the levels and the passes of the `default` pipeline as a Mermaid flowchart, in docs/architecture.md.

`python docs/pass_diagram.py docs/architecture.md` replaces the flowchart of that page; a test compares it
with the registry of passes.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

from deplodock.dialects import LEVELS
from deplodock.passes import group_of
from deplodock.passes.pipelines import PIPELINES, parse_passes

DIALECTS = LEVELS[:-1]
_FLOWCHART = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def diagram() -> str:
    """Returns the flowchart.

    It has a node for each level, and between two levels a node for each run of passes of one folder of `passes/`.
    Passes of no level, such as `cse` and `verify-level`, are left out.
    """
    lines = ["```mermaid", "flowchart TB"]
    lines += [f'  {level}(["{level} dialect"])' for level in DIALECTS]
    for start, end in zip(DIALECTS, DIALECTS[1:], strict=False):
        names = dict.fromkeys(p.name for p in parse_passes(PIPELINES[f"{start}-to-{end}"]))
        of_levels = [name for name in names if group_of(name) not in ("general", "xDSL")]
        previous = start
        for number, (group, members) in enumerate(groupby(of_levels, group_of)):
            node = f"{start}_{end}_{number}"
            lines.append(f'  {node}["<b>passes/{group}</b><br/>{"<br/>".join(members)}"]')
            lines.append(f"  {previous} --> {node}")
            previous = node
        lines.append(f"  {previous} --> {end}")
    lines += ['  kernel --> cuda["CUDA text (backend/cuda)"]']
    lines += ['  kernel --> cpp["C++ text (backend/cpu), where a block is one thread"]', "```", ""]
    return "\n".join(lines)


def with_diagram(page: str) -> str:
    """Returns `page` with a new flowchart. Raises ValueError unless it has exactly one."""
    changed, count = _FLOWCHART.subn(lambda _: diagram(), page)
    if count != 1:
        raise ValueError(f"{count} flowcharts; expected a page with one")
    return changed


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_diagram(file.read_text(encoding="utf-8")), encoding="utf-8")
