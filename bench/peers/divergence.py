#!/usr/bin/env python3
"""How far an engine's arithmetic takes it from the model in the file: the same weights on the `ref`
device, whose activations are exact, and on others and in llama.cpp, for every type of blocks. Of each
the mean Kullback-Leibler divergence, the share of places where the likeliest token is another, and the
perplexity; with the text read at once, as a prompt, and token by token, as when a model writes.
Prints JSON.

Usage: bench/peers/divergence.py -m MODEL.gguf --text FILE [--tokens N] [--types q4_0,q4_k_m]
           [--devices cpu,cuda] [--activations 16,8] [--ways prompt,decode] [--no-peer]
           [--reference f32|ref] [--keep FOLDER] [--kermes FILE] [--threads N] [--prefix WORDS]
           [--out FILE]

`--types file` takes the model as it is. `ref` takes minutes where others take seconds, so the same is
asked of a copy of the file in f32, whose products round nothing but sums in f32, and only
--check of its places are asked of `ref` itself (the divergence of the copy from it is in the result;
0: none). --reference ref asks it for all. What was said is kept in --keep and found there again.
Devices that are not here are left out.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BLOCKS_OF_32 = "q8_0,q5_1,q5_0,q4_1,q4_0,iq4_nl,mxfp4"
BLOCKS_OF_256 = "q6_k,q5_k_m,q5_k_s,q4_k_m,q4_k_s,q3_k_l,q3_k_m,q3_k_s,q2_k,iq4_xs"


def call(o, *words):
    return json.loads(subprocess.run([*o.prefix.split(), *words], check=True,
                                     stdout=subprocess.PIPE).stdout)


def processor():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else "unknown"


def device_is_here(o, device):
    said = subprocess.run([o.kermes, "devices"], stdout=subprocess.PIPE, text=True).stdout
    return device == "cpu" or any(line.split()[:1] == [device] or
                                  line.split()[:1] == [device + ":0"] for line in said.splitlines())


def engines(o):
    """(name, words of the line) of everything that is compared with ref."""
    got = []
    for device in o.devices.split(","):
        if not device_is_here(o, device):
            print("divergence.py: no %s here" % device, file=sys.stderr)
            continue
        for bits in o.activations.split(","):
            got.append(("%s %s" % (device, bits), [o.kermes, "perplexity", "--device", device, "--json",
                                                   "--quiet", "--activations", bits]))
    if not o.no_peer:
        got.append(("llama.cpp", [sys.executable, os.path.join(HERE, "llama.py"), "perplexity"]))
    return got


def how_of(o, file, tokens):
    return ["-m", file, "--file", o.text, "--context", str(tokens + 1), "--pieces", "1",
            "--threads", str(o.threads)]


def by_ref(o, file, tokens, saved):
    if not os.path.exists(saved):
        call(o, o.kermes, "perplexity", "--device", "ref", "--json", "--quiet",
             *how_of(o, file, tokens), "--save-logits", saved)


def by_f32(o, file, saved, folder):
    """The same file in f32 on the CPU; returns its divergence from ref at the first places."""
    plain, short, check = os.path.join(folder, "f32.gguf"), saved + ".short", None
    ours = [o.kermes, "perplexity", "--device", "cpu", "--json", "--quiet"]
    if not os.path.exists(saved) or (o.check and not os.path.exists(short)):
        call(o, o.kermes, "convert", file, plain, "--type", "f32", "--force", "--json", "--quiet",
             "--threads", str(o.threads))
        if o.check:
            by_ref(o, file, o.check, short)
            got = call(o, *ours, *how_of(o, plain, o.check), "--against", short)
            check = {"tokens": o.check, "divergence": float("%.3g" % got["divergence"]["mean"]),
                     "most": float("%.3g" % got["divergence"]["max"])}
        call(o, *ours, *how_of(o, plain, o.tokens), "--save-logits", saved)
        os.remove(plain)
    return check


def measure(o, name, file, saved, folder):
    how = how_of(o, file, o.tokens)
    check = by_f32(o, file, saved, folder) if o.reference == "f32" else by_ref(
        o, file, o.tokens, saved)
    row = {"type": name, "bytes": os.path.getsize(file), "engines": []}
    if check:
        row["reference_from_ref"] = check
    for engine, words in engines(o):
        for way in o.ways.split(","):
            got = call(o, *words, *how, "--against", saved,
                       *(["--decode"] if way == "decode" else []))
            d = got["divergence"]
            row["tokens"] = got["tokens"]
            row["ref_perplexity"] = round(got["perplexity"] / d["perplexity_ratio"], 4)
            one = {"engine": engine, "way": way, "divergence": float("%.4g" % d["mean"]),
                   "standard_error": float("%.3g" % d["standard_error"]),
                   "first_differs": round(1 - d["same_top"], 4),
                   "perplexity_ratio": round(d["perplexity_ratio"], 6)}
            row["engines"].append(one)
            print("%-8s %-10s %-6s divergence %.3g +- %.1g, first token differs %.2f%%, "
                  "perplexity %+.3f%%" % (name, engine, way, one["divergence"], one["standard_error"],
                                          100 * one["first_differs"],
                                          100 * (one["perplexity_ratio"] - 1)),
                  file=sys.stderr, flush=True)
            if engine == "llama.cpp":
                row["llama.cpp"] = got.get("version")
    return row


def merged(old, new):
    """What was measured now in the place of what was before, type by type and engine by engine."""
    if not old or any(old.get(key) != new[key] for key in ("model", "text", "tokens", "reference")):
        return new
    rows = {row["type"]: row for row in old["types"]}
    for row in new["types"]:
        before = rows.get(row["type"])
        if before:
            known = {(e["engine"], e["way"]): e for e in before["engines"]}
            known.update({(e["engine"], e["way"]): e for e in row["engines"]})
            row = {**before, **row, "engines": [known[key] for key in sorted(known)]}
        rows[row["type"]] = row
    return {**old, **new, "types": list(rows.values())}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--name", help="what the results call the model")
    a.add_argument("--text", required=True)
    a.add_argument("--tokens", type=int, default=381, help="places where the next one is predicted")
    a.add_argument("--types", default=BLOCKS_OF_32,
                   help="a list, or 32 or 256 for all types of such blocks, or file")
    a.add_argument("--devices", default="cpu,cuda")
    a.add_argument("--activations", default="16,8")
    a.add_argument("--ways", default="prompt,decode")
    a.add_argument("--no-peer", action="store_true")
    a.add_argument("--reference", choices=["f32", "ref"], default="f32")
    a.add_argument("--check", type=int, default=16, help="places that are asked of ref with f32")
    a.add_argument("--keep", help="folder for converted files and what ref said of them")
    a.add_argument("--kermes", default=os.path.join(ROOT, "build/release/kermes"))
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--prefix", default="", help="in front of every command")
    a.add_argument("--out", help="a result of the same model there is added to")
    o = a.parse_args()
    types = {"32": BLOCKS_OF_32, "256": BLOCKS_OF_256}.get(o.types, o.types).split(",")
    version = subprocess.run([o.kermes, "--version"], stdout=subprocess.PIPE, text=True).stdout.split()
    result = {"kermes": version[-1] if version else None, "processor": processor(),
              "threads": o.threads, "model": o.name or os.path.basename(o.model),
              "text": os.path.basename(o.text), "tokens": o.tokens, "reference": o.reference,
              "types": []}
    old = None
    if o.out and os.path.exists(o.out):
        with open(o.out) as f:
            old = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        folder = o.keep or folder
        os.makedirs(folder, exist_ok=True)
        for name in types:
            file = os.path.join(folder, name + ".gguf") if name != "file" else o.model
            if not os.path.exists(file):
                call(o, o.kermes, "convert", o.model, file, "--type", name, "--json", "--quiet",
                     "--threads", str(o.threads))
            row = measure(o, name, file, os.path.join(folder, name + ".logits"), folder)
            if row.get("llama.cpp"):
                result["llama-cpp-python"] = row["llama.cpp"]
            row.pop("llama.cpp", None)
            result["types"].append(row)
            if o.out:
                with open(o.out, "w") as f:
                    json.dump(merged(old, result), f, indent=2)
                    f.write("\n")
    print(json.dumps(result, indent=2))


main()
