#!/usr/bin/env python3
"""Training and using a byte-level BPE: `kermes tokenize` beside Hugging Face's `tokenizers`.

Both work on the same generated text. CPU seconds say what the work costs whatever else runs on
the machine; wall seconds only mean something on an idle one. Each figure is the best of the
rounds. Prints JSON.

Usage: bench/tokenizer_speed.py [--kermes FILE] [--megabytes N] [--peer-megabytes N]
"""
import argparse
import json
import os
import random
import resource
import subprocess
import tempfile
import time


def generate(path, size):
    """Text of 60,000 invented words, the frequent ones far more frequent, with numbers,
    capitals and punctuation."""
    rng = random.Random(5)
    syllables = ("ka lo mi ren tus ar eth in o sha ver ing ed ly con pre tion er un st al be ou "
                 "ment").split()
    words = ["".join(rng.choice(syllables) for _ in range(1 + int(rng.random() ** 1.5 * 5)))
             for _ in range(60000)]
    with open(path, "w") as f:
        written = 0
        while written < size:
            line = []
            for _ in range(rng.randint(5, 18)):
                word, kind = words[int(len(words) * rng.random() ** 4)], rng.random()
                if kind < 0.03:
                    word = str(rng.randint(0, 99999))
                elif kind < 0.1:
                    word = word.capitalize()
                line.append(word + (rng.choice(",.;!?:") if rng.random() < 0.12 else ""))
            text = " ".join(line) + "\n"
            f.write(text)
            written += len(text)


def used(who):
    r = resource.getrusage(who)
    return r.ru_utime + r.ru_stime


def measure(work, size, rounds, who):
    """Megabytes per CPU second and per wall second."""
    cpu, wall = [], []
    for _ in range(rounds):
        start, before = time.monotonic(), used(who)
        work()
        cpu.append(used(who) - before)
        wall.append(time.monotonic() - start)
    return {"cpu_s": round(min(cpu), 3), "wall_s": round(min(wall), 3),
            "mb_per_cpu_s": round(size / 1e6 / min(cpu), 2),
            "mb_per_s": round(size / 1e6 / min(wall), 2)}


def measure_kermes(kermes, text, model, vocab, threads, rounds):
    def run(*arguments):
        subprocess.run([kermes, "tokenize", "--quiet", "--threads", str(threads), *arguments],
                       check=True, stdout=subprocess.DEVNULL)
    size = os.path.getsize(text)
    return {
        "bytes": size,
        "train": measure(lambda: run("--train", str(vocab), "--special", "none", "--out", model,
                                     text), size, rounds, resource.RUSAGE_CHILDREN),
        "encode": measure(lambda: run("--tokenizer", model, "--file", text, "--count"), size,
                          rounds, resource.RUSAGE_CHILDREN)}


def measure_peer(path, size, model, vocab, threads):
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import tokenizers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    with open(path) as f:
        lines = f.read(size).splitlines(keepends=True)
    size = sum(map(len, lines))
    tokenizer = Tokenizer.from_file(model)
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def train():
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.train_from_iterator(lines, trainers.BpeTrainer(
            vocab_size=vocab, min_frequency=2, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return {"version": tokenizers.__version__, "bytes": size,
            "train": measure(train, size, 1, resource.RUSAGE_SELF),
            "encode": measure(lambda: encode(lines), size, 1, resource.RUSAGE_SELF)}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--kermes", default="build/release/kermes")
    p.add_argument("--megabytes", type=int, default=100)
    p.add_argument("--peer-megabytes", type=int, default=20, help="for the peer, which is slower")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--rounds", type=int, default=3)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, model = os.path.join(folder, "text.txt"), os.path.join(folder, "tokenizer.json")
        generate(text, o.megabytes * 1000000)
        ours = measure_kermes(o.kermes, text, model, o.vocab, o.threads, o.rounds)
        try:
            theirs = measure_peer(text, o.peer_megabytes * 1000000, model, o.vocab, o.threads)
        except ImportError:
            theirs = None
    result = {"threads": o.threads, "vocab": o.vocab, "kermes": ours, "tokenizers": theirs}
    if theirs:
        result["times_faster_by_cpu"] = {
            k: round(ours[k]["mb_per_cpu_s"] / theirs[k]["mb_per_cpu_s"], 1)
            for k in ("train", "encode")}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
