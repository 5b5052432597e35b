// The page of the playground: loads the files with a progress bar, starts the worker, and shows its responses.
"use strict";

const byId = id => document.getElementById(id);
const manifest = JSON.parse(byId("manifest").textContent);
const MEGABYTE = 1e6;
const TEXT_LEVEL = "text";

let files = null, worker = null, isReady = false, isRunning = false, wasStopped = false, result = "", passNames = "";

function create(name, attributes = {}, ...children) {
  const element = Object.assign(document.createElement(name), attributes);
  element.append(...children);
  return element;
}

function say(text, kind = "") {
  byId("message").textContent = text;
  byId("status").className = kind;
}

// Without a total the bar is hidden; with the total 0 it shows that something runs.
function showProgress(total, done = 0) {
  const bar = byId("progress");
  bar.hidden = total === undefined;
  if (total) Object.assign(bar, { max: total, value: done });
  else bar.removeAttribute("value");
}

// Files

function loadScript(path) {
  return new Promise((resolve, reject) => {
    const fail = () => reject(new Error(`${path} cannot be read`));
    document.head.append(create("script", { src: path, onload: resolve, onerror: fail }));
  });
}

async function downloaded(file, receive) {
  const response = await fetch(file.path);
  if (!response.ok) throw new Error(`${file.path}: ${response.status} ${response.statusText}`);
  const reader = response.body.getReader(), chunks = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    receive(value.length);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

async function unpacked(bytes) {
  // Some servers decompress the file themselves.
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function loadFiles() {
  const total = manifest.files.reduce((sum, file) => sum + file.bytes, 0), size = (total / MEGABYTE).toFixed(1);
  let received = 0;
  const receive = count => {
    received = Math.min(received + count, total);
    say(`loading ${(received / MEGABYTE).toFixed(1)} of ${size} MB`);
    showProgress(total, received);
  };
  receive(0);
  const contents = {};
  if (location.protocol === "file:") {
    // A page that was opened from a folder may load scripts, and nothing else.
    await loadScript("offline.js");
    for (const file of manifest.files) {
      contents[file.name] = await unpacked(Uint8Array.from(atob(window.OFFLINE[file.name]), c => c.charCodeAt(0)));
      receive(file.bytes);
    }
    delete window.OFFLINE;
  } else {
    await Promise.all(manifest.files.map(async file => {
      contents[file.name] = await unpacked(await downloaded(file, receive));
    }));
  }
  return contents;
}

// The worker

function startWorker() {
  isReady = isRunning = false;
  say("starting Python");
  showProgress(0);
  update();
  const { "pyodide.asm.js": machine, "pyodide.js": loader, "worker.js": program, ...data } = files;
  const address = URL.createObjectURL(new Blob([machine, "\n", loader, "\n", program], { type: "text/javascript" }));
  worker = new Worker(address);
  worker.onmessage = ({ data }) => receivers[data.kind](data);
  worker.onerror = event => fail(event.message);
  worker.postMessage({ files: data });
}

function stop() {
  worker.terminate();
  wasStopped = true;
  startWorker();
}

const receivers = {
  ready({ data }) {
    isReady = true;
    showFacts(data);
    showProgress();
    if (wasStopped) say("stopped; Python has been started again");
    else compile();
    update();
  },
  progress({ name, done, total }) {
    say(`pass ${done + 1} of ${total}: ${name}`);
    showProgress(total, done);
  },
  response({ data }) {
    isRunning = false;
    showProgress();
    showResponse(data);
    update();
  },
  failure({ message }) { fail(message); },
};

function fail(message) {
  isRunning = false;
  say(`the playground failed: ${message}`, "bad");
  showProgress();
  update();
}

// Requests

function request() {
  const text = byId("source").value, [target, level, schedule] = ["target", "level", "schedule"].map(id => byId(id).value);
  return { text, target, level, schedule, check: byId("check").checked };
}

function compile() {
  if (!isReady || isRunning) return;
  isRunning = true;
  say("compiling");
  showProgress(0);
  update();
  worker.postMessage({ request: JSON.stringify(request()) });
}

function update() {
  byId("run").disabled = !isReady || isRunning;
  byId("stop").disabled = !isRunning;
  document.body.classList.toggle("running", isRunning);
}

// Responses

function showFacts(facts) {
  if (byId("target").options.length) return;
  const targets = facts.targets.map(t => create("option", { value: t.name }, `${t.name} (${t.card})`));
  byId("target").append(...targets);
  byId("level").append(create("option", { value: TEXT_LEVEL }, "CUDA or C++"));
  byId("level").append(...facts.levels.toReversed().map(level => create("option", { value: level }, level)));
  byId("target").value = facts.default;
  const versions = Object.entries(facts.versions).map(([name, number]) => `${name} ${number}`).join(", ");
  byId("footer").append(
    `${versions}, Pyodide ${manifest.pyodide}. `,
    create("a", { href: "../playground.html" }, "What is in this page"),
  );
  restore();
}

function showResponse(data) {
  showErrors(data.errors);
  showPasses(data.passes);
  const panel = byId("text");
  panel.classList.toggle("stale", data.errors.length > 0);
  if (data.result) {
    result = data.result.text;
    panel.replaceChildren(...data.result.sections.map(sectionOf));
    panel.scrollTop = 0;
  }
  showCopy();
  const changed = data.passes.filter(p => p.state === "changed").length;
  const time = `${data.seconds.toFixed(2)} s, ${changed} of ${data.passes.length} passes changed the program`;
  const count = data.errors.length;
  if (count) say(count === 1 ? "not compiled: 1 error" : `not compiled: ${count} errors`, "bad");
  else say(...verdictOf(data, time));
}

// The status after a compilation: its text and its colour.
function verdictOf({ passes, summary }, time) {
  if (!summary) return [time];
  if (passes.some(p => p.wrong)) return [`${time} · ${summary}`, "bad"];
  const checked = passes.filter(p => p.verdict).length;
  return checked ? [`${time} · all ${checked} checked: same results`, "good"] : [`${time} · ${summary}`];
}

function sectionOf(section) {
  const text = create("pre", { innerHTML: section.html });
  if (!section.folded) return text;
  const title = `${section.title}, ${section.lines} ${section.lines === 1 ? "line" : "lines"}`;
  return create("details", {}, create("summary", {}, title), text);
}

function showErrors(errors) {
  byId("errors").replaceChildren(...errors.map(error => {
    const item = create("button", { type: "button", disabled: !error.line }, error.message);
    item.onclick = () => select(error.line, error.column);
    return create("li", {}, item);
  }));
  showLines(errors.flatMap(error => error.line || []));
}

function select(line, column) {
  const source = byId("source"), lines = source.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
  const text = lines[line - 1] || "", word = column ? /^\S*/.exec(text.slice(column - 1))[0] : text;
  const first = start + (column ? column - 1 : 0);
  source.focus();
  source.setSelectionRange(first, first + Math.max(1, word.length));
}

function showLines(bad = []) {
  const count = byId("source").value.split("\n").length;
  byId("gutter").replaceChildren(...Array.from({ length: count }, (_, i) => (
    create("span", { className: bad.includes(i + 1) ? "bad" : "" }, `${i + 1}\n`)
  )));
}

function showPasses(passes) {
  const shown = passes.filter(p => p.state !== "unchanged");
  const names = shown.map(p => p.name).join();
  const open = names === passNames ? [...byId("passes").querySelectorAll("details")].map(d => d.open) : [];
  passNames = names;
  const items = shown.map((run, i) => passOf(run, open[i]));
  let level = "";
  byId("passes").replaceChildren(...items.flatMap((item, i) => {
    const heading = shown[i].level === level ? [] : [create("h3", {}, `to ${shown[i].level}`)];
    level = shown[i].level;
    return [...heading, item];
  }));
  if (!items.length) byId("passes").append(create("p", { className: "note" }, "no pass changed the program"));
  byId("tab-passes").textContent = passes.length ? `passes (${shown.length})` : "passes";
}

function passOf(run, isOpen = false) {
  const [before, after] = run.operations, facts = [];
  if (run.state === "changed") facts.push(`${before} → ${after} operations`);
  facts.push(`${(run.seconds * 1000).toFixed(run.seconds < 0.01 ? 1 : 0)} ms`);
  const mark = run.verdict ? [create("span", { className: run.wrong ? "bad" : "good", title: run.verdict }, run.wrong ? "✕" : "✓")] : [];
  const summary = create("summary", {}, create("code", {}, run.name), create("span", { className: "facts" }, facts.join(" · ")), ...mark);
  const body = create("div", {});
  const texts = [run.wrong ? run.verdict : run.precision, ...run.remarks].filter(Boolean);
  body.append(...texts.map(text => create("p", { className: "note" }, text)));
  if (run.diff.length) body.append(create("pre", { className: "diff" }, ...run.diff.map(diffLine)));
  if (run.omitted) body.append(create("p", { className: "note" }, `${run.omitted} more lines`));
  return create("details", { open: isOpen, className: run.state }, summary, body);
}

function diffLine(line) {
  const kind = { "+": "added", "-": "removed", "@": "hunk" }[line[0]] || "";
  return create("span", { className: kind }, `${line}\n`);
}

// Links

async function throughStream(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

async function encoded(data) {
  const bytes = await throughStream(new TextEncoder().encode(JSON.stringify(data)), new CompressionStream("deflate-raw"));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function decoded(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), c => c.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(await throughStream(bytes, new DecompressionStream("deflate-raw"))));
}

let restored = {};

function restore() {
  for (const id of ["target", "level", "schedule"]) if (typeof restored[id] === "string") byId(id).value = restored[id];
  for (const id of ["target", "level"]) if (byId(id).selectedIndex < 0) byId(id).selectedIndex = 0;
  byId("check").checked = restored.check === true;
}

async function readLink() {
  if (!location.hash.startsWith("#p=")) return;
  try {
    restored = await decoded(location.hash.slice(3));
    byId("source").value = String(restored.text);
    byId("example").value = "";
  } catch {
    byId("errors").append(create("li", {}, "the link is damaged; the example is shown instead"));
  }
}

async function share() {
  history.replaceState(null, "", `#p=${await encoded(request())}`);
  const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  say(copied ? "the link is copied" : "the link is in the address bar");
}

// Events

function showExample() {
  byId("source").value = manifest.examples[byId("example").value] || "";
  byId("errors").replaceChildren();
  showLines();
}

function showCopy() {
  byId("copy").hidden = !result || byId("text").hidden;
}

function openTab(name) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isOpen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", isOpen);
    byId(tab.getAttribute("aria-controls")).hidden = !isOpen;
  }
  showCopy();
}

async function begin() {
  byId("example").append(...Object.keys(manifest.examples).map(name => create("option", { value: name }, name)));
  byId("example").value = "RMSNorm";
  showExample();
  await readLink();
  showLines();
  byId("controls").onsubmit = event => { event.preventDefault(); compile(); };
  byId("example").onchange = () => { showExample(); compile(); };
  for (const id of ["target", "level", "check"]) byId(id).onchange = compile;
  byId("stop").onclick = stop;
  byId("share").onclick = share;
  byId("copy").onclick = () => navigator.clipboard.writeText(result).then(() => say("copied"));
  window.onhashchange = () => location.reload();
  byId("source").oninput = () => showLines();
  byId("source").onscroll = () => { byId("gutter").scrollTop = byId("source").scrollTop; };
  for (const tab of document.querySelectorAll("[role=tab]")) tab.onclick = () => openTab(tab.getAttribute("aria-controls"));
  document.onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) compile(); };
  try {
    files = await loadFiles();
    startWorker();
  } catch (error) {
    fail(error.message);
  }
}

begin();
