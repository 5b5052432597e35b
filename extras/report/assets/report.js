"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const START = {};  // name of a section -> function that is called once, when the section is first shown
const KEYS = {};   // name of a section -> function of a key, which returns true if it used the key

function make(name, text = "", attributes = {}) {
  const element = Object.assign(document.createElement(name), attributes);
  element.textContent = text;
  return element;
}

// Returns the data that `packed` of html.py has compressed.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// ---- sections ----
document.documentElement.classList.add("js");
const sections = $$("main > section");
const current = () => $("main > section.current");

function show(name, focus = false) {
  const section = sections.find(s => s.id === name) || sections[0];
  for (const s of sections) s.classList.toggle("current", s === section);
  for (const a of $$("nav a")) {
    if (a.dataset.section === section.id) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const start = START[section.id];
  delete START[section.id];
  if (start) start(section, DATA.sections[section.id]);
  if (focus) section.focus({ preventScroll: true });
}

const named = () => decodeURIComponent(location.hash.slice(1)).split(":");
addEventListener("hashchange", () => {
  show(named()[0]);
  const target = document.getElementById(named().join(":"));
  if (target) target.scrollIntoView({ block: "center" });
});
function go(name) {
  try { history.replaceState(null, "", "#" + name); } catch { /* a page inside of another has no address of its own */ }
  show(name.split(":")[0], true);
}
for (const a of $$("nav a")) a.addEventListener("click", event => { event.preventDefault(); go(a.dataset.section); });

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const section = current();
  if (KEYS[section.id] && KEYS[section.id](event.key)) return event.preventDefault();
  if (/^[1-9]$/.test(event.key) && sections[event.key - 1]) go(sections[event.key - 1].id);
});

// ---- copying ----
addEventListener("click", event => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const code = $("code", button.parentElement), range = document.createRange();
  range.selectNodeContents(code);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1200); };
  if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => {});
  else if (document.execCommand("copy")) done();
});

// ---- levels ----
// The panes of `section`: lines of the same origin light up. `wanted`: origin whose lines are pinned.
function panesOf(section, data, wanted) {
  const panes = $$(".pane", section), grid = $(".panes", section), status = $(".status", section);
  const lines = new Map();  // number of an origin -> its lines in all panes
  const origins = line => line.dataset.o ? line.dataset.o.split(" ") : [];
  for (const line of $$(".l[data-o]", section)) {
    for (const o of origins(line)) lines.has(o) ? lines.get(o).push(line) : lines.set(o, [line]);
  }
  const note = status.textContent;
  let lit = [], pinned = null, cursor = null;

  const buttons = new Map(panes.map(pane => {
    const button = make("button", pane.dataset.title, { type: "button" });
    button.addEventListener("click", () => { pane.hidden = !pane.hidden; arrange(); });
    $(".toggles", section).append(button);
    return [pane, button];
  }));
  function arrange() {
    for (const [pane, button] of buttons) button.setAttribute("aria-pressed", String(!pane.hidden));
    grid.dataset.count = panes.filter(pane => !pane.hidden).length;
  }

  function light(line) {
    for (const l of lit) l.classList.remove("lit");
    const numbers = line ? origins(line) : [];
    lit = [...new Set(numbers.flatMap(o => lines.get(o) || []))];
    for (const l of lit) l.classList.add("lit");
    for (const [pane, button] of buttons) {
      const count = lit.filter(l => pane.contains(l)).length, next = $(".lit-count", pane);
      next.hidden = !count;
      next.textContent = count + (count === 1 ? " line ↓" : " lines ↓");
      if (count) button.dataset.lit = count; else delete button.dataset.lit;
    }
    status.textContent = numbers.length ? numbers.map(o => data.origins[o]).join(", ") + (pinned ? " (pinned)" : "") : note;
  }

  function reveal(from) {
    for (const pane of panes) {
      const first = lit.find(l => pane.contains(l));
      if (first && !pane.contains(from)) scrollTo(first);
    }
  }
  function scrollTo(line) {
    const fold = line.closest("details");
    if (fold) fold.open = true;
    const code = line.closest(".code");
    code.scrollTop = line.offsetTop - code.clientHeight / 3;
  }
  function pin(line) {
    pinned = line && line !== pinned && line.dataset.o ? line : null;
    light(pinned || line);
    if (pinned) reveal(pinned);
  }

  for (const pane of panes) {
    const code = $(".code", pane);
    code.addEventListener("pointerover", event => {
      const line = event.target.closest(".l");
      if (line && !pinned) light(line.dataset.o ? line : null);
    });
    code.addEventListener("pointerleave", () => { if (!pinned) light(null); });
    code.addEventListener("click", event => {
      const chip = event.target.closest(".chip"), alias = event.target.closest("i.a[data-def]");
      if (chip) {
        const open = chip.classList.toggle("open");
        chip.firstElementChild.hidden = !open;
      } else if (alias) alias.classList.toggle("open");
      else if (String(getSelection()) === "" && event.target.closest(".l")) pin(event.target.closest(".l"));
    });
    code.addEventListener("keydown", event => {
      const all = $$(".l", code).filter(l => l.offsetParent);
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        const at = all.indexOf(cursor), to = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))];
        if (cursor) cursor.classList.remove("cursor");
        cursor = to;
        cursor.classList.add("cursor");
        cursor.scrollIntoView({ block: "nearest" });
        if (!pinned) light(cursor.dataset.o ? cursor : null);
        event.preventDefault();
      } else if (event.key === "Enter" && all.includes(cursor)) {
        pin(cursor);
        event.preventDefault();
      }
    });
    code.addEventListener("blur", () => { if (cursor) cursor.classList.remove("cursor"); cursor = null; });
    let shown = -1;
    $(".lit-count", pane).addEventListener("click", () => {
      const here = lit.filter(l => pane.contains(l));
      shown = (shown + 1) % here.length;
      scrollTo(here[shown]);
    });
    // An alias such as #layout opens its definition.
    const definitions = new Map();
    for (const line of $$(".fold .l", code)) {
      const match = /^([#!]\w+) (= [^]*)\n$/.exec(line.textContent);
      if (match) definitions.set(match[1], match[2]);
    }
    for (const alias of $$(":scope > .l i.a", code)) {
      const definition = definitions.get(alias.textContent);
      if (definition) alias.dataset.def = alias.title = definition;
    }
  }
  arrange();
  if (wanted && lines.has(wanted)) pin(lines.get(wanted)[0]);
  return key => {
    if (key !== "Escape" || !pinned) return false;
    pin(null);
    return true;
  };
}
START.levels = (section, data) => {
  KEYS.levels = panesOf(section, data, named()[1]);  // #levels:3 pins the lines of the third origin
};

