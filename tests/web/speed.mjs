// Decode speed of a model under Node, as JSON. Arguments: the folder of the built page, a GGUF file, tokens.
import { closeSync, openSync, readFileSync, readSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

globalThis.require ??= createRequire(import.meta.url);
globalThis.__dirname ??= ".";
const [folder, gguf, tokens] = process.argv.slice(2);
const { Engine } = await import(pathToFileURL(`${folder}/engine.js`));
const engine = await Engine.load({ wasmBinary: readFileSync(`${folder}/kermes-wasm.wasm`) });
const fd = openSync(gguf);
const read = (offset, n) => { const b = new Uint8Array(n); return b.subarray(0, readSync(fd, b, 0, n, offset)); };
const model = engine.openModel({ size: statSync(gguf).size, read }, { context: 1024 });
closeSync(fd);
const run = n => { model.begin({ prompt: "The history of the sea begins with", temperature: 0, max_tokens: n, past_end: true }); while (model.next()); return model.figures(); };
run(8); // the engine of the browser compiles again what runs often
const f = run(+tokens || 64);
console.log(JSON.stringify({ tokens_per_s: f.tokens / f.seconds, prompt_tokens_per_s: f.prompt_tokens / f.prompt_seconds, tokens: f.tokens, memory: engine.memory }));
process.exit(0);
