"""The dialects of a running server. Each check is a function whose name says what it checks."""
import base64
import json
import os
import re
import struct
import sys
import threading
import time

from client import Client, call, events

url = sys.argv[1]
user = [{"role": "user", "content": "What is the sea?"}]
tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}, "required": ["at"], "additionalProperties": False}}}


def chat(**more):
    return call(url, "/v1/chat/completions", {"messages": user, "max_tokens": 12, "temperature": 0, **more})


def metric(name):
    data = call(url, "/metrics")[2].decode()
    return float(next(line.split()[1] for line in data.split("\n") if line.startswith(f"kermes_{name} ")))


def streams_say_what_whole_answers_say():
    status, _, whole = chat()
    assert status == 200 and whole["object"] == "chat.completion", whole
    text, usage = whole["choices"][0]["message"]["content"], whole["usage"]
    assert usage["completion_tokens"] <= 12 and usage["prompt_tokens"] > 4
    parts = events(chat(stream=True, stream_options={"include_usage": True})[2])
    streamed = "".join(p["choices"][0]["delta"].get("content", "") for p in parts if p["choices"])
    assert streamed == text, (streamed, text)
    assert parts[-1]["usage"]["completion_tokens"] == usage["completion_tokens"], parts[-1]
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert parts[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def seeds_decide_and_n_gives_several():
    wild = {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 5}
    same = [chat(**wild)[2]["choices"][0]["message"]["content"] for _ in range(2)]
    assert same[0] == same[1], same
    many = chat(**wild, n=3)[2]["choices"]
    assert len(many) == 3 and [c["index"] for c in many] == [0, 1, 2]
    assert many[0]["message"]["content"] == same[0]
    assert len({c["message"]["content"] for c in many}) > 1, many


def stops_biases_and_logprobs_are_heard():
    text = chat(max_tokens=20)[2]["choices"][0]["message"]["content"]
    word = next(w for w in text.split() if len(w) > 1)
    cut = chat(max_tokens=20, stop=word)[2]["choices"][0]
    assert cut["message"]["content"] == text[:text.index(word)] and cut["finish_reason"] == "stop", (text, cut)
    content = chat(logprobs=True, top_logprobs=3)[2]["choices"][0]["logprobs"]["content"]
    assert content and all(len(c["top_logprobs"]) == 3 for c in content)
    assert abs(content[0]["logprob"] - content[0]["top_logprobs"][0]["logprob"]) < 1e-4, content[0]
    first = call(url, "/tokenize", {"content": content[0]["token"]})[2]["tokens"]
    if len(first) == 1:
        other = chat(logit_bias={str(first[0]): -100}, logprobs=True)[2]["choices"][0]["logprobs"]["content"]
        assert other[0]["token"] != content[0]["token"]


def schemas_make_valid_json():
    schema = {"type": "object", "properties": {"sea": {"type": "integer", "minimum": 0, "maximum": 9},
                                               "ok": {"type": "boolean"}}, "required": ["sea", "ok"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for stream in (False, True):
        answer = chat(response_format=form, max_tokens=600, temperature=1, seed=3, stream=stream)
        text = ("".join(p["choices"][0]["delta"].get("content", "") for p in events(answer[2])) if stream
                else answer[2]["choices"][0]["message"]["content"])
        got = json.loads(text)
        assert isinstance(got["sea"], int) and isinstance(got["ok"], bool), text
    status, _, body = chat(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}})
    assert status == 400 and body["error"]["message"], body
    assert chat(grammar="root ::= \"yes\" | \"no\"")[2]["choices"][0]["message"]["content"] in ("yes", "no")
    assert chat(grammar="root ::= (")[0] == 400


def calls_come_one_at_a_time_where_that_is_asked_for():
    one = r'<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"%s\"}}\n</tool_call>'
    fields = {"tools": [tool], "grammar": 'root ::= "' + one % "sea" + r"\n" + one % "sky" + '"', "max_tokens": 400}

    def places(more, stream=False):
        got = chat(**fields, **more, stream=stream)[2]
        if not stream:
            choice = got["choices"][0]
            return [json.loads(u["function"]["arguments"])["at"] for u in choice["message"]["tool_calls"]], choice["finish_reason"]
        choices = [c for e in events(got) for c in e["choices"]]
        uses = [u for c in choices for u in c["delta"].get("tool_calls", [])]
        texts = ["".join(u["function"].get("arguments", "") for u in uses if u["index"] == i) for i in sorted({u["index"] for u in uses})]
        return [json.loads(t)["at"] for t in texts], choices[-1]["finish_reason"]
    for stream in (False, True):
        assert places({}, stream) == (["sea", "sky"], "tool_calls"), places({}, stream)
        assert places({"parallel_tool_calls": False}, stream) == (["sea"], "tool_calls")
    named = {"name": "look", "input_schema": tool["function"]["parameters"]}
    body = {"messages": user, **fields, "tools": [named], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    got = call(url, "/v1/messages", body)[2]
    assert [b["input"]["at"] for b in got["content"] if b["type"] == "tool_use"] == ["sea"] and got["stop_reason"] == "tool_use", got
    assert chat(tools=[tool], parallel_tool_calls="no")[0] == 400


def a_tool_that_is_required_is_called():
    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        whole = chat(tools=[tool], tool_choice=choice, max_tokens=600)[2]["choices"][0]
        uses = whole["message"]["tool_calls"]
        assert whole["finish_reason"] == "tool_calls" and uses[0]["function"]["name"] == "look", whole
        assert json.loads(uses[0]["function"]["arguments"])["at"] in ("sea", "sky")
    parts = events(chat(tools=[tool], tool_choice="required", max_tokens=600, stream=True)[2])
    uses = [u for p in parts for c in p["choices"] for u in c["delta"].get("tool_calls", [])]
    assert uses[0]["function"]["name"] == "look" and uses[0]["id"]
    assert json.loads("".join(u["function"].get("arguments", "") for u in uses))["at"] in ("sea", "sky")
    assert chat(tools=[tool], tool_choice={"type": "function", "function": {"name": "no"}})[0] == 400
    named = {"name": "look", "input_schema": tool["function"]["parameters"]}
    body = {"messages": user, "max_tokens": 600, "tools": [named], "tool_choice": {"type": "any"}}
    block = call(url, "/v1/messages", body)[2]["content"][-1]
    assert block["type"] == "tool_use" and block["input"]["at"] in ("sea", "sky"), block


def completions_go_on_with_texts_and_tokens():
    ask = {"prompt": ["The sea", "The sky"], "max_tokens": 6, "temperature": 0, "logprobs": 2}
    both = call(url, "/v1/completions", ask)[2]["choices"]
    assert len(both) == 2 and len(both[0]["logprobs"]["tokens"]) == len(both[0]["logprobs"]["token_logprobs"])
    ids = call(url, "/tokenize", {"content": "The sea", "add_special": True})[2]["tokens"]
    again = call(url, "/v1/completions", {**ask, "prompt": ids, "logprobs": None})[2]["choices"][0]
    assert again["text"] == both[0]["text"]
    echo = call(url, "/v1/completions", {**ask, "prompt": "The sea", "echo": True})[2]["choices"][0]["text"]
    assert echo == "The sea" + both[0]["text"]
    parts = events(call(url, "/v1/completions", {**ask, "prompt": "The sea", "stream": True})[2])
    assert "".join(p["choices"][0]["text"] for p in parts) == both[0]["text"]


def anthropic_streams_blocks():
    body = {"messages": user, "system": "Be brief.", "max_tokens": 12, "temperature": 0}
    whole = call(url, "/v1/messages", body)[2]
    assert whole["type"] == "message" and whole["stop_reason"] in ("max_tokens", "end_turn"), whole
    parts = events(call(url, "/v1/messages", {**body, "stream": True})[2])
    kinds = [p["type"] for p in parts]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"] and kinds[-1] == "message_stop", kinds
    text = "".join(p["delta"]["text"] for p in parts if p["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert next(p for p in parts if p["type"] == "message_delta")["usage"]["output_tokens"] > 0
    counted = call(url, "/v1/messages/count_tokens", {"messages": user, "system": "Be brief."})[2]
    assert counted["input_tokens"] == whole["usage"]["input_tokens"]
    status, _, bad = call(url, "/v1/messages", {"messages": user})
    assert status == 400 and bad["error"]["type"] == "invalid_request_error", bad


def ollama_streams_lines():
    body = {"messages": user, "options": {"temperature": 0, "num_predict": 12}}
    lines = [json.loads(line) for line in call(url, "/api/chat", body)[2].decode().split("\n") if line]
    whole = call(url, "/api/chat", {**body, "stream": False})[2]
    assert "".join(l["message"]["content"] for l in lines) == whole["message"]["content"]
    assert lines[-1]["done"] and lines[-1]["eval_count"] == whole["eval_count"] > 0, lines[-1]
    assert call(url, "/api/generate", {"prompt": "Hm", "stream": False, "options": {"num_predict": 3}})[2]["response"] is not None
    assert call(url, "/api/tags")[2]["models"][0]["name"] == call(url, "/v1/models")[2]["data"][0]["id"]
    assert call(url, "/api/show", {"model": "x"})[2]["model_info"] and call(url, "/api/version")[2]["version"]


def texts_have_embeddings():
    texts = ["The sea is wide.", "A cat", "The sea is wide."]
    status, _, got = call(url, "/v1/embeddings", {"model": "x", "input": texts})
    assert status == 200 and [d["index"] for d in got["data"]] == [0, 1, 2], got
    a, b, c = (d["embedding"] for d in got["data"])
    assert len(a) == 128 and abs(sum(v * v for v in a) - 1) < 1e-4 and max(abs(x - y) for x, y in zip(a, c)) < 1e-4 and a != b
    packed = call(url, "/v1/embeddings", {"input": texts[0], "encoding_format": "base64"})[2]["data"][0]["embedding"]
    floats = struct.unpack("<128f", base64.b64decode(packed))
    assert max(abs(x - y) for x, y in zip(a, floats)) < 1e-4
    short = call(url, "/v1/embeddings", {"input": texts[0], "dimensions": 8})[2]["data"][0]["embedding"]
    assert len(short) == 8 and abs(sum(v * v for v in short) - 1) < 1e-4
    ids = call(url, "/tokenize", {"content": texts[0], "add_special": True})[2]["tokens"]
    by_ids = call(url, "/v1/embeddings", {"input": [ids, ids]})[2]
    assert len(by_ids["data"]) == 2 and by_ids["usage"]["prompt_tokens"] == 2 * len(ids)
    assert max(abs(x - y) for x, y in zip(a, by_ids["data"][1]["embedding"])) < 1e-4
    many = call(url, "/api/embed", {"model": "x", "input": texts})[2]
    assert len(many["embeddings"]) == 3 and many["prompt_eval_count"] == got["usage"]["prompt_tokens"]
    assert len(call(url, "/api/embeddings", {"model": "x", "prompt": texts[0]})[2]["embedding"]) == 128
    assert len(call(url, "/api/embed", {"input": "sea " * 3000})[2]["embeddings"]) == 1  # cut, as Ollama does
    for body, param in [({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"), ({"input": [""]}, "input"), ({"input": [{}]}, "input"),
                        ({"input": [-1]}, "input"), ({"input": "x", "dimensions": 0}, "dimensions"), ({"input": "x", "dimensions": 129}, "dimensions"),
                        ({"input": "x", "encoding_format": "int8"}, "encoding_format"), ({"input": "sea " * 3000}, "input"),
                        ({"input": ["x"] * 2049}, "input")]:
        status, _, bad = call(url, "/v1/embeddings", body)
        assert status == 400 and bad["error"]["param"] == param, (str(body)[:80], status, bad)
    status, _, why = call(url, "/v1/rerank", {"query": "sea", "documents": texts})
    assert status == 501 and "ranking head" in why["error"]["message"], why
    assert call(url, "/v1/rerank", {"documents": texts})[0] == 400


def users_cannot_write_control_tokens():
    def count(text):
        return call(url, "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]})[2]["input_tokens"]
    prompt = call(url, "/apply-template", {"messages": user})[2]["prompt"]
    plain = call(url, "/tokenize", {"content": prompt, "with_pieces": True})[2]
    special = call(url, "/tokenize", {"content": prompt, "with_pieces": True, "parse_special": True})[2]
    control = [t["piece"] for t in special["tokens"] if t["id"] not in {p["id"] for p in plain["tokens"]}]
    assert control, "the template has no control tokens"
    for text in control:
        assert count(text) > count("") + 1, text  # letters, not one token
        assert count(text + text) > count(text) + 1


def bad_requests_get_a_reason():
    cases = [b"", b"{", b"[]", b"null", b'{"messages":"x"}', b'{"messages":[]}', b'{"messages":[{}]}',
             b'{"messages":[{"role":"user","content":5}]}', b'{"messages":[{"role":"user","content":"\xff"}]}',
             b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}', b"[" * 5000, b'{"messages":' + b"[" * 3000]
    for body in cases:
        status, _, answer = call(url, "/v1/chat/completions", body)
        assert status == 400 and answer["error"]["message"], (body[:60], status, answer)
    for field, value in [("temperature", -1), ("temperature", "hot"), ("top_p", 2), ("n", 0), ("n", 1000), ("max_tokens", 0),
                         ("max_tokens", 1.5), ("stop", 5), ("stop", ["a"] * 100), ("logit_bias", {"x": 1}),
                         ("logit_bias", {"99999999": 1}), ("top_logprobs", 50), ("stream", "yes"), ("tools", {}), ("tools", [{}]),
                         ("response_format", {"type": "xml"}), ("seed", "x"), ("tool_choice", "some")]:
        more = {"tools": [tool]} if field == "tool_choice" else {}
        status, _, answer = chat(**{field: value}, **more)
        assert status == 400 and answer["error"]["param"] == field, (field, value, status, answer)
    long = [{"role": "user", "content": "sea " * 60000}]
    status, _, answer = call(url, "/v1/chat/completions", {"messages": long})
    assert status == 400 and "context" in answer["error"]["message"], answer
    assert call(url, "/nothing")[0] == 404 and call(url, "/v1/chat/completions")[0] == 405
    assert call(url, "/detokenize", {"tokens": [-1]})[0] == 400
    assert chat()[0] == 200  # and all is well


def clients_that_leave_free_their_places():
    before = metric("answers_cancelled_total")
    long = {"messages": user, "max_tokens": 100000, "stream": True, "ignore_eos": True}
    several = []
    for i in range(6):  # four run, two wait
        c = Client(url)
        c.ask("POST", "/v1/chat/completions", {**long, "stream": i % 2 == 0})
        several.append(c)
    several[0].head()
    next(several[0].chunks())
    began = time.time()
    for c in several:
        c.close()
    while metric("requests_running") + metric("requests_queued") > 0:
        assert time.time() - began < 20, "places are not freed"
        time.sleep(0.01)
    assert metric("answers_cancelled_total") + metric("answers_finished_total") > before
    assert chat()[0] == 200


def a_full_queue_is_told_with_429():
    long = {"messages": user, "max_tokens": 100000, "ignore_eos": True}
    several = [Client(url) for _ in range(16)]
    for c in several:
        c.ask("POST", "/v1/chat/completions", long)
    answers = []

    def wait(c):
        try:
            answers.append(c.head())
        except (OSError, ValueError, IndexError):
            pass
    threads = [threading.Thread(target=wait, args=(c,)) for c in several]
    for t in threads:
        t.start()
    began = time.time()
    while not any(status == 429 for status, _ in answers) and time.time() - began < 30:
        time.sleep(0.02)
    refused = [head for status, head in answers if status == 429]
    for c in several:
        c.socket.shutdown(2)
    for t in threads:
        t.join()
    began = time.time()
    while metric("requests_running") + metric("requests_queued") > 0:
        assert time.time() - began < 20, "places are not freed"
        time.sleep(0.01)
    assert refused and all("retry-after" in head for head in refused), answers


def the_next_turn_reads_only_what_is_new():
    talk = [{"role": "user", "content": "Tell me about the sea and the sky. " * 8}]
    first = call(url, "/v1/chat/completions", {"messages": talk, "max_tokens": 8, "temperature": 0})[2]
    talk += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}, {"role": "user", "content": "And?"}]
    second = call(url, "/v1/chat/completions", {"messages": talk, "max_tokens": 8, "temperature": 0})[2]
    reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= first["usage"]["prompt_tokens"] - 8, (first["usage"], second["usage"])


def many_at_once_say_what_each_says_alone():
    asks = [{"prompt": f"The {word}", "max_tokens": 16, "temperature": 0} for word in ("sea", "sky", "cat", "sun", "day", "man")]
    alone = [call(url, "/v1/completions", a)[2]["choices"][0]["text"] for a in asks]
    together = [None] * len(asks)

    def one(i):
        together[i] = call(url, "/v1/completions", asks[i])[2]["choices"][0]["text"]
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone, (together, alone)


def pages_and_documents_are_there():
    status, head, page = call(url, "/")
    assert status == 200 and len(page) < 200000 and b"%NONCE%" not in page
    assert "default-src 'none'" in head["content-security-policy"] and "unsafe" not in head["content-security-policy"]
    assert b"http://" not in page.replace(b"http://www.w3.org", b"")
    assert call(url, "/status")[0] == 200 and call(url, "/status.json")[2]["model"]
    paths = call(url, "/openapi.json")[2]["paths"]
    assert set(paths["/v1/responses/{id}"]) == {"get", "delete"}
    # Everything that answers JSON is in the document, and nothing else.
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/serve/api/router.c")) as f:
        routes = {(m[1].lower(), m[2].replace("...", "{id}")) for m in re.finditer(r'^    {"(\w+)", "(/[^"]*)", TO_', f.read(), re.M)}
    others = {"/", "/status", "/web/", "/web/{id}", "/metrics", "/openapi.json"}
    told = {(method, path) for path, methods in paths.items() for method in methods}
    assert told - {("get", "/v1/responses/{id}/input_items")} == {r for r in routes if r[1] not in others}, told ^ routes
    assert call(url, "/health")[2]["status"] == "ok" and call(url, "/ready")[0] == 200


def metrics_are_as_prometheus_reads_them():
    seen = {}
    for line in call(url, "/metrics")[2].decode().rstrip("\n").split("\n"):
        if line.startswith("# "):
            kind, name = line.split()[1:3]
            assert kind in ("HELP", "TYPE"), line
            seen.setdefault(name, set()).add(kind)
        else:
            name, value = line.rsplit(" ", 1)
            float(value)
            base = name.split("{")[0]
            for end in ("_bucket", "_sum", "_count"):
                if base.endswith(end) and base[:-len(end)] in seen:
                    base = base[:-len(end)]
            assert seen.get(base) == {"HELP", "TYPE"}, line
    assert "kermes_first_token_seconds" in seen


def memory_is_told_by_model_and_device():
    values = dict(line.rsplit(" ", 1) for line in call(url, "/metrics")[2].decode().split("\n") if line and line[0] != "#")

    def value(name):
        return float(values["kermes_" + name])
    model, device = '{model="kermes-tiny"}', '{device="cpu"}'
    assert 800_000 < value("model_weights_bytes" + model) < 2_000_000
    # 4 layers of 2 heads of 32 numbers of 2 bytes, keys and values, for the 64 tokens of a page
    assert value("kv_cache_bytes" + model) == value("pages") * 64 * 4 * 2 * 32 * 2 * 2
    assert value("kv_cache_used_bytes" + model) == (value("pages") - value("pages_free")) * 64 * 4 * 2 * 32 * 2 * 2 > 0
    assert value("device_memory_bytes" + device) > value("device_memory_used_bytes" + device) > 0


for name, check in list(globals().items()):
    if callable(check) and getattr(check, "__module__", "") == "__main__" and "_" in name:
        began = time.time()
        check()
        print(f"{time.time() - began:6.2f} s  {name.replace('_', ' ')}")
