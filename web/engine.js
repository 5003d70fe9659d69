// The engine on one thread: calls into the WebAssembly module, and what it calls back. It knows no page and
// no messages, so a Web Worker (worker.js) and Node use it alike. Every failure is thrown as an Error whose
// message is the library's.
import createModule from "./kermes-wasm.js";

export class Engine {
  #m; #files = new Map(); #next = 1; #tell = null;

  // options.wasmBinary: the module's bytes, where they cannot be fetched (Node).
  static async load(options = {}) {
    const engine = new Engine();
    engine.#m = await createModule({
      ...options, print: () => {}, printErr: () => {},
      kermes: { read: (...a) => engine.#read(...a), tell: text => engine.#tell?.(JSON.parse(text)) === false ? 0 : 1 },
    });
    return engine;
  }

  get version() { return this.#m.UTF8ToString(this.#m._web_version()); }
  get memory() { return this.#m.HEAPU8.length; }
  get fs() { return this.#m.FS; }

  // ---- Texts, files and errors ----

  // Pieces of a file, straight into the module's memory: the only copy of it that stays.
  #read(handle, offset, to, n) {
    try {
      const bytes = this.#files.get(handle).read(offset, n);
      if (bytes.length !== n) return 1;
      this.#m.HEAPU8.set(bytes, to);
      this.#files.get(handle).progress?.(offset + n);
      return 0;
    } catch { return 1; }
  }

  // fn(pointer of text): the text is freed afterwards.
  #with(texts, fn) {
    const at = [];
    try {
      for (const text of texts) {
        const room = this.#m.lengthBytesUTF8(text) + 1, p = this.#m._web_alloc(room) >>> 0;
        if (!p) throw new Error("there is not enough memory");
        this.#m.stringToUTF8(text, p, room);
        at.push(p);
      }
      this.#m._web_clear_error();
      return fn(...at);
    } catch (e) {
      // A module that ran out of its stack or met an impossible instruction cannot go on.
      if (e instanceof WebAssembly.RuntimeError) throw Object.assign(new Error("the engine stopped: " + e.message), { fatal: true });
      throw e;
    } finally { for (const p of at) this.#m._web_free(p); }
  }

  #fail() { // files that JavaScript reads have names of the library's own, which nobody knows
    const why = this.#m.UTF8ToString(this.#m._web_error() >>> 0).replace(/'?\(lent \d+\)\.gguf'?/g, "the file");
    throw new Error(why || "it failed");
  }
  #must(value) { return value || this.#fail(); }
  #json(p) {
    this.#must(p);
    const text = this.#m.UTF8ToString(p >>> 0);
    this.#m._web_free(p);
    return JSON.parse(text);
  }

  // source: { size, read(offset, n) -> Uint8Array }, read while fn runs.
  #reading(source, fn) {
    const handle = this.#next++;
    this.#files.set(handle, source);
    try { return fn(handle); } finally { this.#files.delete(handle); }
  }

  #telling(tell, fn) {
    this.#tell = tell;
    try { return fn(); } finally { this.#tell = null; }
  }

  // ---- Models ----

  openModel(source, settings = {}) {
    if (source.size < 24) throw new Error("this is no model: the file is too short");
    if (source.size > 2 ** 31 - 2 ** 26) throw new Error(`this file of ${(source.size / 2 ** 30).toFixed(1)} GiB is too large: a model in the browser may have up to 2 GiB`);
    const magic = source.read(0, 4);
    if (String.fromCharCode(...magic) !== "GGUF") throw new Error("this is no model: GGUF files begin with the letters GGUF");
    return new Model(this, this.#reading(source, handle => this.#with([JSON.stringify(settings)], s => this.#must(this.#m._web_model_open(handle, source.size, s)))));
  }
  openFolder(path) { return new Model(this, this.#with([path], p => this.#must(this.#m._web_model_open_folder(p)))); }

  describe(model) { return this.#json(this.#m._web_model_describe(model)); }
  tokenize(model, text, flags = 0) { return this.#with([text], t => this.#json(this.#m._web_tokenize(model, t, flags))); }
  newSession(model) { return this.#must(this.#m._web_session_new(model)); }
  begin(model, session, how, tell) {
    this.#telling(tell, () => this.#with([JSON.stringify(how)], s => { if (this.#m._web_generate(model, session, s) !== 0) this.#fail(); }));
  }
  // { token, text, end }, or null after the end.
  next(session) {
    return this.#with([], () => {
      const n = this.#m._web_next(session);
      if (n < 0) this.#fail();
      if (n === 0) return null;
      return { token: this.#m._web_event_token(), text: this.#m.UTF8ToString(this.#m._web_event_text() >>> 0), end: this.#m.UTF8ToString(this.#m._web_event_end() >>> 0) };
    });
  }
  figures(session) { return this.#json(this.#m._web_figures(session)); }
  freeSession(session) { this.#m._web_session_free(session); }
  closeModel(model) { this.#m._web_model_close(model); }

  // ---- Vectors ----

  openVectors(source, name) {
    return new Vectors(this, this.#reading(source, handle => this.#with([name], p => this.#must(this.#m._web_vectors_open(handle, source.size, p)))));
  }
  compress(vectors, path, settings, tell) {
    this.#telling(tell, () => this.#with([path, JSON.stringify(settings)], (p, s) => { if (this.#m._web_vectors_compress(vectors, p, s) !== 0) this.#fail(); }));
  }
  describeVectors(vectors) { return this.#json(this.#m._web_vectors_describe(vectors)); }
  // query: a row's number or an array of numbers.
  search(vectors, query, k, exact = false) {
    return this.#with([], () => {
      const dim = this.describeVectors(vectors).dim;
      let p;
      if (typeof query === "number") p = this.#must(this.#m._web_vectors_row(vectors, query)) >>> 0;
      else {
        if (query.length !== dim) throw new Error(`a query has ${dim} numbers here, not ${query.length}`);
        p = this.#must(this.#m._web_alloc(4 * dim)) >>> 0;
        this.#m.HEAPF32.set(query, p / 4);
      }
      try { return this.#json(this.#m._web_vectors_search(vectors, p, k, exact ? 1 : 0)); } finally { this.#m._web_free(p); }
    });
  }
  closeVectors(vectors) { this.#m._web_vectors_close(vectors); }

  // ---- Training ----

  // One slice: tell(event) returns false to save a checkpoint and stop.
  train(settings, tell) { return this.#telling(tell, () => this.#with([JSON.stringify(settings)], s => this.#json(this.#m._web_train(s)))); }

  // All files below a folder, as [[path, Uint8Array]]; and back.
  filesOf(folder) {
    const out = [], walk = path => {
      for (const name of this.fs.readdir(path)) {
        if (name === "." || name === "..") continue;
        const at = `${path}/${name}`;
        if (this.fs.isDir(this.fs.stat(at).mode)) walk(at); else out.push([at, this.fs.readFile(at)]);
      }
    };
    walk(folder);
    return out;
  }
  putFiles(files) {
    for (const [path, bytes] of files) {
      this.makeFolder(path.slice(0, path.lastIndexOf("/")));
      this.fs.writeFile(path, bytes);
    }
  }
  makeFolder(path) {
    let at = "";
    for (const part of path.split("/").filter(Boolean)) {
      at += "/" + part;
      if (!this.fs.analyzePath(at).exists) this.fs.mkdir(at);
    }
  }
  removeFolder(path) {
    if (!this.fs.analyzePath(path).exists) return;
    for (const name of this.fs.readdir(path)) {
      if (name === "." || name === "..") continue;
      const at = `${path}/${name}`;
      if (this.fs.isDir(this.fs.stat(at).mode)) this.removeFolder(at); else this.fs.unlink(at);
    }
    this.fs.rmdir(path);
  }
}

export class Model {
  #engine; #model; #session = 0;
  constructor(engine, model) { this.#engine = engine; this.#model = model; }
  get info() { return this.#engine.describe(this.#model); }
  tokenize(text, flags) { return this.#engine.tokenize(this.#model, text, flags); }
  // Reads the prompt; then next() until it gives null. What a conversation shares with the last one is not
  // read again.
  begin(how, tell) {
    this.#session ||= this.#engine.newSession(this.#model);
    this.#engine.begin(this.#model, this.#session, how, tell);
  }
  next() { return this.#engine.next(this.#session); }
  figures() { return this.#engine.figures(this.#session); }
  close() {
    if (this.#session) this.#engine.freeSession(this.#session);
    this.#engine.closeModel(this.#model);
    this.#session = this.#model = 0;
  }
}

export class Vectors {
  #engine; #vectors;
  constructor(engine, vectors) { this.#engine = engine; this.#vectors = vectors; }
  get info() { return this.#engine.describeVectors(this.#vectors); }
  compress(path, settings, tell) { this.#engine.compress(this.#vectors, path, settings, tell); return this.info; }
  search(query, k, exact) { return this.#engine.search(this.#vectors, query, k, exact); }
  close() { this.#engine.closeVectors(this.#vectors); this.#vectors = 0; }
}
