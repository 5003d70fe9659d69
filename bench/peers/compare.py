#!/usr/bin/env python3
"""Kermes beside llama.cpp: the same file, the same prompt, the same number of threads, each run a
process of its own, the two in turn, so that whatever else happens on the machine hits both. Every
figure has the best and the median of the rounds. Prints JSON; progress goes to stderr.

Usage: bench/peers/compare.py -m MODEL.gguf [-m MODEL2.gguf] [--rounds N] [--threads N]
           [--suite NAME ...] [--kermes FILE] [--prefix "chrt -f 20"] [--out FILE]

Suites:
  speed      decoding after a short prompt, and reading a prompt of 512 tokens (tokens/s)
  start      from the start of the process to the first token of the answer to ten tokens; of
             llama.cpp also without the time that Python takes to start
  memory     the most resident memory while reading 512 tokens in a context of 2048
  neighbour  decoding while another program keeps every core busy, as a share of what is fair
  bandwidth  bytes of weights that decoding reads in a second, as a share of what memory gives

llama.cpp gets the better of its settings: OMP_WAIT_POLICY is tried both ways before anything is
measured (and is passive beside other programs); what was chosen, and by which speeds, is under
"peer_settings" in the JSON. Whoever sets OMP_WAIT_POLICY decides for themselves.

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
import time

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
        self.policy = os.environ.get("OMP_WAIT_POLICY")  # None: to be found out
        self.settings = {}

    def call(self, line, policy=None, **more):
        env = {**os.environ, "OMP_WAIT_POLICY": policy or self.policy or "passive"}
        done = subprocess.run(self.prefix + line, stdout=subprocess.PIPE, check=True, env=env,
                              **more)
        return json.loads(done.stdout)

    def best_settings(self, model, file, tokens):
        """Which way of waiting llama.cpp is faster with on this machine, now."""
        self.settings = {"OMP_WAIT_POLICY": self.policy, "chosen_by": "the environment"}
        if self.policy:
            return
        line = self.llama("run", "-m", model, "--file", file, "-n", str(tokens), "--context", "1024")
        seen = {"passive": [], "active": []}
        for _ in range(3):
            for policy, rates in seen.items():
                rates.append(self.call(line, policy)["decode_tokens_per_s"])
        rates = {k: round(statistics.median(v), 2) for k, v in seen.items()}
        self.policy = max(rates, key=rates.get)
        self.settings = {"OMP_WAIT_POLICY": self.policy, "chosen_by": "decode_tokens_per_s",
                         "decode_tokens_per_s": rates, "beside_other_programs": "passive"}
        say("llama.cpp: OMP_WAIT_POLICY=%s (%s)" % (self.policy, rates))

    def kermes(self, *words):
        return [self.o.kermes, *words, "--threads", str(self.o.threads)]

    def llama(self, *words):
        return [sys.executable, os.path.join(HERE, "llama.py"), *words,
                "--threads", str(self.o.threads)]

    def run(self, engine, model, file, tokens, context, policy=None):
        words = ["run", "-m", model, "--file", file, "-n", str(tokens), "--context", str(context)]
        if engine == "llama.cpp":
            return self.call(self.llama(*words), policy)
        return self.call(self.kermes(*words, "--temperature", "0", "--past-end", "--json"))


def summary(values, digits=2):
    return {"best": round(max(values), digits), "median": round(statistics.median(values), digits)}


def text_of(engines, model, tokens, folder):
    """A file whose text is exactly that many tokens of the model's."""
    path = os.path.join(folder, "prompt-%d.txt" % tokens)
    text, n = " ".join(WORDS[i % len(WORDS)] for i in range(tokens)), 0
    size = len(text) * 3 // 4
    for _ in range(60): # the number of tokens rises with that of letters, by steps of one mostly
        with open(path, "w") as f:
            f.write(text[:size])
        n = len(engines.call(engines.llama("tokenize", "-m", model, "--file", path))["ids"])
        if n == tokens:
            return path
        size += max(1, (tokens - n) * 2) if n < tokens else -max(1, n - tokens)
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


def first_byte(line, env=None):
    """Seconds from the start of a process to the first byte that it prints."""
    begin = time.monotonic()
    child = subprocess.Popen(line, stdout=subprocess.PIPE, env=env)
    child.stdout.read(1)
    seconds = time.monotonic() - begin
    child.stdout.read()
    if child.wait() != 0:
        sys.exit("failed: " + " ".join(line))
    return seconds


