"""Several models behind one server. Arguments: the server, which part, and what that part needs."""
import os
import signal
import sys
import threading
import time

from client import Client, call

url, part, more = sys.argv[1], sys.argv[2], sys.argv[3:]
key = []


def ask(model, **fields):
    return call(url, "/v1/completions", {"model": model, "prompt": "The sea", "max_tokens": 4, "temperature": 0, **fields}, key)


def up():
    return sorted(m["name"] for m in call(url, "/api/ps", headers=key)[2]["models"])


def wait(what, seconds=60):
    end = time.time() + seconds
    while not what():
        assert time.time() < end, "waited in vain"
        time.sleep(0.02)


def memory_makes_models_go():
    names = [m["id"] for m in call(url, "/v1/models")[2]["data"]]
    assert names == ["blue", "gone", "red"], names
    assert [m["name"] for m in call(url, "/api/tags")[2]["models"]] == names and up() == []
    status, _, one = ask("red")
    assert status == 200 and one["model"] == "red" and up() == ["red"], one
    assert ask("red:latest")[0] == 200 and ask("RED.gguf")[0] == 200
    status, _, other = ask("blue")
    assert status == 200 and other["model"] == "blue" and other["choices"] == one["choices"]
    wait(lambda: up() == ["blue"])
    status, _, bad = ask("green")
    assert status == 404 and bad["error"]["param"] == "model" and "green" in bad["error"]["message"], bad
    assert call(url, "/v1/models/red")[2]["meta"]["loaded"] is False and call(url, "/v1/models/green")[0] == 404
    assert call(url, "/api/show", {"model": "green"})[0] == 404 and call(url, "/api/show", {"model": "red"})[0] == 200
    # Without a name the first one answers; other endpoints load as well.
    assert ask(None)[2]["model"] == "blue"
    assert call(url, "/tokenize", {"model": "red", "content": "The sea"})[2]["count"] > 0
    wait(lambda: up() == ["red"])


def a_model_whose_file_vanished_is_an_error_of_its_own():
    status, _, bad = ask("gone")
    assert status == 500 and "cannot be loaded" in bad["error"]["message"], bad
    assert ask("red")[0] == 200


def everybody_is_answered_in_the_end():
    """One model is busy all the time, and others still get their turn."""
    done = {"red": 0, "blue": 0}
    until = time.time() + 3

    def user(model):
        while time.time() < until or done[model] == 0:
            assert ask(model, max_tokens=60, ignore_eos=True)[0] == 200
            done[model] += 1
    threads = [threading.Thread(target=user, args=(m,)) for m in ("red", "red", "red", "blue")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert min(done.values()) > 0, done
    # A client that leaves while its model is on its way leaves nothing behind.
    for model in ("red", "blue") * 3:
        c = Client(url)
        c.ask("POST", "/v1/completions", {"model": model, "prompt": "x", "max_tokens": 50})
        c.close()
    assert ask("red")[0] == ask("blue")[0] == 200


def new_files_are_found_on_reload(server, folder):
    os.link(f"{folder}/red.gguf", f"{folder}/green.gguf")
    os.kill(server, signal.SIGHUP)
    wait(lambda: call(url, "/v1/models/green")[0] == 200)
    assert ask("green")[0] == 200


def idle_models_go(alice, bob):
    global key
    key = [("Authorization", "Bearer " + bob)]
    assert ask("red")[0] == ask("blue")[0] == 200
    wait(lambda: up() == [])
    assert ask("red", stream=True)[0] == 200
    # Ollama's way: nothing to say loads it, for as long as asked.
    loaded = call(url, "/api/generate", {"model": "blue", "keep_alive": "1h"}, key)[2]
    assert loaded["done"] and loaded["done_reason"] == "load", loaded
    wait(lambda: up() == ["blue"])
    time.sleep(1.5)
    assert up() == ["blue"]
    assert call(url, "/api/chat", {"model": "blue", "messages": [], "keep_alive": 0}, key)[2]["done_reason"] == "unload"
    wait(lambda: up() == [])
    assert call(url, "/api/generate", {"model": "blue", "keep_alive": "soon"}, key)[0] == 400
    # A key for one model sees and uses that one alone.
    key = [("Authorization", "Bearer " + alice)]
    assert [m["id"] for m in call(url, "/v1/models", headers=key)[2]["data"]] == ["red"]
    assert ask("red")[0] == 200 and ask("blue")[0] == 403


if part == "memory":
    memory_makes_models_go()
    a_model_whose_file_vanished_is_an_error_of_its_own()
    everybody_is_answered_in_the_end()
    new_files_are_found_on_reload(int(more[0]), more[1])
elif part == "time":
    idle_models_go(*more)
else:
    c = Client(url)
    c.ask("POST", "/v1/completions", {"model": "red", "prompt": "x", "max_tokens": 1})
