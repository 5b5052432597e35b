"""Checks of report pages in headless Chromium, without a library.

One page holds the checked pages in frames of several widths, and a script that points, clicks and presses keys. The
script writes its findings into the document, which Chromium prints.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTHS = (390, 1024, 1600)
"""Widths of the frames in pixels: a phone, a small and a large window."""

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=60000""".split()

_SCRIPT = """
const WIDTHS = %s, findings = {};
const tick = () => new Promise(done => setTimeout(done, 0));

function outside(document, window) {
  // Elements that are wider than the window, or than their pane, and that no ancestor scrolls or cuts off.
  const faults = [], page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) faults.push("the page is " + page.scrollWidth + " pixels wide");
  for (const element of document.querySelectorAll("main section.current *, header *, footer *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || !element.checkVisibility()) continue;
    let frame = element.parentElement;
    while (frame && window.getComputedStyle(frame).overflowX === "visible") frame = frame.parentElement;
    const limit = frame && frame !== page && frame !== document.body ? null : page.clientWidth;
    if (limit !== null && (box.right > limit + 1 || box.left < -1)) {
      faults.push(element.tagName + "." + element.className + " ends at " + Math.round(box.right));
    }
  }
  const panes = [...document.querySelectorAll("section.current .pane")].filter(p => p.checkVisibility());
  for (const [i, pane] of panes.entries()) {
    const box = pane.getBoundingClientRect();
    for (const child of pane.children) {
      const inner = child.getBoundingClientRect();
      if (inner.bottom > box.bottom + 1 || inner.right > box.right + 1) faults.push("outside of " + pane.dataset.title);
    }
    for (const other of panes.slice(i + 1)) {
      const second = other.getBoundingClientRect();
      const apart = second.left >= box.right || second.top >= box.bottom || second.right <= box.left;
      if (!apart) faults.push(pane.dataset.title + " overlaps " + other.dataset.title);
    }
  }
  return faults;
}

function lines(pane) { return [...pane.querySelectorAll(".l")]; }

function point(window, line) { line.dispatchEvent(new window.PointerEvent("pointerover", { bubbles: true })); }

function lights(document, window) {
  // For a sample of origins: number -> pane -> indices of the lit lines, after pointing at a line of the last pane.
  const panes = [...document.querySelectorAll("#levels .pane")], last = panes[panes.length - 1], result = {};
  const numbers = [...new Set(lines(last).flatMap(l => l.dataset.o ? l.dataset.o.split(" ") : []))];
  const step = Math.max(1, Math.floor(numbers.length / 6));
  for (const number of numbers.filter((_, i) => i %% step === 0)) {
    const line = lines(panes.find(p => p.dataset.pane === "torch") || last).find(l => l.dataset.o === number);
    if (!line) continue;
    point(window, line);
    const status = document.querySelector("#levels .status").textContent, lit = {};
    for (const pane of panes) {
      lit[pane.dataset.pane] = lines(pane).flatMap(l => l.classList.contains("lit") ? [l.textContent.trim()] : []);
    }
    result[status] = lit;
  }
  return result;
}

function press(document, window, key) {
  document.body.dispatchEvent(new window.KeyboardEvent("keydown", { key, bubbles: true }));
}

async function check(frame) {
  const document = frame.contentDocument, window = frame.contentWindow, result = { outside: {} };
  const links = [...document.querySelectorAll("nav a")];
  result.sections = links.map(a => a.dataset.section);
  for (const link of links) {
    link.click();
    await tick();
    const faults = outside(document, window);
    if (faults.length) result.outside[link.dataset.section] = [faults.length, ...faults.slice(0, 5)];
  }
  press(document, window, String(result.sections.indexOf("levels") + 1));
  result.shown = document.querySelector("section.current").id;
  result.lit = lights(document, window);
  const line = document.querySelector("#levels .pane[data-pane=torch] .l[data-o]");
  if (line) {
    line.click();
    result.pinned = document.querySelector("#levels .status").textContent;
    press(document, window, "Escape");
    result.released = document.querySelector("#levels .status").textContent;
  }
  document.querySelector("nav a[data-section=passes]").click();
  const selected = () => document.querySelector(".run[aria-selected=true]").dataset.run;
  result.selected = [selected()];
  for (let turn = 0; turn < 100 && !document.querySelector(".detail pre"); ++turn) await tick();
  for (const key of "jjk") { press(document, window, key); result.selected.push(selected()); }
  result.detail = document.querySelector(".detail").textContent;
  return result;
}

addEventListener("load", async () => {
  try {
    for (const frame of document.querySelectorAll("iframe")) {
      findings[frame.name] = await check(frame);
      frame.remove();
    }
  } catch (error) { findings.error = String(error.stack || error); }
  const text = JSON.stringify(findings);
  document.body.replaceChildren(Object.assign(document.createElement("pre"), { id: "findings", textContent: text }));
});
"""


def checked_pages(pages: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Checks pages in Chromium at all widths.

    Args:
        pages: name -> page.
        folder: folder for the files of the browser.

    Returns:
        for `NAME WIDTH` the findings of `check` in the script above.

    Raises:
        AssertionError: the browser reports an error of a page, or the script fails.
    """
    frames = "".join(
        f'<iframe name="{name} {width}" style="width:{width}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in WIDTHS
    )
    file = folder / "frames.html"
    script = _SCRIPT % json.dumps(WIDTHS)
    file.write_text(
        f'<!doctype html><meta charset="utf-8"><body>{frames}<script>{script}</script></body>', encoding="utf-8"
    )
    return findings_of(file.as_uri(), folder)


def findings_of(address: str, folder: Path) -> dict[str, Any]:
    """Opens a page whose script replaces it by an element `findings` with JSON.

    Args:
        address: URL of the page.
        folder: folder for the files of the browser.

    Returns:
        The findings.

    Raises:
        AssertionError: the browser reports an error of a page, or the script fails.
    """
    command = [str(BROWSER), *_FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address]
    environment = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, "\n".join(errors)
    match = re.search(r'<pre id="findings">(.*?)</pre>', done.stdout, re.S)
    assert match, done.stderr[-2000:]
    findings = json.loads(html.unescape(match[1]))
    assert "error" not in findings, findings["error"]
    return findings
