"""Writes docs/schedules.md: a matmul from loops to CUDA, with the diff of every pass.

`python docs/walkthrough.py docs/schedules.md` writes the page anew; a test compares it with the file.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.printing import print_module
from deplodock.passes.pipelines import get_all_passes
from deplodock.passes.planning.choose import explain_nest
from deplodock.target.attribute import get_target
from deplodock.tools.reports import Loaded, load
from deplodock.tools.terminal import fitted

PROGRAM = "F.relu(nn.Linear(1024, 2048, dtype=torch.bfloat16)(torch.randn(2048, 1024, dtype=torch.bfloat16)))"
TARGET = "sm_90a"
LONGEST = 70
"""Lines of a diff that are shown; the others are counted."""

WIDEST = 118
"""Columns at which lines are folded."""

HEAD = """# From a loop nest to a tensor-core kernel

This page is written by `python docs/walkthrough.py docs/schedules.md`; a test compares it with what the
passes do today. It follows one program, a matmul in bf16 with a bias and an activation:

```sh
deplodock compile -c "{program}" -vv
```

One attribute, which `plan-schedules` writes, holds every decision about the kernel. Later passes are mechanical: they
carry out the attribute, or decline with a remark. Below are the diffs of every pass that changed the program, at most
{longest} lines each. Long lines are folded. A line is also shown if only names in it changed.

## The loop nest

Fusion has put the bias and the activation into the nest of the matmul. The nest has no schedule yet.

"""


def page() -> str:
    """Returns the text of docs/schedules.md."""
    stream = io.StringIO()
    loaded = load(None, PROGRAM, TARGET, diffs_to=stream.write)
    nests = print_module(loaded.compilation.at("loop"))
    above = stream.tell()
    cuda = loaded.compilation.cuda
    head = HEAD.format(program=PROGRAM, longest=LONGEST)
    parts = [head, _block("mlir", nests.splitlines())]
    changed: list[str] = []
    for name, body in re.findall(r"^>>> t:(\S+)\n(.*?)\n<<< t:\1\n", stream.getvalue()[above:], re.M | re.S):
        parts.append(f"## `{name}`\n\n{_about(name, name in changed)}\n\n")
        if name == "plan-schedules":
            parts.append(_candidates(loaded))
        parts.append(_block("diff", body.splitlines()))
        changed.append(name)
    parts.append(_unchanged(loaded, changed))
    parts.append("## CUDA\n\nThe same program as it is printed, without the helper functions before the kernel.\n\n")
    parts.append(_block("cuda", cuda[cuda.index("extern ") :].splitlines(), len(cuda)))
    return "".join(parts).rstrip() + "\n"


def _about(name: str, is_repeated: bool) -> str:
    """Returns the first paragraph of a pass's docstring, and the section on its position in the pipeline.

    For a pass that is on the page already (`is_repeated`), returns only "Once more."
    """
    text = (get_all_passes()[name]().__doc__ or "").strip()
    first = " ".join(text.split("\n\n")[0].split())
    if is_repeated:
        return "Once more."
    position = re.search(r"(?:Why here|Pipeline position)[:*\s]+(.*?)(?:\n\s*\n|$)", text, re.S)
    return f"{first} Position: {' '.join(position[1].split())}" if position else first


def _candidates(loaded: Loaded) -> str:
    """Returns the schedules among which the planner chose."""
    nests = [op for op in loaded.compilation.at("loop").walk() if isinstance(op, NestOp)]
    text = "\n".join(explain_nest(f"k{i}", nest, get_target(TARGET), 5) for i, nest in enumerate(nests))
    return "The candidates and their limits (`deplodock compile --explain`):\n\n" + _block("text", text.splitlines())


def _unchanged(loaded: Loaded, changed: list[str]) -> str:
    """Returns the section on the passes between the loop and the kernel level that changed nothing."""
    compilation = loaded.compilation
    passes = compilation.passes_to("kernel")[len(compilation.passes_to("loop")) :]
    idle = dict.fromkeys(p.name for p in passes if p.name not in changed)
    names = ", ".join(f"`{n}`" for n in idle)
    remarks = "".join(f"- {r.pass_name}: {r.why}\n" for r in compilation.remarks)
    return f"## Passes that changed nothing\n\n{names}.\n\n" + (f"Their remarks:\n\n{remarks}\n" if remarks else "")


def _block(language: str, lines: list[str], longest: int = LONGEST) -> str:
    """Returns a block of code with its first `longest` lines, folded at `WIDEST` columns."""
    shown = fitted("\n".join(lines[:longest]), WIDEST, signs="+-").splitlines()
    if len(lines) > longest:
        shown.append(f"... {len(lines) - longest} more lines")
    return "\n".join([f"```{language}", *shown, "```", "", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
