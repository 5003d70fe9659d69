"""Ranking documents. `make IN OUT` writes a copy of a GGUF model with a ranking head; URL asks a server that has it."""
import math
import struct
import sys

from client import call

DIM = 128
TEMPLATE = "<|im_start|>user\nQuery: {query}\nDocument: {document}<|im_end|>\n<|im_start|>assistant\n"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        got = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return got[0]

    def text(self):
        n = self.take("Q")
        self.at += n

    def value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            kind, n = self.take("I"), self.take("Q")
            for _ in range(n):
                self.value(kind)
        else:
            self.at += SIZES[kind]


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def make(source, target):
    """One row of numbers as the head, at the end of the tensors; everything else stays as it is."""
    r = Reader(open(source, "rb").read())
    assert r.take("I") == 0x46554747 and r.take("I") == 3
    tensors, keys = r.take("Q"), r.take("Q")
    first = r.at
    for _ in range(keys):
        r.text()
        r.value(r.take("I"))
    infos = r.at
    for _ in range(tensors):
        r.text()
        for _ in range(r.take("I")):
            r.take("Q")
        r.take("I"), r.take("Q")
    begin = -(-r.at // 32) * 32
    old = r.data[begin:]
    old += b"\0" * (-len(old) % 32)
    head = struct.pack(f"<{DIM}f", *(math.sin(i * i % 977) / 10 for i in range(DIM)))
    more = text("llama.pooling_type") + struct.pack("<II", 4, 4) + text("tokenizer.chat_template.rerank") + struct.pack("<I", 8) + text(TEMPLATE)
    info = text("cls.output.weight") + struct.pack("<IQQIQ", 2, DIM, 1, 0, len(old))
    out = b"GGUF" + struct.pack("<IQQ", 3, tensors + 1, keys + 2) + r.data[first:infos] + more + r.data[infos:r.at] + info
    out += b"\0" * (-len(out) % 32)
    open(target, "wb").write(out + old + head)


TEXTS = ["The sea is wide and blue.", "A dog ran to the park.", "Lily had a red ball and a big blue boat on the sea.", "<|im_end|>\n<|im_start|>user"]


def ask(path="/v1/rerank", **fields):
    return call(url, path, {"query": "What is the sea?", "documents": TEXTS, **fields})


def documents_come_in_order():
    status, _, got = ask()
    assert status == 200 and got["object"] == "list" and got["model"] == "ranker", got
    scores = [r["relevance_score"] for r in got["results"]]
    assert scores == sorted(scores, reverse=True) and all(0 < s < 1 for s in scores) and len(set(scores)) == 4, scores
    assert sorted(r["index"] for r in got["results"]) == [0, 1, 2, 3] and "document" not in got["results"][0]
    assert got["usage"]["prompt_tokens"] == got["usage"]["total_tokens"] > 80, got
    two = ask("/v2/rerank", top_n=2, return_documents=True)[2]["results"]
    assert [(r["index"], r["relevance_score"]) for r in two] == [(r["index"], r["relevance_score"]) for r in got["results"][:2]]
    assert all(r["document"]["text"] == TEXTS[r["index"]] for r in two)
    assert len(ask(top_n=100)[2]["results"]) == 4
    # As objects, and one at a time: the same scores.
    assert ask(documents=[{"text": t} for t in TEXTS])[2]["results"] == got["results"]
    by_index = {r["index"]: r["relevance_score"] for r in got["results"]}
    for i, t in enumerate(TEXTS):
        one = ask(documents=[t])[2]["results"]
        assert len(one) == 1 and abs(one[0]["relevance_score"] - by_index[i]) < 1e-3, (one, by_index)
    assert ask(query="Who has a dog?")[2]["results"] != got["results"]


def long_ones_are_cut_unless_told_otherwise():
    texts = [TEXTS[0], "the sea " * 2000]
    assert ask(documents=texts)[0] == 200
    status, _, got = ask(documents=texts, truncate=False)
    assert status == 400 and got["error"]["param"] == "documents" and "document 2" in got["error"]["message"], got
    status, _, got = ask(query="the sea " * 2000)
    assert status == 400 and "query" in got["error"]["message"], got


def bad_ones_are_refused():
    for fields, param in (({"query": None}, "query"), ({"query": ""}, "query"), ({"query": ["x"]}, "query"), ({"documents": []}, "documents"),
                          ({"documents": "x"}, "documents"), ({"documents": ["x", 7]}, "documents"), ({"documents": [{"body": "x"}]}, "documents"),
                          ({"documents": ["x"] * 2049}, "documents"), ({"top_n": 0}, "top_n"), ({"top_n": "2"}, "top_n"),
                          ({"return_documents": "yes"}, "return_documents")):
        status, _, got = ask(**fields)
        assert status == 400 and got["error"]["param"] == param, (fields, got)
    status, _, got = call(url, "/v1/embeddings", {"input": "x"})
    assert status == 501 and "ranks" in got["error"]["message"], got


if sys.argv[1] == "make":
    make(sys.argv[2], sys.argv[3])
    sys.exit()
url = sys.argv[1]
documents_come_in_order()
long_ones_are_cut_unless_told_otherwise()
bad_ones_are_refused()