def start(engines, o, model, folder):
    file = text_of(engines, model, 10, folder)
    words = ["run", "-m", model, "--file", file, "-n", "2", "--context", "1024"]
    seen = {"kermes": [], "llama.cpp": [], "llama.cpp without Python": []}
    for i in range(o.rounds):
        seen["kermes"].append(first_byte(engines.prefix + engines.kermes(
            *words, "--temperature", "0", "--past-end", "--quiet")))
        seen["llama.cpp"].append(first_byte(engines.prefix + engines.llama(
            *words, "--cold", "--stream"), {**os.environ, "OMP_WAIT_POLICY": engines.policy}))
        seen["llama.cpp without Python"].append(engines.call(engines.llama(
            *words, "--cold"))["load_to_first_seconds"])
        say("start, round %d: %s" % (i + 1, ", ".join(
            "%s %.3f s" % (k, v[-1]) for k, v in seen.items())))
    out = {k: {"best": round(min(v), 4), "median": round(statistics.median(v), 4)}
           for k, v in seen.items()}
    for k in ("llama.cpp", "llama.cpp without Python"):
        out["ratio to " + k] = round(out["kermes"]["best"] / out[k]["best"], 3)
    return {"prompt_tokens": 10, "seconds_to_first_token": out}


def peak_of(line):
    """The most resident memory of a process, in bytes."""
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status != 0:
        sys.exit("failed: " + " ".join(line))
    return used.ru_maxrss * 1024


def memory(engines, o, model, folder):
    context = 2048
    file = text_of(engines, model, o.prompt, folder)
    words = ["run", "-m", model, "--file", file, "-n", "16", "--context", str(context)]
    mine = peak_of(engines.kermes(*words, "--temperature", "0", "--past-end", "--quiet"))
    theirs = peak_of(engines.llama(*words))
    empty = peak_of([sys.executable, "-c", "import llama_cpp"])
    cache = engines.call([o.kermes, "info", model, "--context", str(context),
                          "--json"])["model"]["cache_bytes"]
    bound = os.path.getsize(model) + cache + (64 << 20)
    return {"context": context, "prompt_tokens": o.prompt, "cache_bytes": cache,
            "kermes_bytes": mine, "llama.cpp_bytes": theirs,
            "llama.cpp_without_python_bytes": theirs - empty,
            "file_cache_and_64_mib": bound, "kermes_of_that": round(mine / bound, 3)}


def neighbour(engines, o, model, folder):
    file = text_of(engines, model, 8, folder)
    seen = {(e, n): [] for e in ("kermes", "llama.cpp") for n in (False, True)}
    for i in range(o.rounds):
        for busy in (False, True):
            others = [subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c",
                                        "while True: pass"])
                      for core in sorted(os.sched_getaffinity(0)) if busy]
            try:
                for engine in ("kermes", "llama.cpp"):
                    got = engines.run(engine, model, file, o.tokens, 1024,
                                      os.environ.get("OMP_WAIT_POLICY", "passive") if busy else None)
                    seen[engine, busy].append(got["decode_tokens_per_s"])
            finally:
                for other in others:
                    other.kill()
                    other.wait()
        say("neighbour, round %d: kermes %.1f alone, %.1f beside; llama.cpp %.1f, %.1f" % (
            i + 1, seen["kermes", False][-1], seen["kermes", True][-1],
            seen["llama.cpp", False][-1], seen["llama.cpp", True][-1]))
    out = {}
    for engine in ("kermes", "llama.cpp"):
        alone, beside = summary(seen[engine, False]), summary(seen[engine, True])
        out[engine] = {"alone": alone, "beside": beside,
                       # one of two programs on every core: half of the time is fair
                       "of_fair_share": round(beside["median"] / (0.5 * alone["median"]), 3)}
    return {"decode_tokens_per_s": out}


def bandwidth(engines, o, model, folder):
    """Every weight but the table's rows is read once a token; a tied table is read as the head."""
    limits = engines.call([o.kermes, "bench", "reduce", "--sizes", "1K", "--json", "--threads",
                           str(o.threads)])["limits"]
    info = engines.call([o.kermes, "info", model, "--tensors", "--json"])
    tied = info["model"]["tied"]
    weights = sum(t["bytes"] for t in info["tensor_list"]
                  if tied or t["name"] != "token_embd.weight")
    file = text_of(engines, model, 8, folder)
    rates = {"kermes": [], "llama.cpp": []}
    for _ in range(o.rounds):
        for engine in rates:
            rates[engine].append(engines.run(engine, model, file, o.tokens,
                                             256)["decode_tokens_per_s"])
    out = {"weight_bytes": weights, "memory_read_gb_per_s": limits["read_gbs"]}
    for engine, values in rates.items():
        best = max(values)
        out[engine] = {"decode_tokens_per_s": summary(values),
                       "gb_per_s": round(best * weights / 1e9, 2),
                       "of_memory": round(best * weights / 1e9 / limits["read_gbs"], 3)}
    return out


SUITES = {"speed": speed, "start": start, "memory": memory, "neighbour": neighbour,
          "bandwidth": bandwidth}


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
            engines.policy = os.environ.get("OMP_WAIT_POLICY")
            engines.best_settings(model, text_of(engines, model, 8, folder), min(o.tokens, 32))
            one = {"model": os.path.basename(model), "bytes": os.path.getsize(model),
                   "peer_settings": engines.settings}
            for suite in o.suite or ["speed"]:
                one[suite] = SUITES[suite](engines, o, model, folder)
            result["models"].append(one)
    text = json.dumps(result, indent=2)
    if o.out:
        with open(o.out, "w") as f:
            f.write(text + "\n")
    print(text)


main()
