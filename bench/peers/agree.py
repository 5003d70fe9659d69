#!/usr/bin/env python3
"""Whether Kermes says what llama.cpp says: the likeliest continuations of the prompts in
prompts.json, and the perplexity of a text. Both compute with rounded numbers, each in its own
order, so where llama.cpp's two best tokens are nearly as good as each other (--margin, in logits)
either may come first, and the texts may part from there on. Prints JSON; exit code 1 when they
part elsewhere, or when the perplexities differ by more than --percent.

Usage: bench/peers/agree.py -m MODEL.gguf [--text FILE [--last BYTES]] [--kermes FILE]
           [--threads N] [--other-build DIR] [--keep FILE] [--out FILE]

--keep FILE holds llama.cpp's side of it: read if it is there, written if not.

llama.cpp runs as llama-cpp-python runs it by default, without flash attention.

Kermes runs with --activations 8 here, as llama.cpp does: what it says by itself is nearer to the model
than to llama.cpp (divergence.py). Inputs of products are then rounded to 8 bits, and a sum that differs in its last bit sooner or later
rounds the other way; from there on the difference is as large as the rounding itself. So llama.cpp
is compared with itself, too: with flash attention, and (--other-build: a folder with its libraries)
compiled for another processor. No two programs that do not add in the same order can be nearer to
each other than that.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def call(line, **more):
    env = {**os.environ, **more}
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True, env=env).stdout)


def peer(o, text):
    """llama.cpp's tokens with their margins, and its perplexity."""
    if o.keep and os.path.exists(o.keep):
        return json.load(open(o.keep))
    llama = [sys.executable, os.path.join(HERE, "llama.py")]
    more = ["-m", o.model, "--threads", str(o.threads)]
    greedy = llama + ["greedy", "--file", os.path.join(HERE, "prompts.json"), "-n", str(o.tokens)]
    plain = greedy + more + ["--flash", "off"]
    got = {"greedy": call(plain), "flash": call(greedy + more + ["--flash", "on"])}
    if o.other_build:
        got["build"] = call(plain, LLAMA_CPP_LIB_PATH=o.other_build,
                            LD_LIBRARY_PATH=o.other_build)
    if text:
        got["perplexity"] = call(llama + ["perplexity", "--file", text, "--context",
                                          str(o.context)] + more)
    if o.keep:
        json.dump(got, open(o.keep, "w"))
    return got


def ours(o, prompt):
    line = [o.kermes, "run", "-m", o.model, "-n", str(o.tokens), "--temperature", "0", "--json",
            "--threads", str(o.threads), "--context", "1024", "--device", o.device,
            "--activations", "8"]
    if isinstance(prompt, dict):
        line += ["--chat", "--prompt", prompt["chat"]]
        line += ["--system", prompt["system"]] if "system" in prompt else []
    else:
        line += ["--past-end", "--prompt", prompt]
    return call(line)


def itself(o, theirs, other):
    """llama.cpp beside another llama.cpp."""
    margins, wrong = [], 0
    for a, b in zip(theirs, other):
        at = next((i for i, (x, y) in enumerate(zip(a["ids"], b["ids"])) if x != y), None)
        margins.append(None if at is None else round(a["margins"][at], 4))
        wrong += at is not None and a["margins"][at] >= o.margin
    parted = sorted(m for m in margins if m is not None)
    return {"equal": margins.count(None), "wrong": wrong, "margins": parted}


def compare(theirs, mine, chat):
    """How many of llama.cpp's tokens the text agrees with, and the margin where it parts."""
    pieces = [bytes.fromhex(p) for p in theirs["pieces"]]
    if chat and any(theirs["ends"]): # the answer ends there, and its end is no text
        pieces = pieces[:theirs["ends"].index(True)]
    said, at = mine["text"].encode(), 0
    for i, piece in enumerate(pieces):
        whole = said[at:at + len(piece)] == piece
        cut = i + 1 == len(pieces) and piece.startswith(said[at:]) # in the middle of a character
        if not whole and not cut and "\ufffd" not in mine["text"][-1:]:
            return {"agree": i, "margin": round(theirs["margins"][i], 4)}
        at += len(piece)
    return {"agree": len(pieces), "margin": None}


def texts(o, theirs):
    rows, wrong = [], 0
    for one in theirs:
        mine = ours(o, one["prompt"])
        row = {"prompt": one["prompt"], **compare(one, mine, isinstance(one["prompt"], dict))}
        row["same_prompt_tokens"] = mine["prompt_tokens"] == one["prompt_tokens"]
        row["fine"] = row["same_prompt_tokens"] and (row["margin"] is None or
                                                    row["margin"] < o.margin)
        wrong += not row["fine"]
        rows.append(row)
        print("%-4s %3d tokens agree, margin %s: %.60r" % (
            "ok" if row["fine"] else "NO", row["agree"], row["margin"], one["prompt"]),
            file=sys.stderr, flush=True)
    return {"margin": o.margin, "tokens": o.tokens, "prompts": len(rows), "wrong": wrong,
            "equal": sum(r["margin"] is None for r in rows),
            "mean_agreeing": round(sum(r["agree"] for r in rows) / len(rows), 1), "rows": rows}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--text", help="measure the perplexity of this file")
    a.add_argument("--last", type=int, help="of its last bytes")
    a.add_argument("--kermes", default=os.path.join(ROOT, "build/release/kermes"))
    a.add_argument("--device", default="cpu")
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--context", type=int, default=512)
    a.add_argument("--margin", type=float, default=0.05)
    a.add_argument("--percent", type=float, default=0.5)
    a.add_argument("--other-build", help="folder of llama.cpp's libraries, built in another way")
    a.add_argument("--keep")
    a.add_argument("--out")
    o = a.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = o.text
        if o.text and o.last:
            text = os.path.join(folder, "text")
            with open(text, "wb") as f:
                f.write(open(o.text, "rb").read()[-o.last:])
        theirs = peer(o, text)
        result = {"model": os.path.basename(o.model), "device": o.device,
                  "texts": texts(o, theirs["greedy"])}
        for name, key in (("flash", "llama.cpp_with_flash_attention"),
                          ("build", "llama.cpp_for_another_processor")):
            if name in theirs:
                result[key] = itself(o, theirs["greedy"], theirs[name])
        good = result["texts"]["wrong"] == 0
        if text:
            mine = call([o.kermes, "perplexity", "-m", o.model, "--file", text, "--context",
                         str(o.context), "--json", "--threads", str(o.threads), "--device",
                         o.device, "--activations", "8"])
            p, q = mine["perplexity"], theirs["perplexity"]["perplexity"]
            result["perplexity"] = {
                "bytes": os.path.getsize(text), "context": o.context, "tokens": mine["tokens"],
                "same_tokens": mine["tokens"] == theirs["perplexity"]["tokens"], "kermes": p,
                "llama.cpp": round(q, 4), "percent": round(100 * (p / q - 1), 3)}
            good = good and abs(p / q - 1) * 100 <= o.percent
    print(json.dumps(result, indent=2))
    if o.out:
        with open(o.out, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
    sys.exit(0 if good else 1)


main()