// ---- machine code ----
START.machine = (section, data) => {
  const keys = $$(".machine", section).map((kernel, i) => $(".panes", kernel) && panesOf(kernel, { origins: data.origins[i] }));
  KEYS.machine = key => keys.filter(Boolean).some(use => use(key));
};

// ---- passes ----
START.passes = (section, data) => {
  const items = $$(".run", section), detail = $(".detail", section);
  let selected = -1, details = null;
  unpacked(data.details).then(result => { details = result; select(selected, false); });

  function select(number, scroll = true) {
    if (number < 0 || number >= items.length) return;
    if (selected >= 0) items[selected].setAttribute("aria-selected", "false");
    selected = number;
    items[number].setAttribute("aria-selected", "true");
    if (scroll) items[number].scrollIntoView({ block: "nearest" });
    const run = data.runs[number];
    const parts = [make("h3", run.name)];
    if (run.text !== run.name) parts.push(make("p", run.text, { className: "note" }));
    if (run.skipped) parts.push(make("p", "Not run: " + run.skipped + "."));
    if (run.error) parts.push(make("p", "✕ " + run.error, { className: "refused" }));
    if (run.verdict) {
      const how = run.wrong ? "" : ": equal in the exact domain" + (run.precision ? "; " + run.precision : "") + ".";
      parts.push(make("p", (run.wrong ? "✕ " : "") + run.verdict + how, { className: run.wrong ? "refused" : "" }));
    }
    if (run.remarks) {
      const list = make("ul");
      for (const remark of run.remarks) list.append(make("li", remark));
      parts.push(list);
    }
    const text = details && details.diffs[number], about = details && details.help[run.name];
    if (text) parts.push(diff(text));
    else if (!run.skipped && !run.error && run.state !== "changed") {
      parts.push(make("p", "The program is unchanged.", { className: "note" }));
    }
    if (about) {
      const help = make("details");
      help.open = !text;
      help.append(make("summary", "documentation"), make("pre", about, { className: "help" }));
      parts.push(help);
    }
    detail.replaceChildren(...parts);
  }

  const KINDS = { "+": "add", "-": "del", "@": "hunk" };
  function diff(text) {
    const block = make("pre", "", { className: "diff" }), lines = text.split("\n");
    for (let start = 0, end; start < lines.length; start = end) {
      // Runs of removed and of added lines that are equally long: mark what differs between their lines.
      const run = sign => { let i = end; while (i < lines.length && lines[i][0] === sign) ++i; return i; };
      end = start;
      const middle = end = run("-"), removed = middle - start;
      end = run("+");
      const pairs = removed === end - middle ? removed : 0;
      if (end === start) ++end;
      for (let i = start; i < end; ++i) {
        const span = make("span", "", { className: KINDS[lines[i][0]] || "" });
        const other = pairs ? lines[i < middle ? i + removed : i - removed] : null;
        span.append(...(other ? marked(lines[i], other) : [lines[i] || " "]));
        block.append(span);
      }
    }
    return block;
  }
  // The words of a line between the beginning and the end that it has in common with another line are marked.
  function marked(line, other) {
    const words = text => text.slice(1).split(/(?=[^\w%.#@])|(?<=[^\w%.#@])/), a = words(line), b = words(other);
    let first = 0, last = 0;
    while (first < Math.min(a.length, b.length) && a[first] === b[first]) ++first;
    while (last < Math.min(a.length, b.length) - first && a[a.length - 1 - last] === b[b.length - 1 - last]) ++last;
    if (first + last < a.length / 4) return [line];
    const text = (from, to) => a.slice(from, to).join("");
    return [line[0] + text(0, first), make("b", text(first, a.length - last)), text(a.length - last)];
  }

  items.forEach((item, number) => item.addEventListener("click", () => select(number, false)));
  KEYS.passes = key => {
    const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[key];
    if (!step || key.startsWith("Arrow") && !section.contains(document.activeElement)) return false;
    select(selected + step);
    return true;
  };
  const failed = data.runs.findIndex(run => run.error || run.wrong);
  select(failed >= 0 ? failed : Math.max(0, data.runs.findIndex(run => run.state === "changed")));
};

show(named()[0]);
scrollTo(0, 0);
