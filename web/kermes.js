// Kermes for web pages: everything happens in a Web Worker, so the page never freezes. Types and what each
// call does are in kermes.d.ts.
//
//   import { Kermes } from "./kermes.js";
//   const kermes = await Kermes.start();
//   const model = await kermes.open(file);
//   for await (const text of model.chat([{ role: "user", content: "What is the sea?" }])) show(text);

class Job {
  #start; #stop; #result;
  constructor(start, stop) {
    this.#start = start;
    this.#stop = stop;
    this.result = new Promise((done, fail) => { this.#result = { done, fail }; });
    this.result.catch(() => {});
  }
  stop() { this.#stop(); }
  async *[Symbol.asyncIterator]() {
    const waiting = [];
    let wake = null, ended = false;
    const result = this.#start(event => { waiting.push(event); wake?.(); });
    result.then(this.#result.done, this.#result.fail);
    result.catch(() => {}).then(() => { ended = true; wake?.(); });
    try {
      for (;;) {
        while (waiting.length) yield waiting.shift();
        if (ended) break;
        await new Promise(done => { wake = done; });
      }
    } finally { if (!ended) this.stop(); }
    await result;
  }
}

export class Kermes {
  #worker = null; #waiting = new Map(); #next = 1; #flag = null; #url;

  static async start(options = {}) {
    const kermes = new Kermes();
    kermes.#url = options.worker ?? new URL("./worker.js", import.meta.url);
    await kermes.#load();
    return kermes;
  }

  async #load() {
    this.#worker = new Worker(this.#url, { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#heard(data);
    this.#worker.onerror = e => this.#lost(e.message || "the engine could not be loaded");
    // Where the page is isolated, a stop is seen in the middle of a long prompt, too.
    this.#flag = globalThis.crossOriginIsolated ? new Int32Array(new SharedArrayBuffer(4)) : null;
    this.version = (await this.#ask("load", { stop: this.#flag })).version;
  }

  #heard({ id, event, value, error, fatal }) {
    const w = this.#waiting.get(id);
    if (!w) return;
    if (event) { w.event?.(event); return; }
    this.#waiting.delete(id);
    if (error === undefined) w.done(value); else w.fail(new Error(error));
    if (fatal) this.#lost("the engine stopped and was started again");
  }

  // A module that failed inside cannot go on: another takes its place, without models.
  #lost(why) {
    this.#worker?.terminate();
    this.#worker = null;
    const all = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const w of all) w.fail(new Error(why));
  }

  #ask(call, args = {}, event, started) {
    const id = this.#next++;
    started?.(id);
    return new Promise((done, fail) => {
      this.#waiting.set(id, { done, fail, event });
      this.#worker.postMessage({ id, call, ...args });
    });
  }

  async #awake() { if (!this.#worker) await this.#load(); }

  #job(call, args, map = e => e) {
    let id = 0;
    return new Job(async tell => {
      await this.#awake();
      return this.#ask(call, args, e => { const v = map(e); if (v !== undefined) tell(v); }, n => { id = n; });
    }, () => {
      if (this.#flag) Atomics.store(this.#flag, 0, id);
      this.#worker?.postMessage({ call: "stop", job: id });
    });
  }

  async open(file, options = {}) {
    await this.#awake();
    const { onProgress, ...settings } = options;
    const from = typeof file === "string" || file instanceof URL ? { url: String(file) } : { file };
    return this.#model(await this.#ask("open", { ...from, settings }, onProgress));
  }

  #model({ model, info }) {
    const generate = how => this.#job("generate", { model, how }, e => e.text || undefined);
    return {
      info,
      chat: (messages, settings = {}) => generate({ ...settings, messages }),
      complete: (prompt, settings = {}) => generate({ ...settings, prompt }),
      tokenize: (text, flags = 0) => this.#ask("tokenize", { model, text, flags }),
      close: () => this.#ask("close", { model }),
    };
  }

  async compress(file, options = {}) {
    await this.#awake();
    const { onProgress, ...settings } = options;
    const info = await this.#ask("compress", { file, settings }, onProgress);
    return {
      info,
      search: (query, k = 10, exact = false) => this.#ask("search", { query, k, exact }),
      file: async () => new Blob([await this.#ask("index")], { type: "application/octet-stream" }),
    };
  }

  train(text, settings) { return this.#job("train", { text, settings, resume: false }); }
  resume() { return this.#job("train", { resume: true }); }
  async storedRun() { await this.#awake(); return this.#ask("run"); }
  async forgetRun() { await this.#awake(); return this.#ask("forget"); }
  async openTrained() { return this.#model(await this.#ask("openTrained")); }

  // Ends what is under way, whatever it is, and starts afresh: models are gone.
  restart() { this.#lost("it was stopped"); return this.#load(); }
  close() { this.#lost("the engine was closed"); }
}
