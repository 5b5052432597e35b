// Worker of the playground: Python with the compiler. The page sends the files and then requests, one at a time.
"use strict";

const HOME = "https://playground.invalid/";
let files = {}, session = null;

// Pyodide reads its files by fetch. They are in memory already, and there is no network.
self.fetch = async resource => {
  const name = String(resource.url || resource).replace(HOME, "");
  if (!(name in files)) throw new TypeError(`the playground has no file ${name}`);
  const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
  return new Response(files[name], { headers: { "Content-Type": type } });
};

async function start() {
  const print = line => console.info(line);
  const python = await loadPyodide({ indexURL: HOME, stdout: print, stderr: print });
  const folder = python.runPython("import site; site.getsitepackages()[0]");
  for (const name of Object.keys(files).filter(n => n.endsWith(".whl"))) python.unpackArchive(files[name], "wheel");
  python.unpackArchive(files["library.zip"], "zip", { extractDir: folder });
  files = {};
  session = python.pyimport("session");
  return session.facts();
}

self.onmessage = async ({ data }) => {
  try {
    if (data.files) {
      files = data.files;
      postMessage({ kind: "ready", data: JSON.parse(await start()) });
    } else {
      const report = (name, done, total) => postMessage({ kind: "progress", name, done, total });
      postMessage({ kind: "response", data: JSON.parse(session.respond(data.request, report)) });
    }
  } catch (error) {
    postMessage({ kind: "failure", message: String(error.message || error).trim().split("\n").pop() });
  }
};
