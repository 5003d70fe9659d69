"""What goes wrong around a server hurts only the requests it belongs to. Arguments: the server, a model file that
it uses and that may be broken, how many connections to open; or the server and "lost": one whose device fails soon."""
import os
import resource
import sys
import threading

from client import Client, call, events

url = sys.argv[1]


def streams_go_on_where_a_device_is_lost():
    """Four answers under way while it happens; the same ones again afterwards."""
    def text(i, into):
        body = {"messages": [{"role": "user", "content": "sea " * (1 + i)}], "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}
        status, _, data = call(url, "/v1/chat/completions", body)
        assert status == 200, data
        choices = [c for e in events(data) for c in e["choices"]]
        into[i] = "".join(c["delta"].get("content") or "" for c in choices), choices[-1]["finish_reason"]
    during, after = [None] * 4, [None] * 4
    for into in (during, after):
        threads = [threading.Thread(target=text, args=(i, into)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert during == after and all(t and t[1] == "length" for t in after), (during, after)


if sys.argv[2] == "lost":
    streams_go_on_where_a_device_is_lost()
    sys.exit()
model, many = sys.argv[2], int(sys.argv[3])
plain = {"prompt": "The sea is", "max_tokens": 6, "temperature": 0}


def answer():
    status, _, body = call(url, "/v1/completions", plain)
    assert status == 200, (status, body)
    return body["choices"][0]["text"]


expected = answer()

# Schemas that cannot be met, or are none; grammars that are none; a template that fails: 400 with a reason.
for bad in ({"json_schema": {"type": 5}}, {"json_schema": {"type": "integer", "minimum": 5, "maximum": 1}}, {"json_schema": {"enum": []}},
            {"grammar": "root ::= nothing"}, {"json_schema": {"$ref": "#/nowhere"}}):
    status, _, body = call(url, "/v1/completions", {**plain, **bad})
    assert status == 400 and body["error"]["message"], (bad, status, body)
for messages in ("Hi", [], [{"role": 5, "content": "a"}], [{"role": "user", "content": {"a": 1}}]):
    status, _, body = call(url, "/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert status == 400 and body["error"]["message"], (messages, status, body)
assert answer() == expected

# As many connections as there are descriptors for, all of them idle; the next request is answered, or refused.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
many = min(many, hard - 100)
idle = [Client(url) for _ in range(many)]
assert answer() == expected
for c in idle[::2]:
    c.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")  # and no more
assert answer() == expected
for c in idle:
    c.close()
print(f"{many} connections")

# The file goes away: it is mapped, and nobody notices. Cut short, it gives an error that says so, not wrong text, and
# the server goes on.
size = os.path.getsize(model)
os.rename(model, model + ".away")
assert answer() == expected
os.truncate(model + ".away", size // 2)
c = Client(url)
c.ask("POST", "/v1/completions", {**plain, "prompt": "Something else that was never read before"})
status, _, body = c.answer()
c.close()
assert status == 500 and b"changed while it was in use" in body, (status, body)
print("cut short:", status, body[:200])
assert call(url, "/health")[0] == 200
