"""Adapters behind a server: each a model of its own, many mixes in one batch, each text as it is alone.

adapters.py make FOLDER SEED SIZE: writes a LoRA of random numbers for models/kermes-tiny.gguf, as PEFT does.
adapters.py URL one|several|save|restore|shelf: asks a server that has them."""
import json
import os
import random
import struct
import sys
import threading

from client import call, events

LAYERS, DIM, KV = 4, 128, 64


def make(folder, seed, size):
    rng, head, data = random.Random(seed), {}, b""
    for layer in range(LAYERS):
        for name, out in (("q_proj", DIM), ("v_proj", KV)):
            for part, shape in (("A", [4, DIM]), ("B", [out, 4])):
                numbers = [rng.uniform(-size, size) for _ in range(shape[0] * shape[1])]
                raw = struct.pack(f"<{len(numbers)}f", *numbers)
                head[f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
                data += raw
    os.mkdir(folder)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/adapter_model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(folder + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8}, f)


def ask(model, prompt="Once upon a time there was a", tokens=24, **fields):
    status, _, got = call(url, "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                                   "ignore_eos": True, **fields})
    assert status == 200, got
    return got["choices"][0]["text"], got


def refused(status, param, path="/v1/completions", **fields):
    got = call(url, path, {"prompt": "x", "max_tokens": 1, **fields})
    assert got[0] == status and got[2]["error"]["param"] == param, got
    return got[2]["error"]["message"]


def each_is_a_model_of_its_own():
    listed = {m["id"]: m for m in call(url, "/v1/models")[2]["data"]}
    assert list(listed) == ["kermes-tiny", "red", "blue"], listed
    assert listed["red"]["parent"] == "kermes-tiny" and "parent" not in listed["kermes-tiny"]
    assert listed["blue"]["meta"]["scale"] == 0.5
    assert call(url, "/v1/models/blue")[2]["id"] == "blue" and call(url, "/v1/models/green")[0] == 404
    assert [m["name"] for m in call(url, "/api/tags")[2]["models"]] == ["kermes-tiny", "red", "blue"]
    texts = {m: ask(m) for m in ("kermes-tiny", "red", "blue")}
    assert len({t for t, _ in texts.values()}) == 3, texts
    for model, (_, got) in texts.items():
        assert got["model"] == model, got
    assert ask(None)[0] == ask("")[0] == texts["kermes-tiny"][0] == ask("kermes-tiny", adapters=[])[0]
    assert ask("red:latest")[0] == ask("RED")[0] == texts["red"][0]
    # Chosen by a list, in every form.
    assert ask("kermes-tiny", adapters=["red"])[0] == ask(None, lora="red")[0] == texts["red"][0]
    assert ask(None, lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 0}])[0] == texts["red"][0]
    assert ask("blue", adapters=[{"name": "red"}])[0] == texts["red"][0]
    both = ask(None, adapters=["red", {"name": "blue", "scale": 0.5}])[0]
    assert both == ask(None, adapters=["blue", "red"])[0] and both not in (texts["red"][0], texts["blue"][0])
    # Other dialects, and streams.
    chat = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 8}
    _, _, openai = call(url, "/v1/chat/completions", {**chat, "model": "red"})
    data = call(url, "/v1/chat/completions", {**chat, "model": "red", "stream": True})[2]
    assert openai["model"] == "red" and {e["model"] for e in events(data)} == {"red"}
    said = openai["choices"][0]["message"]["content"]
    assert call(url, "/v1/messages", {**chat, "model": "red"})[2]["content"][0]["text"] == said
    ollama = call(url, "/api/chat", {"model": "red", "messages": chat["messages"], "stream": False,
                                     "options": {"temperature": 0, "num_predict": 8}})[2]
    assert ollama["message"]["content"] == said and ollama["model"] == "red"


def bad_ones_are_refused_by_name():
    assert "green" in refused(404, "model", model="green")
    assert "green" in refused(400, "adapters", adapters=["green"])
    refused(400, "adapters", adapters=["red", "red"])
    refused(400, "adapters", adapters=[{"name": "red", "scale": "much"}])
    refused(400, "adapters", adapters=[{"name": "red", "scale": 1e300}])
    refused(400, "adapters", adapters={"name": "red"})
    refused(400, "adapters", adapters=[7])
    refused(400, "adapters", lora=[{"id": 2, "scale": 1}])
    refused(400, "adapters", lora=[{"id": -1}])


def vectors_are_of_the_adapter_that_was_asked_for():
    def vector(model, **fields):
        _, _, got = call(url, "/v1/embeddings", {"model": model, "input": "The sea", **fields})
        assert got["model"] == model, got
        return got["data"][0]["embedding"]
    plain, red = vector("kermes-tiny"), vector("red")
    assert plain != red and red == vector("kermes-tiny", adapters=["red"]) and plain == vector("red", adapters=[])


