#!/usr/bin/env python3
"""A model in every type: what each costs in bytes, in perplexity, and in divergence from the
original's predictions. Prints JSON.

Usage: bench/peers/every_type.py -m MODEL.gguf --text FILE [--pieces N] [--types q8_0,q4_k_m]
           [--imatrix-text FILE] [--kermes FILE] [--out FILE]

With --imatrix-text each type is also made with an importance matrix from that text.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TYPES = ("q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 iq4_nl iq4_xs mxfp4 q3_k_l "
         "q3_k_m q3_k_s q2_k")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--text", required=True)
    a.add_argument("--pieces", type=int, default=8)
    a.add_argument("--context", type=int, default=512)
    a.add_argument("--types", default=TYPES.replace(" ", ","))
    a.add_argument("--imatrix-text")
    a.add_argument("--kermes", default=os.path.join(ROOT, "build/release/kermes"))
    a.add_argument("--out")
    o = a.parse_args()

    def kermes(*words):
        return json.loads(subprocess.run([o.kermes, *words, "--json", "--quiet"], check=True,
                                         stdout=subprocess.PIPE).stdout)

    how = ["--context", str(o.context), "--pieces", str(o.pieces), "--file", o.text]
    with tempfile.TemporaryDirectory() as folder:
        saved, made = os.path.join(folder, "saved"), os.path.join(folder, "made.gguf")
        first = kermes("perplexity", "-m", o.model, *how, "--save-logits", saved)
        result = {"model": os.path.basename(o.model), "bytes": os.path.getsize(o.model),
                  "text_tokens": first["tokens"], "context": o.context,
                  "perplexity": first["perplexity"], "types": []}
        ways = [("", [])]
        if o.imatrix_text:
            matrix = os.path.join(folder, "imatrix.gguf")
            kermes("perplexity", "-m", o.model, "--file", o.imatrix_text, "--context",
                   str(o.context), "--pieces", str(o.pieces), "--imatrix-out", matrix)
            ways.append((" with imatrix", ["--imatrix", matrix]))
        for name in o.types.split(","):
            for more, words in ways:
                begin = time.monotonic()
                kermes("convert", o.model, made, "--type", name, "--force", *words)
                seconds = time.monotonic() - begin
                got = kermes("perplexity", "-m", made, *how, "--against", saved)
                row = {"type": name + more, "bytes": os.path.getsize(made),
                       "perplexity": got["perplexity"],
                       "divergence": got["divergence"]["mean"],
                       "same_top": got["divergence"]["same_top"],
                       "convert_seconds": round(seconds, 1)}
                result["types"].append(row)
                print("%-22s %6.1f MiB  perplexity %8.4f  divergence %.5f  same %.3f" % (
                    row["type"], row["bytes"] / 2**20, row["perplexity"], row["divergence"],
                    row["same_top"]), file=sys.stderr, flush=True)
    print(json.dumps(result, indent=2))
    if o.out:
        with open(o.out, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


main()
