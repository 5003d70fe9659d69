// The engine in a Web Worker: one message asks for a job, many may come back. Long jobs go on in turns of a
// few tens of milliseconds (training: a second or two), so that a message to stop is heard in between.
//   in:  { id, call, ...arguments }           out: { id, event } ..., then { id, value } or { id, error, fatal }
import { Engine } from "./engine.js";

let engine = null, flag = null, nextModel = 1, vectors = null;
const models = new Map(), stopped = new Set();

const tellTo = id => event => { postMessage({ id, event }); return !(stopped.has(id) || (flag && Atomics.load(flag, 0) === id)); };

// A turn of the event loop: messages that wait are heard.
const channel = new MessageChannel();
let turned = null;
channel.port1.onmessage = () => turned?.();
const turn = () => new Promise(done => { turned = done; channel.port2.postMessage(0); });

function sourceOf(file, id) {
  const reader = new FileReaderSync();
  let last = 0;
  return {
    size: file.size,
    read: (offset, n) => new Uint8Array(reader.readAsArrayBuffer(file.slice(offset, offset + n))),
    progress: done => {
      if (performance.now() - last < 50 && done < file.size) return;
      last = performance.now();
      postMessage({ id, event: { stage: "reading", done, total: file.size } });
    },
  };
}

function modelOf(id) {
  const model = models.get(id);
  if (!model) throw new Error("this model is closed");
  return model;
}

// ---- A run of training in the browser's own storage, so that a closed tab loses at most a slice ----

const store = {
  open: () => new Promise((done, fail) => {
    const r = indexedDB.open("kermes", 1);
    r.onupgradeneeded = () => r.result.createObjectStore("run");
    r.onsuccess = () => done(r.result);
    r.onerror = () => fail(r.error);
  }),
  async do(mode, fn) {
    const db = await store.open();
    try {
      return await new Promise((done, fail) => {
        const t = db.transaction("run", mode), r = fn(t.objectStore("run"));
        t.oncomplete = () => done(r?.result);
        t.onerror = t.onabort = () => fail(t.error);
      });
    } finally { db.close(); }
  },
  get: () => store.do("readonly", s => s.get("run")),
  put: run => store.do("readwrite", s => s.put(run, "run")),
  remove: () => store.do("readwrite", s => s.delete("run")),
};

const RUN = "/run", DATA = "/data.txt";

async function train(id, { settings, text, resume }) {
  let kept = null, saved = true, how = settings, curve = [], step = 0;
  engine.removeFolder(RUN);
  if (resume) {
    kept = await store.get().catch(() => null);
    if (!kept) throw new Error("there is no run to go on with");
    engine.putFiles(kept.files);
    ({ settings: how, text, curve, step } = kept);
    postMessage({ id, event: { event: "resumed", step, steps: how.steps, curve } });
  }
  engine.fs.writeFile(DATA, text);
  const tell = tellTo(id);
  for (let more = resume; ; more = true) {
    const until = performance.now() + 1500;
    let go = true;
    const result = engine.train({ ...how, data: [DATA], out: RUN, resume: more }, e => {
      if (e.event === "step") return performance.now() < until;
      if (e.event === "log") curve.push([e.step, e.train_loss, null]);
      if (e.event === "eval") curve.push([e.step, null, e.val_loss]);
      if (e.event !== "prepare" && e.event !== "save") go = tell(e) && go;
      return go && performance.now() < until;
    });
    step = result.step;
    const run = { settings: how, text, curve, step, steps: result.steps, done: result.end !== "stopped", files: engine.filesOf(RUN), date: Date.now() };
    await store.put(run).catch(e => { if (saved) postMessage({ id, event: { event: "note", text: "The browser stores nothing (" + e.message + "): this run is lost when the tab is closed." } }); saved = false; });
    postMessage({ id, event: { event: "saved", step, steps: result.steps } });
    await turn();
    if (result.end !== "stopped" || !go || stopped.has(id)) return { ...result, curve };
  }
}

// ---- Calls ----

const calls = {
  async load(id, { stop }) {
    flag = stop ?? null;
    engine ??= await Engine.load();
    return { version: engine.version };
  },
  async open(id, { file, url, settings }) {
    if (url) {
      const r = await fetch(new URL(url, import.meta.url));
      if (!r.ok) throw new Error(`${url} cannot be loaded: ${r.status}`);
      file = await r.blob();
    }
    const model = engine.openModel(sourceOf(file, id), settings), n = nextModel++;
    models.set(n, model);
    return { model: n, info: model.info };
  },
  openTrained() {
    const model = engine.openFolder(RUN), n = nextModel++;
    models.set(n, model);
    return { model: n, info: model.info };
  },
  close(id, { model }) { modelOf(model).close(); models.delete(model); },
  tokenize(id, { model, text, flags }) { return modelOf(model).tokenize(text, flags); },
  async generate(id, { model, how }) {
    const m = modelOf(model);
    m.begin(how, tellTo(id));
    // What was written in a turn goes in one message: a quick model must not flood the page.
    let text = "", tokens = 0;
    const send = () => {
      if (tokens) postMessage({ id, event: { text, tokens } });
      text = "";
      tokens = 0;
    };
    for (let since = 0; ;) {
      const piece = m.next();
      if (!piece) break;
      text += piece.text;
      tokens += piece.token >= 0;
      if (piece.end) { tokens ||= text.length; break; }
      if (performance.now() - since < 30) continue;
      send();
      await turn();
      if (stopped.has(id)) return { ...m.figures(), end: "stopped" };
      since = performance.now();
    }
    send();
    return m.figures();
  },
  compress(id, { file, settings }) {
    vectors?.close();
    vectors = null;
    const opened = engine.openVectors(sourceOf(file, id), file.name ?? "vectors.npy");
    try { opened.compress("/index.kmx", settings ?? {}, tellTo(id)); } catch (e) { opened.close(); throw e; }
    vectors = opened;
    return vectors.info;
  },
  search(id, { query, k, exact }) {
    if (!vectors) throw new Error("no vectors are open");
    const since = performance.now(), found = vectors.search(query, k, exact);
    return { found, seconds: (performance.now() - since) / 1000 };
  },
  index() { return engine.fs.readFile("/index.kmx"); },
  train,
  async run() {
    const run = await store.get().catch(() => null);
    return run && { step: run.step, steps: run.steps, done: run.done, date: run.date, curve: run.curve };
  },
  forget: () => store.remove(),
};

onmessage = async ({ data }) => {
  const { id, call } = data;
  if (call === "stop") { stopped.add(data.job); return; }
  try {
    postMessage({ id, value: await calls[call](id, data) });
  } catch (e) {
    postMessage({ id, error: e.message || String(e), fatal: !!e.fatal || e instanceof WebAssembly.RuntimeError });
  } finally { stopped.delete(id); }
};
