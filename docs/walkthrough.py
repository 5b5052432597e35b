"""Writes docs/schedules.md: one matrix product on its way from loops to CUDA, with the diff of every pass.

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
passes do today. It follows one program, a matrix product in bf16 with a bias and an activation:

```sh
deplodock compile -c "{program}" -vv
```

Every decision about how the kernel runs is in one attribute, which `plan-schedules` writes. The passes below it are
mechanical: each reads what it needs of the attribute, and says in a remark when it declines. What follows is the text
of the program before and after every pass that changed it, as diffs: of long ones the first {longest} lines. Long lines
are folded. Where only names changed a line appears too.

## The loop nest

Fusion has put the bias and the activation into the nest of the product. Nothing says yet how it runs.

"""


def page() -> str:
    """The text of docs/schedules.md."""
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
    parts.append("## CUDA\n\nThe same program as it is printed, without the helpers in front of the kernel.\n\n")
    parts.append(_block("cuda", cuda[cuda.index("extern ") :].splitlines(), len(cuda)))
    return "".join(parts).rstrip() + "\n"


def _about(name: str, again: bool) -> str:
    """The first sentence of a pass's docstring, and why it stands where it does."""
    text = (get_all_passes()[name]().__doc__ or "").strip()
    first = " ".join(text.split("\n\n")[0].split())
    if again:
        return "Once more."
    why = re.search(r"Why here: (.*?)(?:\n\s*\n|$)", text, re.S)
    reason = " ".join(why[1].split()) if why else ""
    return f"{first} Here: {reason}" if reason else first


def _candidates(loaded: Loaded) -> str:
    """What the planner chose from."""
    nests = [op for op in loaded.compilation.at("loop").walk() if isinstance(op, NestOp)]
    text = "\n".join(explain_nest(f"k{i}", nest, get_target(TARGET), 5) for i, nest in enumerate(nests))
    return "What was considered, and what limits each (`deplodock compile --explain`):\n\n" + _block(
        "text", text.splitlines()
    )


def _unchanged(loaded: Loaded, changed: list[str]) -> str:
    """Which passes between the loop level and the kernel level found nothing to do."""
    compilation = loaded.compilation
    passes = compilation.passes_to("kernel")[len(compilation.passes_to("loop")) :]
    idle = dict.fromkeys(p.name for p in passes if p.name not in changed)
    names = ", ".join(f"`{n}`" for n in idle)
    remarks = "".join(f"- {r.pass_name}: {r.why}\n" for r in compilation.remarks)
    return f"## Passes that found nothing to do\n\n{names}.\n\n" + (f"Their remarks:\n\n{remarks}\n" if remarks else "")


def _block(language: str, lines: list[str], longest: int = LONGEST) -> str:
    """Returns a block of code with its first `longest` lines, folded at `WIDEST` columns."""
    shown = fitted("\n".join(lines[:longest]), WIDEST, signs="+-").splitlines()
    if len(lines) > longest:
        shown.append(f"... {len(lines) - longest} more lines")
    return "\n".join([f"```{language}", *shown, "```", "", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
