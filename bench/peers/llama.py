#!/usr/bin/env python3
"""llama.cpp doing what a `kermes` command does, with the same options and the same JSON keys, so
that compare.py can set one beside the other. It calls llama.cpp's C functions through
llama-cpp-python's bindings and takes the likeliest token with its own sampler: no Python between
two tokens but one call of each.

Usage: llama.py run -m FILE --file F|--prompt TEXT -n N [--threads N] [--context N] [--json]
       llama.py perplexity -m FILE --file TEXT --context N [--threads N] [--pieces N] [--decode]
                [--against SAVED]     (predictions of kermes perplexity --save-logits)
       llama.py greedy -m FILE --file JSON -n N      (prompts in, tokens and margins out)
       llama.py tokenize -m FILE --file F

Needs `pip install llama-cpp-python` (built with CMAKE_ARGS="-DGGML_NATIVE=ON") and numpy.
"""
import time

started = time.monotonic()

import argparse
import ctypes
import json
import os
import sys

# libgomp reads it as it is loaded. Threads that spin for each other lose most of their time where
# another program runs too; compare.py looks which is better here and says so by the environment.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import llama_cpp as ll

imported = time.monotonic()


@ll.llama_log_callback
def silent(level, text, user):
    pass


class Llama:
    def __init__(self, path, context, threads, all_logits=False, flash="auto"):
        ll.llama_log_set(silent, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(path.encode(), ll.llama_model_default_params())
        if not self.model:
            sys.exit("llama.py: cannot load " + path)
        p = ll.llama_context_default_params()
        p.n_ctx = context
        p.n_batch = p.n_ubatch = min(context, 512)
        if hasattr(p, "n_outputs_max") and all_logits:
            p.n_outputs_max = p.n_batch
        p.n_threads = p.n_threads_batch = threads
        p.no_perf = True
        p.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[flash]
        self.ctx = ll.llama_init_from_model(self.model, p)
        if not self.ctx:
            sys.exit("llama.py: no context of %d tokens" % context)
        self.vocab = ll.llama_model_get_vocab(self.model)
        self.size = ll.llama_vocab_n_tokens(self.vocab)
        self.batch = p.n_batch
        self.greedy = ll.llama_sampler_init_greedy()

    def tokenize(self, text, special=True, parse=False):
        data = text.encode()
        room = len(data) + 16
        out = (ll.llama_token * room)()
        n = ll.llama_tokenize(self.vocab, data, len(data), out, room, special, parse)
        return list(out[:n])

    def render(self, chat, system):
        """A question in the model's own chat template, as Jinja2 renders it."""
        import jinja2
        get = lambda token: self.piece(token).decode() if token >= 0 else ""
        template = ll.llama_model_chat_template(self.model, None).decode()
        said = [{"role": "system", "content": system}] if system else []
        return jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
            template).render(messages=said + [{"role": "user", "content": chat}],
                             add_generation_prompt=True, bos_token=get(
                                 ll.llama_vocab_bos(self.vocab)),
                             eos_token=get(ll.llama_vocab_eos(self.vocab)))

    def piece(self, token):
        out = ctypes.create_string_buffer(256)
        n = ll.llama_token_to_piece(self.vocab, token, out, 256, 0, True)
        return out.raw[:max(n, 0)]

    def read(self, ids):
        """Reads tokens after those read so far."""
        for at in range(0, len(ids), self.batch):
            part = ids[at:at + self.batch]
            data = (ll.llama_token * len(part))(*part)
            if ll.llama_decode(self.ctx, ll.llama_batch_get_one(data, len(part))) != 0:
                sys.exit("llama.py: llama_decode failed")

    def next(self):
        return ll.llama_sampler_sample(self.greedy, self.ctx, -1)

    def logits(self, row=-1):
        import numpy as np
        return np.ctypeslib.as_array(ll.llama_get_logits_ith(self.ctx, row), (self.size,))

    def clear(self):
        ll.llama_memory_clear(ll.llama_get_memory(self.ctx), True)

    def warm_up(self):
        """As llama.cpp's own programs do before they begin: one token, forgotten again."""
        ll.llama_set_warmup(self.ctx, True)
        self.read([max(ll.llama_vocab_bos(self.vocab), 0)])
        ll.llama_set_warmup(self.ctx, False)
        self.clear()


