#!/usr/bin/env python3
"""Kermes beside llama.cpp: the same file, the same prompt, the same number of threads, each run a
process of its own, the two in turn, so that whatever else happens on the machine hits both. Every
figure has the best and the median of the rounds. Prints JSON; progress goes to stderr.

Usage: bench/peers/compare.py -m MODEL.gguf [-m MODEL2.gguf] [--rounds N] [--threads N]
           [--suite speed] [--kermes FILE] [--prefix "chrt -f 20"] [--out FILE]

Suites:
  speed   decoding after a short prompt, and reading a prompt of 512 tokens (tokens/s)

`--prefix` goes before every command of both engines. README.md beside this file says what is
needed and what is measured how.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORDS = ("the old harbour kept its lamps lit while boats came in from a grey sea and people on "
         "the stairs talked about bread, weather and the price of rope; nobody there was in a "
         "hurry, for the tide would turn by itself and the evening was long").split()


def say(text):
    print(text, file=sys.stderr, flush=True)


class Engines:
    def __init__(self, o):
        self.o = o
        self.prefix = shlex.split(o.prefix)

    def call(self, line, **more):
        done = subprocess.run(self.prefix + line, stdout=subprocess.PIPE, check=True, **more)
        return json.loads(done.stdout)

    def kermes(self, *words):
        return [self.o.kermes, *words, "--threads", str(self.o.threads)]

    def llama(self, *words):
        return [sys.executable, os.path.join(HERE, "llama.py"), *words,
                "--threads", str(self.o.threads)]

    def run(self, engine, model, file, tokens, context):
        words = ["run", "-m", model, "--file", file, "-n", str(tokens), "--context", str(context)]
        if engine == "llama.cpp":
            return self.call(self.llama(*words))
        return self.call(self.kermes(*words, "--temperature", "0", "--past-end", "--json"))


def summary(values, digits=2):
    return {"best": round(max(values), digits), "median": round(statistics.median(values), digits)}


def text_of(engines, model, tokens, folder):
    """A file whose text is exactly that many tokens of the model's."""
    path = os.path.join(folder, "prompt-%d.txt" % tokens)
    words, n = [], 0
    count = lambda: len(engines.call(engines.llama("tokenize", "-m", model, "--file", path))["ids"])
    size = tokens * 3 // 4
    for _ in range(40):
        words = [WORDS[i % len(WORDS)] for i in range(size)]
        with open(path, "w") as f:
            f.write(" ".join(words))
        n = count()
        if n == tokens:
            return path
        size += max(1, (tokens - n) * 3 // 4) if n < tokens else -max(1, (n - tokens) // 2)
    sys.exit("no text of %d tokens was found; the nearest has %d" % (tokens, n))


def speed(engines, o, model, folder):
    short, long = text_of(engines, model, 8, folder), text_of(engines, model, o.prompt, folder)
    seen = {(e, k): [] for e in ("kermes", "llama.cpp") for k in ("decode", "prompt")}
    for i in range(o.rounds):
        for engine in ("kermes", "llama.cpp"):
            a = engines.run(engine, model, short, o.tokens, 1024)
            b = engines.run(engine, model, long, 1, 1024)
            if b["prompt_tokens"] != o.prompt:
                sys.exit("%s reads %d tokens for %d" % (engine, b["prompt_tokens"], o.prompt))
            seen[engine, "decode"].append(a["decode_tokens_per_s"])
            seen[engine, "prompt"].append(b["prompt_tokens_per_s"])
        say("%s, round %d: decode %.1f and %.1f, prompt %.1f and %.1f tokens/s" % (
            os.path.basename(model), i + 1, seen["kermes", "decode"][-1],
            seen["llama.cpp", "decode"][-1], seen["kermes", "prompt"][-1],
            seen["llama.cpp", "prompt"][-1]))
    out = {"decoded_tokens": o.tokens, "prompt_tokens": o.prompt}
    for kind in ("decode", "prompt"):
        mine, theirs = summary(seen["kermes", kind]), summary(seen["llama.cpp", kind])
        out[kind + "_tokens_per_s"] = {
            "kermes": mine, "llama.cpp": theirs,
            "ratio": {k: round(mine[k] / theirs[k], 3) for k in mine}}
    return out


SUITES = {"speed": speed}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-m", "--model", action="append", required=True)
    a.add_argument("--suite", action="append", choices=sorted(SUITES))
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--tokens", type=int, default=64, help="to decode")
    a.add_argument("--prompt", type=int, default=512, help="tokens of the long prompt")
    a.add_argument("--kermes", default=os.path.join(ROOT, "build/release/kermes"))
    a.add_argument("--prefix", default="")
    a.add_argument("--out")
    o = a.parse_args()
    engines = Engines(o)
    import llama_cpp
    result = {"kermes": subprocess.run([o.kermes, "--version"], stdout=subprocess.PIPE,
                                       text=True).stdout.split()[-1],
              "llama_cpp_python": llama_cpp.__version__, "threads": o.threads,
              "rounds": o.rounds, "models": []}
    with tempfile.TemporaryDirectory() as folder:
        for model in o.model:
            one = {"model": os.path.basename(model), "bytes": os.path.getsize(model)}
            for suite in o.suite or ["speed"]:
                one[suite] = SUITES[suite](engines, o, model, folder)
            result["models"].append(one)
    text = json.dumps(result, indent=2)
    if o.out:
        with open(o.out, "w") as f:
            f.write(text + "\n")
    print(text)


main()
