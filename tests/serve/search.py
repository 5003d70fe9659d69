"""/v1/search over an index of what the server's own embeddings gave."""
import struct
import sys

from client import call

part, url = sys.argv[1], sys.argv[2]
words = ("sea", "sky", "cat", "sun", "day", "man", "tree", "house", "river", "king")
texts = [f"The {a} and the {b}." for a in words for b in words]


def embed(input):
    return [d["embedding"] for d in call(url, "/v1/embeddings", {"input": input})[2]["data"]]


def make(path):
    with open(path, "wb") as f:
        for v in embed(texts):
            f.write(struct.pack(f"<i{len(v)}f", len(v), *v))


def ask():
    listed = call(url, "/v1/indexes")[2]["data"]
    assert [(i["id"], i["count"], i["dim"], i["metric"]) for i in listed] == [(n, 100, 128, "cosine") for n in ("texts", "other")], listed
    found = call(url, "/v1/search", {"index": "texts", "input": [texts[7], texts[42]], "k": 5})[2]["data"]
    assert [len(d["results"]) for d in found] == [5, 5]
    for d, want in zip(found, (7, 42)):
        near = [r["distance"] for r in d["results"]]
        assert want in [r["id"] for r in d["results"]] and near == sorted(near), d
    vector = embed(texts[7])[0]
    one = call(url, "/v1/search", {"index": "texts", "vector": vector, "k": 5})[2]["data"][0]["results"]
    assert [r["id"] for r in one] == [r["id"] for r in found[0]["results"]]
    assert len(call(url, "/v1/search", {"index": "other", "vectors": [vector, vector], "k": 500, "probe": 1})[2]["data"]) == 2
    for body, status, param in [({"input": "x"}, 404, "index"), ({"index": "none", "input": "x"}, 404, "index"), ({"index": "texts"}, 400, "input"),
                                ({"index": "texts", "vector": [1, 2]}, 400, "vector"), ({"index": "texts", "vector": ["x"] * 128}, 400, "vector"),
                                ({"index": "texts", "vectors": []}, 400, "vectors"), ({"index": "texts", "input": "x", "k": 0}, 400, "k"),
                                ({"index": "texts", "input": "x", "k": 10 ** 9}, 400, "k"), ({"index": 5, "input": "x"}, 404, "index")]:
        got, _, bad = call(url, "/v1/search", body)
        assert got == status and bad["error"]["param"] == param, (body, got, bad)


make(sys.argv[3]) if part == "make" else ask()
