"""Writes docs/levels.md: two programs at each level, as `deplodock compile --ir` prints them.

`python docs/levels.py docs/levels.md` writes the page anew; a test compares it with the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deplodock.frontend.compilation import LEVELS
from deplodock.tools.reports import load

TARGET = "sm_90a"

PROGRAMS = {
    "RMSNorm": "nn.RMSNorm(2048)(torch.randn(1,32,2048))",
    "A matmul with bias and activation": (
        "torch.relu(torch.matmul(torch.randn(64,64) + torch.randn(64), torch.randn(64,64)))"
    ),
}

TENSOR_CORES = (
    "torch.relu(torch.matmul(torch.randn(512,512,dtype=torch.bfloat16) + torch.randn(512,dtype=torch.bfloat16),"
    " torch.randn(512,512,dtype=torch.bfloat16)))"
)
"""The matmul in bf16. The page omits it for its length, but the test of line widths prints it."""

HEAD = """# Two programs at each level

This page is written by `python docs/levels.py docs/levels.md`; a test compares it with what is printed. No line is
wider than 120 columns. Layouts, schedules and long types have names, which are defined above the module; locations are
defined below. A location has the name of the ATen operator that an op comes from, and its number in the graph.

"""


def texts(code: str) -> dict[str, str]:
    """Returns a program at each level."""
    compilation = load(None, code, TARGET).compilation
    return {level: compilation.text(level, with_locations=True) for level in LEVELS if level != "cuda"}


def page() -> str:
    """Returns the text of docs/levels.md."""
    parts = [HEAD]
    for title, code in PROGRAMS.items():
        command = f'deplodock compile --target {TARGET} --ir LEVEL \\\n  -c "{code}"'
        parts.append(f"## {title}\n\n```sh\n{command}\n```\n\n")
        parts += [f"### `{level}`\n\n```mlir\n{text}```\n\n" for level, text in texts(code).items()]
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
