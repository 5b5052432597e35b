"""Makes the pictures of the tutorial: screenshots of report pages, taken by headless Chromium.

    python docs/learn/pictures.py [NAME ...]

Each picture is a program, the options of `deplodock compile`, and a state of its report page: a section, pinned lines,
and a script that clicks as a reader would. The pictures are committed, because not every machine has Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent / "pictures"

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=4000""".split()


@dataclass(frozen=True)
class Picture:
    """State of a report page.

    Attributes:
        program: expression of Python.
        address: name of the section, and of a pinned origin: `levels:3`.
        options: further options of `deplodock compile`.
        panes: levels that are shown side by side in the section `levels`; empty for the page's choice.
        script: JavaScript that runs when the page is loaded.
        width: width of the picture in pixels.
        height: height in pixels.
    """

    program: str
    address: str
    options: tuple[str, ...] = ("--target", "sm_90a")
    panes: tuple[str, ...] = ()
    script: str = ""
    width: int = 1100
    height: int = 620

    def code(self) -> str:
        """Returns the script that brings the page into its state."""
        if not self.panes:
            return self.script
        return (
            f"const panes = {list(self.panes)};"
            "for (const chip of document.querySelectorAll('#levels button[aria-pressed]'))"
            "  if ((chip.getAttribute('aria-pressed') === 'true') !== panes.includes(chip.textContent.trim()))"
            "    chip.click();" + self.script
        )


RMSNORM = "nn.RMSNorm(512)(torch.randn(64, 512))"
PRODUCT = "torch.relu(torch.randn(64, 128) @ torch.randn(128, 256) + torch.randn(256))"


def select_pass(name: str) -> str:
    """Returns a script that selects a pass by its name."""
    return f"[...document.querySelectorAll('.run')].find(r => r.textContent.includes('{name}'))?.click();"


def pin_line(pane: str, number: int) -> str:
    """Returns a script that pins a line with an origin.

    Args:
        pane: level of the pane.
        number: index of the line among those with an origin.
    """
    return f"document.querySelectorAll('#levels .pane[data-pane={pane}] .l[data-o]')[{number}]?.click();"


PICTURES = {
    "00_run": Picture(RMSNORM, "overview", height=560),
    "01_levels": Picture(PRODUCT, "levels", panes=("torch", "tensor", "loop"), script=pin_line("torch", 0), width=1300),
    "02_tensor_ir": Picture("torch.softmax(torch.randn(8, 64), 1)", "levels", panes=("torch", "tensor")),
    "03_index_maps": Picture(
        "torch.randn(8, 16).t()[2:10].flip(1) + 1", "levels", panes=("torch", "loop"), script=pin_line("torch", 2)
    ),
    "04_fusion": Picture(f"F.gelu({RMSNORM} @ torch.randn(512, 256))", "fusion", height=760),
    "05_rewrite": Picture(RMSNORM, "passes", script=select_pass("canonicalize")),
    "06_tests": Picture(RMSNORM, "passes", ("--target", "sm_90a", "--check-each"), height=700),
    "07_online": Picture(
        "torch.softmax(torch.randn(64, 4096), 1)", "levels", panes=("tensor", "loop"), script=pin_line("tensor", 6)
    ),
    "08_layouts": Picture(RMSNORM, "layouts", height=660),
    "09_barriers": Picture(RMSNORM, "passes", script=select_pass("kernel-insert-barriers")),
    "10_schedules": Picture(PRODUCT, "schedules", height=760),
    "11_pipeline": Picture(
        "torch.randn(256, 512, dtype=torch.half) @ torch.randn(512, 256, dtype=torch.half)",
        "passes",
        ("--target", "sm_80", "--schedule", "block=64,64 chunk=32 warps=4 stages=3 atom=mma copy=cp_async"),
        script=select_pass("tile-pipeline-loads"),
        height=700,
    ),
    "12_operation": Picture("torch.relu(torch.randn(64, 64))", "levels", panes=("torch", "tensor", "loop", "tile")),
}
"""Name of a page -> its picture."""


def take(name: str, picture: Picture, browser: str) -> None:
    """Writes the picture of a page into the folder.

    Args:
        name: name of the page.
        picture: the picture.
        browser: path of Chromium.
    """
    with TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        command = [sys.executable, "-m", "deplodock.tools.cli", "compile", "-c", picture.program, "--record", "none"]
        subprocess.run(
            [*command, *picture.options, "--report", page.name], check=True, stdout=subprocess.DEVNULL, cwd=folder
        )
        text = page.read_text(encoding="utf-8")
        script = f"<script>setTimeout(() => {{ {picture.code()} }}, 100);</script></body>"
        page.write_text(text.replace("</body>", script), encoding="utf-8")
        size, target = f"--window-size={picture.width},{picture.height}", f"--screenshot={FOLDER / name}.png"
        subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={folder}/browser", size, target, f"{page.as_uri()}#{picture.address}"],
            check=True,
            stderr=subprocess.DEVNULL,
        )


def main(names: list[str]) -> None:
    """Makes the named pictures, or all.

    Args:
        names: names in `PICTURES`.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("expected Chromium on PATH; install it (apt: chromium)")
    FOLDER.mkdir(exist_ok=True)
    for name in names or PICTURES:
        take(name, PICTURES[name], browser)
        print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
