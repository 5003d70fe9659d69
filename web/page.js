// The page: three tabs over one engine. Text of users and models is only ever set as text.
import { Kermes } from "./kermes.js";

const $ = id => document.getElementById(id);
const el = (tag, props = {}, ...kids) => { const e = Object.assign(document.createElement(tag), props); e.append(...kids); return e; };
const number = id => $(id).value.trim() === "" || !Number.isFinite(+$(id).value) ? undefined : +$(id).value;
const bytes = n => n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(2)} GB`;
const defined = o => Object.fromEntries(Object.entries(o).filter(([, v]) => v !== undefined));
const tell = (where, text) => where.append(el("div", { className: "error", role: "alert", textContent: text }));

let kermes = null, model = null, job = null, index = null;

// ---- Tabs ----

const tabs = [...document.querySelectorAll("[role=tab]")];
function show(tab) {
  for (const t of tabs) {
    t.setAttribute("aria-selected", t === tab);
    t.tabIndex = t === tab ? 0 : -1;
    $(t.getAttribute("aria-controls")).hidden = t !== tab;
  }
}
for (const t of tabs) {
  t.onclick = () => show(t);
  t.onkeydown = e => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    const to = tabs[(tabs.indexOf(t) + by + tabs.length) % tabs.length];
    show(to);
    to.focus();
  };
}

// ---- Chat ----

let messages = [];

function ready() {
  $("send").disabled = !model && !job;
  $("send").textContent = job ? "Stop" : "Send";
}

async function open(file, name) {
  $("model").textContent = `Opening ${name}…`;
  $("pick").disabled = $("tiny").disabled = $("send").disabled = true;
  try {
    const old = model;
    model = null;
    await old?.close().catch(() => {});
    model = await kermes.open(file, { context: number("s-context"), onProgress: p => { $("model").textContent = `Reading ${name}: ${Math.round(100 * p.done / p.total)}%`; } });
    const i = model.info;
    $("model").textContent = `${i.name}: ${(i.parameters / 1e6).toFixed(1)} million parameters, ${i.type}, ${bytes(i.bytes)}, context ${i.context}`;
    for (const k of ["temperature", "top_k", "top_p", "min_p", "repeat_penalty"]) $("s-" + k).placeholder = +(+i.sampling[k]).toFixed(3);
    clearChat();
  } catch (e) {
    $("model").textContent = "No model";
    tell($("log"), `${name}: ${e.message}`);
  }
  $("pick").disabled = $("tiny").disabled = false;
  ready();
}

function clearChat() {
  messages = [];
  $("log").replaceChildren();
}

function sampling() {
  const s = {};
  for (const k of ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"]) s[k] = number("s-" + k);
  s.seed ??= Math.floor(Math.random() * 2 ** 31);
  s.past_end = $("s-past_end").value === "1";
  return defined(s);
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  $("log").append(el("div", { className: "message user", textContent: text }));
  const answer = el("div", { className: "message assistant busy" }), said = document.createTextNode("");
  answer.append(said);
  $("log").append(answer);
  const system = $("s-system").value.trim(), all = system ? [{ role: "system", content: system }, ...messages] : messages;
  const end = () => $("log").scrollTo(0, $("log").scrollHeight);
  end();
  job = model.chat(all, sampling());
  ready();
  const since = performance.now();
  try {
    for await (const piece of job) {
      const follow = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 40;
      said.appendData(piece);
      $("figures").textContent = `${said.length} letters in ${((performance.now() - since) / 1000).toFixed(1)} s`;
      if (follow) end();
    }
    const f = await job.result;
    $("figures").textContent = `${f.prompt_tokens} tokens read (${f.reused} known already) in ${f.prompt_seconds.toFixed(2)} s; ` +
      `${f.tokens} written, ${(f.tokens / Math.max(f.seconds, 1e-9)).toFixed(1)} a second; ${{ tokens: "as many as asked for", end: "at its end", stop: "at a text to stop at", grammar: "at the grammar's end", context: "the context is full", stopped: "stopped" }[f.end] ?? ""}`;
    $("figures").dataset.end = f.end;
  } catch (e) { tell($("log"), e.message); }
  messages.push({ role: "assistant", content: said.data });
  answer.classList.remove("busy");
  job = null;
  ready();
}

$("ask").onsubmit = e => {
  e.preventDefault();
  if (job) { job.stop(); return; }
  const text = $("input").value.trim();
  if (!text || !model) return;
  $("input").value = "";
  ask(text);
};
$("input").onkeydown = e => { if (e.key === "Enter" && !e.shiftKey && !job) { e.preventDefault(); $("ask").requestSubmit(); } };
$("pick").onclick = () => $("file").click();
$("file").onchange = () => { const f = $("file").files[0]; $("file").value = ""; if (f) open(f, f.name); };
$("tiny").onclick = () => open(new URL("kermes-tiny.gguf", document.baseURI), "the small model");
$("clear").onclick = clearChat;

// ---- Vectors ----

async function compress(file) {
  $("v-found").replaceChildren();
  $("v-info").textContent = "";
  $("v-pick").disabled = $("v-demo").disabled = true;
  $("v-progress").hidden = $("v-stop").hidden = false;
  $("v-search").hidden = true;
  const since = performance.now();
  try {
    index = await kermes.compress(file, defined({
      metric: $("v-metric").value, mode: $("v-mode").value, bytes: number("v-bytes"),
      onProgress: p => { $("v-progress").value = p.total ? p.done / p.total : 0; $("v-stage").textContent = p.stage; },
    }));
    const i = index.info;
    $("v-info").textContent = `${i.count.toLocaleString("en")} vectors of ${i.dim} ${i.type}: ${bytes(i.input_bytes)} became ${bytes(i.bytes)}, ` +
      `${(i.input_bytes / i.bytes).toFixed(1)} times smaller, in ${((performance.now() - since) / 1000).toFixed(1)} s` +
      (i.recall === null ? "" : `; recall@10 ${i.recall.toFixed(3)}`);
    $("v-search").hidden = false;
  } catch (e) { tell($("v-found"), `${file.name}: ${e.message}`); }
  $("v-pick").disabled = $("v-demo").disabled = false;
  $("v-progress").hidden = $("v-stop").hidden = true;
  $("v-stage").textContent = "";
}

// Vectors around a few centres, as an .npy file.
function randomVectors(n, dim) {
  const head = `{'descr': '<f4', 'fortran_order': False, 'shape': (${n}, ${dim}), }`, text = head.padEnd(117) + "\n";
  const file = new Uint8Array(128 + 4 * n * dim), x = new Float32Array(file.buffer, 128);
  file.set([0x93, 78, 85, 77, 80, 89, 1, 0, 118, 0]);
  for (let i = 0; i < text.length; i++) file[10 + i] = text.charCodeAt(i);
  let s = 1;
  const normal = () => { let t = 0; for (let i = 0; i < 4; i++) { s = (Math.imul(s, 1664525) + 1013904223) >>> 0; t += s / 2 ** 32 - 0.5; } return t; };
  const centres = Float32Array.from({ length: 40 * dim }, () => 2 * normal());
  for (let i = 0; i < n; i++) for (let j = 0; j < dim; j++) x[i * dim + j] = centres[(i % 40) * dim + j] + normal();
  return new File([file], "random.npy");
}

$("v-pick").onclick = () => $("v-file").click();
$("v-file").onchange = () => { const f = $("v-file").files[0]; $("v-file").value = ""; if (f) compress(f); };
$("v-demo").onclick = () => compress(randomVectors(5000, 64));
$("v-stop").onclick = async () => { // the engine is in the middle of it: another takes its place
  model = null;
  await kermes.restart();
  open(new URL("kermes-tiny.gguf", document.baseURI), "the small model");
};
$("v-search").onsubmit = async e => {
  e.preventDefault();
  const text = $("v-query").value.trim(), parts = text.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean).map(Number);
  $("v-found").replaceChildren();
  try {
    if (!parts.length || parts.some(x => !Number.isFinite(x))) throw new Error("a query is a row's number, or numbers with commas between them");
    const query = parts.length === 1 && index.info.dim !== 1 ? parts[0] : parts, k = number("v-k") ?? 10;
    const { found, seconds } = await index.search(query, k), { found: exact } = await index.search(query, k, true);
    const right = new Set(exact.map(x => x.id)), rows = found.map((x, i) => el("tr", {}, el("td", { textContent: i + 1 }),
      el("td", { textContent: x.id, className: right.has(x.id) ? "same" : "" }), el("td", { textContent: x.distance.toPrecision(5) }),
      el("td", { textContent: exact[i]?.id ?? "" }), el("td", { textContent: exact[i]?.distance.toPrecision(5) ?? "" })));
    $("v-found").append(el("p", { id: "v-hits", textContent: `${found.filter(x => right.has(x.id)).length} of the ${exact.length} nearest found, in ${(seconds * 1000).toFixed(1)} ms` }),
      el("table", {}, el("tr", {}, ...["", "found", "distance", "exact", "distance"].map(t => el("th", { textContent: t }))), ...rows));
  } catch (err) { tell($("v-found"), err.message); }
};
$("v-save").onclick = async () => {
  const url = URL.createObjectURL(await index.file());
  el("a", { href: url, download: "index.kmx" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

// ---- Training ----

let curve = [];

function draw(steps) {
  const svg = $("t-curve"), ns = "http://www.w3.org/2000/svg";
  const make = (tag, props, text) => { const e = document.createElementNS(ns, tag); for (const k in props) e.setAttribute(k, props[k]); if (text !== undefined) e.textContent = text; return e; };
  const losses = curve.flatMap(([, a, b]) => [a, b]).filter(x => x !== null && x !== undefined);
  svg.removeAttribute("hidden"); // svg elements have no property of that name
  if (!losses.length) return;
  const top = Math.max(...losses), low = Math.min(...losses, top - 0.1), x = s => 46 + 660 * s / Math.max(steps, 1), y = v => 228 - 210 * (v - low) / (top - low);
  const line = i => curve.filter(p => p[i] !== null && p[i] !== undefined).map(p => `${x(p[0]).toFixed(1)},${y(p[i]).toFixed(1)}`).join(" ");
  const kids = [];
  for (let i = 0; i <= 4; i++) {
    const v = low + (top - low) * i / 4;
    kids.push(make("line", { class: "grid", x1: 46, x2: 706, y1: y(v), y2: y(v) }), make("text", { x: 40, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(2)));
  }
  kids.push(make("text", { x: 46, y: 248 }, "0"), make("text", { x: 706, y: 248, "text-anchor": "end" }, `${steps} steps`));
  kids.push(make("polyline", { class: "train", points: line(1) }), make("polyline", { class: "val", points: line(2) }));
  kids.push(make("text", { class: "key train", x: 560, y: 24 }, "training loss"), make("text", { class: "key val", x: 560, y: 42 }, "validation loss"));
  svg.replaceChildren(...kids);
}

async function follow(training) {
  job = training;
  $("t-start").textContent = "Stop";
  $("t-resume").hidden = $("t-write").hidden = true;
  $("t-sample").hidden = true;
  for (const e of $("train").querySelectorAll(".error")) e.remove();
  try {
    for await (const e of job) {
      if (e.event === "resumed") { curve = e.curve; draw(e.steps); }
      if (e.event === "log" || e.event === "eval") {
        curve.push(e.event === "log" ? [e.step, e.train_loss, null] : [e.step, null, e.val_loss]);
        draw(e.steps);
        if (e.event === "log") $("t-state").textContent = `Step ${e.step} of ${e.steps}, loss ${e.train_loss?.toFixed(3) ?? "…"}` + (e.tokens_per_s ? `, ${Math.round(e.tokens_per_s).toLocaleString("en")} characters a second` : "");
      }
      if (e.event === "saved") { $("t-state").dataset.saved = e.step; }
      if (e.event === "sample") { $("t-sample").hidden = false; $("t-sample").textContent = e.text; }
      if (e.event === "note") $("t-state").textContent = e.text;
    }
    const r = await job.result;
    $("t-state").textContent = r.end === "stopped" ? `Stopped at step ${r.step} of ${r.steps}` : `Done: ${r.steps} steps` + (r.val_loss === null ? "" : `, validation loss ${r.val_loss.toFixed(3)}`);
    $("t-write").hidden = false;
  } catch (e) { $("t-state").textContent = ""; tell($("train"), e.message); }
  job = null;
  $("t-start").textContent = "Train";
  await offerRun();
  ready();
}

async function offerRun() {
  const run = await kermes.storedRun().catch(() => null);
  $("t-resume").hidden = !run || run.done;
  if (run && !run.done) $("t-resume").textContent = `Go on with the last run (step ${run.step} of ${run.steps})`;
}

$("t-start").onclick = () => {
  if (job) { job.stop(); return; }
  curve = [];
  $("t-curve").replaceChildren();
  const steps = number("t-steps") ?? 400, dim = number("t-dim") ?? 64;
  follow(kermes.train($("t-text").value, {
    tokenizer: "char", model: "tiny", steps, dim, layers: number("t-layers") ?? 2, heads: Math.max(1, Math.round(dim / 32)),
    context: number("t-context") ?? 64, batch: number("t-batch") ?? 12, warmup: Math.min(20, Math.floor(steps / 10)),
    eval_every: Math.max(10, Math.floor(steps / 20)), eval_batches: 4, log_every: Math.max(1, Math.floor(steps / 100)), save_every: 0, keep: 1,
    sample_every: Math.max(20, Math.floor(steps / 4)), sample_tokens: 120, sample_prompt: "\n",
  }));
};
$("t-resume").onclick = () => follow(kermes.resume());
$("t-file").onchange = async () => { const f = $("t-file").files[0]; if (f) $("t-text").value = await f.slice(0, 4e6).text(); };
$("t-write").onclick = async () => {
  $("t-write").disabled = true;
  try {
    const trained = await kermes.openTrained();
    $("t-sample").hidden = false;
    $("t-sample").textContent = "";
    for await (const piece of trained.complete("\n", { max_tokens: 200, temperature: 0.8, seed: Math.floor(Math.random() * 2 ** 31) })) $("t-sample").textContent += piece;
    await trained.close();
  } catch (e) { tell($("train"), e.message); }
  $("t-write").disabled = false;
};

$("t-text").value = `The sea is wide and the sea is deep.\nThe ship goes out while the houses sleep.\nThe wind is cold and the night is long.\nThe men at the oars are singing a song.\n
The sun comes up and the sea is bright.\nThe birds are flying in the morning light.\nThe ship comes home with the silver fish.\nA boat on the sea is all that I wish.\n
The rain comes down on the roofs of the town.\nThe leaves of the trees are yellow and brown.\nThe fire is warm and the bread is good.\nThe old man walks with a dog in the wood.\n
The snow is white and the stars are near.\nThe bells of the church are all that I hear.\nThe year is old and the year is new.\nThe sea is grey and the sea is blue.\n`;

// ---- Start ----

try {
  kermes = await Kermes.start();
  $("state").textContent = `Kermes ${kermes.version}, WebAssembly, in a worker`;
  for (const id of ["v-pick", "v-demo", "t-start"]) $(id).disabled = false;
  await open(new URL("kermes-tiny.gguf", document.baseURI), "the small model");
  document.documentElement.dataset.ready = Math.round(performance.now());
  offerRun();
} catch (e) {
  $("state").textContent = "";
  tell($("chat"), `The engine did not start: ${e.message}. It needs a browser with WebAssembly SIMD (any since 2023), and to be served over http.`);
}
