// The WebAssembly module under Node: the same tokens as the native baseline build, bad files, vectors, and
// training in slices. Arguments: the folder of the built page, the native command, a GGUF file.
import { strict as assert } from "node:assert";
import { execFileSync } from "node:child_process";
import { closeSync, openSync, readFileSync, readSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

globalThis.require ??= createRequire(import.meta.url); // Emscripten's loader asks for it
globalThis.__dirname ??= ".";
const [folder, kermes, gguf] = process.argv.slice(2);
const { Engine } = await import(pathToFileURL(`${folder}/engine.js`));
const wasmBinary = readFileSync(`${folder}/kermes-wasm.wasm`);

const bytesOf = bytes => ({ size: bytes.length, read: (offset, n) => bytes.subarray(offset, offset + n) });
function fileOf(path) {
  const fd = openSync(path), reads = [];
  return {
    size: statSync(path).size, reads, done: () => closeSync(fd),
    read(offset, n) { const b = new Uint8Array(n); reads.push(n); return b.subarray(0, readSync(fd, b, 0, n, offset)); },
  };
}
const native = (...args) => JSON.parse(execFileSync(kermes, [...args, "--json", "--quiet", "--device", "cpu", "--threads", "1"], { env: { ...process.env, KERMES_ISA: "base" }, encoding: "utf8" }));

const tests = {
  async "a model is read in pieces, once, and described"(engine) {
    const file = fileOf(gguf), model = engine.openModel(file);
    assert(Math.max(...file.reads) <= 8 << 20);
    assert.equal(file.reads.slice(1).reduce((a, b) => a + b), file.size); // beside the look at its first letters
    assert(model.info.parameters > 1e5 && model.info.layers > 0);
    model.close();
    file.done();
  },

  async "tokens are those of the native baseline build"(engine) {
    const model = engine.openModel(fileOf(gguf));
    for (const [prompt, more] of [["The sea is", {}], ["1, 2, 3,", {}], ["Once upon a time", { temperature: 0.8, seed: 7 }], ["é ü 漢字 🙂", {}]]) {
      const how = { temperature: 0, seed: 1, max_tokens: 48, past_end: true, ...more };
      let text = "", tokens = 0;
      model.begin({ prompt, ...how });
      for (let e; (e = model.next());) { text += e.text; tokens += e.token >= 0; }
      const want = native("run", "-m", gguf, "-p", prompt, "-n", "48", "--past-end", "--allow-loops", "--temperature", how.temperature, "--seed", how.seed);
      assert.equal(text, want.text);
      assert.equal(tokens, want.tokens);
      assert.equal(model.figures().prompt_tokens, want.prompt_tokens);
    }
    model.close();
  },

  async "a chat goes by the model's template, and what was read is not read again"(engine) {
    const model = engine.openModel(fileOf(gguf)), messages = [{ role: "user", content: "What is the sea?" }];
    let text = "";
    model.begin({ messages, temperature: 0, max_tokens: 24 });
    for (let e; (e = model.next());) text += e.text;
    assert.equal(text, native("run", "-m", gguf, "--chat", "-p", messages[0].content, "-n", "24", "--temperature", "0").text);
    model.begin({ messages: [...messages, { role: "assistant", content: text }, { role: "user", content: "And the sky?" }], temperature: 0, max_tokens: 4 });
    while (model.next());
    assert(model.figures().reused > 0);
    model.close();
  },

  async "a schema holds the text"(engine) {
    const model = engine.openModel(fileOf(gguf));
    let text = "";
    model.begin({ prompt: "A cat: ", schema: { type: "object", properties: { age: { type: "integer" } }, required: ["age"], additionalProperties: false }, temperature: 0, max_tokens: 60 });
    for (let e; (e = model.next());) text += e.text;
    assert.equal(typeof JSON.parse(text).age, "number");
    model.close();
  },

  async "what is no model is refused, and the engine goes on"(engine) {
    const good = readFileSync(gguf), cut = good.subarray(0, good.length >> 1), wild = Uint8Array.from(good);
    for (let i = 24; i < 4096; i += 7) wild[i] = 255;
    assert.throws(() => engine.openModel(bytesOf(new Uint8Array(0))), /no model/);
    assert.throws(() => engine.openModel(bytesOf(new TextEncoder().encode("Hello, this is a letter and no model at all."))), /no model/);
    assert.throws(() => engine.openModel(bytesOf(cut)), e => /^the file/.test(e.message) && !e.fatal);
    assert.throws(() => engine.openModel(bytesOf(wild)), e => e.message.length > 10 && !e.fatal);
    assert.throws(() => engine.openModel({ size: 3 * 2 ** 30, read: () => new Uint8Array(4) }), /too large/);
    assert.throws(() => engine.openModel({ size: good.length, read(o, n) { if (n > 4) throw new Error("gone"); return good.subarray(o, o + n); } }), /reader failed/);
    const model = engine.openModel(bytesOf(good));
    assert.throws(() => model.begin({ messages: "none" }), e => e.message.length > 5);
    assert.throws(() => model.begin({ prompt: "x", grammar: "root ::= (" }), e => e.message.length > 5);
    model.begin({ prompt: "The", max_tokens: 2 });
    assert(model.next());
    model.close();
  },

  async "vectors are compressed, and neighbours found"(engine) {
    const n = 2000, dim = 24, head = `{'descr': '<f4', 'fortran_order': False, 'shape': (${n}, ${dim}), }`.padEnd(117) + "\n";
    const file = new Uint8Array(128 + 4 * n * dim), x = new Float32Array(file.buffer, 128);
    file.set([0x93, 78, 85, 77, 80, 89, 1, 0, 118, 0]);
    file.set(new TextEncoder().encode(head), 10);
    let s = 1;
    for (let i = 0; i < x.length; i++) x[i] = (s = (Math.imul(s, 1664525) + 1013904223) >>> 0) / 2 ** 32;
    const vectors = engine.openVectors(bytesOf(file), "made.npy"), stages = new Set();
    const info = vectors.compress("/index.kmx", { bytes: 16 }, e => { stages.add(e.stage); });
    assert.deepEqual([info.count, info.dim, info.type], [n, dim, "f32"]);
    assert(info.bytes < info.input_bytes && stages.size > 0);
    let hits = 0;
    for (let i = 0; i < 20; i++) {
      const exact = vectors.search(i * 97, 10, true), found = vectors.search(Array.from(x.subarray(i * 97 * dim, (i * 97 + 1) * dim)), 10);
      assert.equal(exact[0].id, i * 97);
      hits += found.filter(f => exact.some(e => e.id === f.id)).length;
    }
    assert(hits > 100, `${hits} of 200`);
    assert.throws(() => vectors.search([1, 2], 3), /24 numbers/);
    assert.throws(() => vectors.search(n + 5, 3), e => e.message.length > 5);
    vectors.close();
    assert.throws(() => engine.openVectors(bytesOf(file.subarray(0, 1000)), "cut.npy"), /cut.npy/);
    assert.throws(() => engine.openVectors(bytesOf(new Uint8Array(64)), "zeros.npy"), /zeros.npy/);
    x[5] = NaN;
    const bad = engine.openVectors(bytesOf(file), "nan.npy");
    assert.throws(() => bad.compress("/bad.kmx", {}), /NaN|infinity|finite/);
    bad.close();
  },

  async "training stopped and resumed has the bits of a run that was not"(engine) {
    const text = "the sea is wide and the sea is deep. the ship goes out while the houses sleep.\n".repeat(30);
    const settings = { tokenizer: "char", model: "tiny", layers: 1, heads: 2, dim: 32, context: 32, batch: 4, steps: 40, warmup: 4, eval_every: 20, eval_batches: 2, log_every: 5, save_every: 0, keep: 1, data: ["/data.txt"] };
    engine.fs.writeFile("/data.txt", text);
    const losses = [];
    const whole = engine.train({ ...settings, out: "/whole" }, e => { if (e.event === "log") losses.push(e.train_loss); });
    assert.equal(whole.end, "done");
    assert(losses.at(-1) < 0.8 * losses[0], losses.join(" "));
    let slices = 0;
    for (let end = ""; end !== "done" && slices < 20; slices++) {
      let steps = 0;
      end = engine.train({ ...settings, out: "/parts", resume: slices > 0 }, e => e.event !== "step" || ++steps < 12).end;
      if (slices === 1) { // as a closed tab has it: all of the run in somebody else's storage, and back
        const kept = engine.filesOf("/parts");
        engine.removeFolder("/parts");
        engine.putFiles(kept);
      }
    }
    assert(slices > 2);
    const weights = folder => engine.filesOf(folder + "/model").find(([p]) => p.endsWith(".safetensors"))[1];
    assert.deepEqual(weights("/parts"), weights("/whole"));
    const model = engine.openFolder("/parts");
    model.begin({ prompt: "the", max_tokens: 20, temperature: 0 });
    let said = "";
    for (let e; (e = model.next());) said += e.text;
    assert(said.length >= 10);
    model.close();
    assert.throws(() => engine.train({ ...settings, out: "/none", resume: true }), e => e.message.length > 5);
    assert.throws(() => engine.train({ ...settings, out: "/odd", steps: "many" }), e => e.message.length > 5);
  },
};

const engine = await Engine.load({ wasmBinary });
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  const since = performance.now();
  try { await test(engine); console.log(`ok    ${name} (${Math.round(performance.now() - since)} ms)`); }
  catch (e) { failed++; console.log(`FAIL  ${name}: ${e.stack}`); }
}
process.exit(failed ? 1 : 0);