def prompt_of(o):
    return open(o.file, encoding="utf-8").read() if o.file else o.prompt


def run(o):
    begin = time.monotonic()
    l = Llama(o.model, o.context, o.threads)
    loaded = time.monotonic()
    if not o.cold:
        l.warm_up()
    ids = l.tokenize(prompt_of(o))
    t0 = time.monotonic()
    l.read(ids)
    token = l.next()
    t1 = time.monotonic()
    if o.stream:
        sys.stdout.buffer.write(l.piece(token))
        sys.stdout.flush()
    made = [token]
    for _ in range(o.tokens - 1):
        l.read([token])
        token = l.next()
        made.append(token)
    t2 = time.monotonic()
    if o.stream:
        return None
    return {"text": b"".join(map(l.piece, made)).decode(errors="replace"), "ids": made,
            "prompt_tokens": len(ids), "tokens": len(made),
            "prompt_seconds": t1 - t0, "seconds": t2 - t1,
            "prompt_tokens_per_s": len(ids) / (t1 - t0),
            "decode_tokens_per_s": (len(made) - 1) / (t2 - t1) if len(made) > 1 else None,
            "load_seconds": loaded - begin, "load_to_first_seconds": t1 - begin,
            "import_seconds": imported - started}


class Saved:
    """Predictions that kermes perplexity --save-logits wrote (docs/formats/logits.md), in the order
    of the text, and how far others are from them."""
    HEAD = 40

    def __init__(self, path, vocab):
        import numpy as np
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        size, context, self.count = np.frombuffer(self.data[8:32].tobytes(), dtype=np.int64)
        if bytes(self.data[:8]) != b"KMLOGIT1" or size != vocab:
            sys.exit("llama.py: %s holds no predictions of %d tokens" % (path, vocab))
        self.vocab, self.kl, self.same, self.ratio = vocab, [], 0, 0.0

    def compare(self, logp, came):
        """logp (vocab): this engine's log-probabilities of the next place."""
        import numpy as np
        size = 8 + 2 * self.vocab
        at = self.HEAD + len(self.kl) * size
        row = self.data[at:at + size].tobytes()
        if len(row) != size or np.frombuffer(row[4:8], dtype=np.int32)[0] != came:
            sys.exit("llama.py: the saved predictions are of another text")
        codes = np.frombuffer(row[8:], dtype=np.uint16)
        saved = np.frombuffer(row[:4], dtype=np.float32)[0] - (1 - codes / 65535.0) * 32.0
        saved = saved - np.log(np.exp(saved).sum())
        self.kl.append(float((np.exp(saved) * (saved - logp)).sum()))
        self.same += int(logp.argmax() == codes.argmax())
        self.ratio += float(saved[came] - logp[came])

    def result(self):
        import math
        import numpy as np
        n, kl = len(self.kl), np.array(self.kl)
        if n != self.count:
            sys.exit("llama.py: %d predictions, and %d were saved" % (n, self.count))
        return {"mean": kl.mean(), "standard_error": kl.std() / math.sqrt(max(n - 1, 1)),
                "median": float(np.median(kl)), "max": kl.max(), "same_top": self.same / n,
                "perplexity_ratio": math.exp(self.ratio / n)}