def what_one_has_read_serves_no_other():
    prompt = "One day a little girl named Lily went to the park with her mom and she saw a big dog and a small bird in a tree"
    for model, expected in (("red", False), ("red", True), ("blue", False), ("kermes-tiny", False), ("blue", True), ("kermes-tiny", True)):
        cached = ask(model, prompt, 2)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (cached > 0) == expected, (model, cached)
    cached = ask(None, prompt, 2, adapters=[{"name": "red", "scale": 0.25}])[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == 0, cached


def a_mixed_batch_gives_each_its_own():
    choices = [{}, {"adapters": ["red"]}, {"adapters": ["blue"]}, {"adapters": ["red", "blue"]}, {"adapters": [{"name": "red", "scale": -0.5}]}]
    prompts = ["The sea is", "I saw a red bird in the tree and"]
    asks = [(p, c) for p in prompts for c in choices]
    alone = [ask(None, p, 40, **c)[0] for p, c in asks]
    assert len(set(alone)) == len(alone)
    together = [None] * len(asks)

    def user(i):
        together[i] = ask(None, asks[i][0], 40, **asks[i][1])[0]
    for _ in range(3):
        threads = [threading.Thread(target=user, args=(i,)) for i in range(len(asks))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert together == alone, (together, alone)


LONG = ("One day a little girl named Lily went to the park with her mom and she saw a big dog and a small bird in a tree. " * 2 +
        "The bird said hello and the dog ran to the sea. Lily was happy.")
WAYS = [("kermes-tiny", {}), ("red", {}), ("blue", {}), (None, {"adapters": ["red", {"name": "blue", "scale": -0.25}]})]


def long_text(model, fields):
    text, got = ask(model, LONG, 12, **fields)
    return text, got["usage"]["prompt_tokens_details"]["cached_tokens"], got["usage"]["prompt_tokens"]


def what_leaves_the_cache_comes_back_to_its_own_adapters():
    """One sequence is kept at a time: each way drives the one before it to the second level."""
    first = [long_text(*way)[0] for way in WAYS]
    assert len(set(first)) == len(WAYS), first
    for _ in range(2):
        for way, want in zip(WAYS, first):
            text, cached, prompt = long_text(*way)
            assert text == want and cached > 64, (way, cached, prompt, text, want)
    metrics = dict(line.rsplit(" ", 1) for line in call(url, "/metrics")[2].decode().split("\n") if line and line[0] != "#")
    assert int(metrics["kermes_prefixes_brought_back_total"]) == 2 * len(WAYS), metrics


def save(name, model, fields):
    return call(url, "/v1/sessions/save", {"session": name, "prompt": LONG, "model": model, **fields})


def restore(name, **fields):
    return call(url, "/v1/sessions/restore", {"session": name, **fields})


def sessions_are_saved_with_their_adapters():
    for i, (model, fields) in enumerate(WAYS):
        status, _, got = save(f"way{i}", model, fields)
        assert status == 200 and got["saved"], got
        print(long_text(model, fields)[0])
    listed = call(url, "/v1/sessions")[2]["data"]
    assert [s.get("adapters") for s in listed] == [None, [{"name": "red", "scale": 1.0}], [{"name": "blue", "scale": 0.5}],
                                                  [{"name": "red", "scale": 1.0}, {"name": "blue", "scale": -0.25}]], listed


def sessions_come_back_to_their_adapters():
    for name, fields in (("way0", {"model": "red"}), ("way1", {"model": "blue"}), ("way1", {"adapters": []}), ("way2", {"adapters": ["blue", "red"]}),
                         ("way2", {"adapters": [{"name": "blue", "scale": 0.25}]})):
        status, _, got = restore(name, **fields)
        assert status == 400 and got["error"]["param"] == "adapters", (name, fields, got)
    for i, (model, fields) in enumerate(WAYS):
        other = WAYS[(i + 1) % len(WAYS)]
        assert long_text(*other)[1] == 0 or i == len(WAYS) - 1  # what was restored serves no other
        status, _, got = restore(f"way{i}", **({"model": model, **fields} if i % 2 else {}))
        assert status == 200 and got["restored"], got
        text, cached, prompt = long_text(model, fields)
        assert cached > 64, (i, cached, prompt)
        print(text)


def of_several_models_each_has_its_own():
    names = [m["id"] for m in call(url, "/v1/models")[2]["data"]]
    assert names == ["one", "two", "red"], names
    assert ask("red")[0] == ask("two", adapters=["red"])[0] != ask("two")[0] == ask("one")[0]
    refused(400, "adapters", model="one", adapters=["red"])
    refused(404, "model", model="three")


def a_key_uses_what_it_names():
    def status(model, **fields):
        return call(url, "/v1/completions", {"model": model, "prompt": "x", "max_tokens": 1, **fields},
                    [("Authorization", "Bearer " + sys.argv[3])])[0]
    assert status("red") == 200 and status("kermes-tiny") == 403 and status("blue") == 403
    assert status("red", adapters=["blue"]) == 403 and status("red", adapters=[]) == 403
    listed = call(url, "/v1/models", headers=[("Authorization", "Bearer " + sys.argv[3])])[2]["data"]
    assert [m["id"] for m in listed] == ["red"]


if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    sys.exit()
url = sys.argv[1]
if sys.argv[2] == "one":
    each_is_a_model_of_its_own()
    bad_ones_are_refused_by_name()
    vectors_are_of_the_adapter_that_was_asked_for()
    what_one_has_read_serves_no_other()
    a_mixed_batch_gives_each_its_own()
elif sys.argv[2] == "shelf":
    what_leaves_the_cache_comes_back_to_its_own_adapters()
elif sys.argv[2] == "save":
    sessions_are_saved_with_their_adapters()
elif sys.argv[2] == "restore":
    sessions_come_back_to_their_adapters()
elif sys.argv[2] == "several":
    of_several_models_each_has_its_own()
else:
    a_key_uses_what_it_names()
