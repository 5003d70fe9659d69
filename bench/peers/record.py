#!/usr/bin/env python3
"""Measures running models beside llama.cpp and writes it all down as one results file, from which
bench/performance.py makes its page.

Usage: bench/peers/record.py -m SMOLLM2.gguf --text FILE --name NAME [--kermes FILE] [--rounds N]
           [--more MODEL.gguf ...] [--large MODEL.gguf] [--prefix "chrt -f 20"] [--keep FILE]
           [--other-build DIR]

-m is measured in every way; --more are measured for speed, --large for speed and bandwidth. NAME is
the machine's; the file is bench/results/NAME-inference.json. --keep and
--other-build: see agree.py.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def call(*words):
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE)
    if not done.stdout:
        sys.exit("failed: " + " ".join(words))
    return json.loads(done.stdout)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--more", action="append", default=[])
    a.add_argument("--large")
    a.add_argument("--text", required=True)
    a.add_argument("--last", default="50000")
    a.add_argument("--name", required=True)
    a.add_argument("--machine", default="")
    a.add_argument("--kermes", default=os.path.join(ROOT, "build/release/kermes"))
    a.add_argument("--rounds", default="5")
    a.add_argument("--prefix", default="")
    a.add_argument("--keep")
    a.add_argument("--other-build")
    o = a.parse_args()
    threads = str(os.cpu_count())
    common = ["--kermes", o.kermes, "--rounds", o.rounds, "--threads", threads]
    compare = [os.path.join(HERE, "compare.py"), *common]
    quiet = ["--prefix", o.prefix] if o.prefix else []

    def suites(model, *names, more=()):
        words = [w for n in names for w in ("--suite", n)]
        return call(*compare, "-m", model, *words, *more)["models"][0]

    first = suites(o.model, "speed", more=quiet)
    # What is about the scheduler and about whole processes is measured as everybody runs it.
    first.update(suites(o.model, "start", "memory", "neighbour"))
    models = [first] + [suites(m, "speed", more=quiet) for m in o.more]
    if o.large:
        short = ["--tokens", "24", "--prompt", "128"]
        models.append(suites(o.large, "speed", "bandwidth", more=[*quiet, *short]))
    keep = ["--keep", o.keep] if o.keep else []
    keep += ["--other-build", o.other_build] if o.other_build else []
    agree = call(os.path.join(HERE, "agree.py"), "-m", o.model, "--text", o.text, "--last", o.last,
                 "--kermes", o.kermes, "--threads", threads, *keep)
    machine = json.loads(subprocess.run([o.kermes, "devices", "--json"],
                                        stdout=subprocess.PIPE).stdout)["machine"]
    import llama_cpp
    result = {"inference": models, "agreement": agree, "machine": machine["cpu"],
              "kernels": machine["kernels"], "threads": int(threads), "rounds": int(o.rounds),
              "date": time.strftime("%Y-%m-%d"), "llama_cpp_python": llama_cpp.__version__}
    path = os.path.join(ROOT, "bench/results", o.name + "-inference.json")
    with open(path, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    print(path)


main()