def perplexity(o):
    """Pieces of --context tokens; every token of a piece but its first is predicted from those
    before it in the piece, and a beginning-of-text token takes the first place where the
    tokenizer puts one: as `kermes perplexity` does it."""
    import math
    import numpy as np
    l = Llama(o.model, o.context, o.threads, all_logits=True)
    bos = ll.llama_vocab_bos(l.vocab) if ll.llama_vocab_get_add_bos(l.vocab) else -1
    ids = l.tokenize(prompt_of(o), special=False)
    fresh = o.context - (bos >= 0)
    saved = Saved(o.against, l.size) if o.against else None
    step = 1 if o.decode else l.batch
    total, count = 0.0, 0
    for at in range(0, len(ids), fresh)[:o.pieces]:
        piece = ([bos] if bos >= 0 else []) + ids[at:at + fresh]
        if len(piece) < 2:
            continue
        l.clear()
        for b in range(0, len(piece) - 1, step):
            part = piece[b:min(b + step, len(piece) - 1)]
            batch = ll.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i] = token, b + i
                batch.n_seq_id[i], batch.logits[i] = 1, 1
                batch.seq_id[i][0] = 0
            if ll.llama_decode(l.ctx, batch) != 0:
                sys.exit("llama.py: llama_decode failed")
            rows = np.ctypeslib.as_array(ll.llama_get_logits(l.ctx), (len(part), l.size))
            for i, row in enumerate(rows.astype(np.float64)):
                came = piece[b + 1 + i]
                row = row - row.max()
                logp = row - np.log(np.exp(row).sum())
                total -= float(logp[came])
                count += 1
                if saved:
                    saved.compare(logp, came)
            ll.llama_batch_free(batch)
    got = {"context": o.context, "tokens": count, "loss": total / count,
           "perplexity": math.exp(total / count), "version": ll.__version__}
    if saved:
        got["divergence"] = saved.result()
    return got


def greedy(o):
    """The likeliest continuation of each prompt, and by how much each token was likelier (in
    logits) than the second."""
    import numpy as np
    l = Llama(o.model, o.context, o.threads, flash=o.flash)
    out = []
    for prompt in json.load(open(o.file, encoding="utf-8")):
        l.clear()
        if isinstance(prompt, dict):
            text = l.render(prompt["chat"], prompt.get("system"))
            ids = l.tokenize(text, special=False, parse=True)
        else:
            ids = l.tokenize(prompt)
        l.read(ids)
        made, margins = [], []
        for _ in range(o.tokens):
            y = l.logits()
            second, first = np.partition(y, -2)[-2:]
            made.append(int(y.argmax()))
            margins.append(float(first - second))
            l.read([made[-1]])
        out.append({"prompt": prompt, "prompt_tokens": len(ids), "ids": made, "margins": margins,
                    "pieces": [l.piece(t).hex() for t in made],
                    "ends": [bool(ll.llama_vocab_is_eog(l.vocab, t)) for t in made]})
    return out


def tokenize(o):
    l = Llama(o.model, 64, 1)
    return {"ids": l.tokenize(prompt_of(o))}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("command", choices=["run", "perplexity", "greedy", "tokenize"])
    a.add_argument("-m", "--model", required=True)
    a.add_argument("--prompt")
    a.add_argument("--file")
    a.add_argument("-n", "--tokens", type=int, default=64)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--context", type=int, default=1024)
    a.add_argument("--flash", choices=["auto", "off", "on"], default="auto",
                   help="greedy: how attention is computed")
    a.add_argument("--decode", action="store_true", help="perplexity: one token at a time")
    a.add_argument("--pieces", type=int, help="perplexity: at most so many")
    a.add_argument("--against", help="perplexity: divergence from these saved predictions")
    a.add_argument("--cold", action="store_true", help="no warming up before the prompt")
    a.add_argument("--stream", action="store_true", help="print the first token as it comes")
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    result = {"run": run, "perplexity": perplexity, "greedy": greedy,
              "tokenize": tokenize}[o.command](o)
    if result is not None:
        json.dump(result, sys.stdout)
        print()


main()
