"""Sessions that clients save by name. Arguments: the server, which part, and keys."""
import sys

from client import call

url, part, keys = sys.argv[1], sys.argv[2], sys.argv[3:]
LONG = "One day a little girl named Lily went to the park with her mom and she saw a big dog and a small bird in a tree"
TALK = [{"role": "user", "content": LONG}]


def head(i=0):
    return [("Authorization", "Bearer " + keys[i])] if keys else []


def save(name, i=0, **fields):
    return call(url, "/v1/sessions/save", {"session": name, "prompt": LONG, **fields}, head(i))


def restore(name, i=0, **fields):
    return call(url, "/v1/sessions/restore", {"session": name, **fields}, head(i))


def names(i=0):
    status, _, got = call(url, "/v1/sessions", headers=head(i))
    assert status == 200, got
    return [s["session"] for s in got["data"]]


def ask(prompt=LONG, i=0):
    got = call(url, "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0}, head(i))[2]
    return got["choices"][0]["text"], got["usage"]["prompt_tokens_details"]["cached_tokens"], got["usage"]["prompt_tokens"]


def delete(name, i=0):
    return call(url, "/v1/sessions/" + name, headers=head(i), method="DELETE")


def saved_and_listed():
    assert names() == []
    status, _, got = save("trip.1")
    assert status == 200 and got["saved"] and got["tokens"] == ask()[2], got
    status, _, talk = save("talk", prompt=None, messages=TALK)
    assert status == 200 and talk["tokens"] > got["tokens"], talk
    assert save("trip.1")[0] == 200  # again: it is written anew
    assert names() == ["talk", "trip.1"]
    one = call(url, "/v1/sessions/trip.1", headers=head())[2]
    assert one["tokens"] == got["tokens"] and one["bytes"] > 1000 and one["model"] == "kermes-tiny", one
    assert save("gone")[0] == 200 and delete("gone")[2]["deleted"] and "gone" not in names()
    assert delete("gone")[0] == restore("gone")[0] == call(url, "/v1/sessions/gone", headers=head())[0] == 404


def bad_ones_are_refused():
    for name in ("", ".", "..", "../x", "a/b", ".hidden", "x" * 65, "a b", "é", 7, None, ["x"]):
        for way in (save, restore):
            status, _, got = way(name)
            assert status == 400 and got["error"]["param"] == "session", (name, got)
    assert save("x", prompt=None)[0] == 400 and save("x", prompt=7)[0] == 400 and save("x", prompt=None, messages=[])[0] == 400
    assert save("x", prompt=LONG * 50)[0] == 400  # beyond the context
    assert call(url, "/v1/sessions/save", b"{", head())[0] == 400
    for path in ("/v1/sessions/..%2F..%2Fkeys", "/v1/sessions/" + "x" * 300, "/v1/sessions/%2e%2e"):
        for method in ("GET", "DELETE"):
            assert call(url, path, headers=head(), method=method)[0] == 404, path
    assert "x" not in names()


def restored_after_a_restart():
    """A new server has read nothing; what is restored is found by the next request, and changes no text."""
    assert names() == ["talk", "trip.1"]
    status, _, got = restore("trip.1")
    assert status == 200 and got["restored"] and got["tokens"] > 20, got
    text, cached, prompt = ask()
    assert cached == prompt - 1 == got["tokens"] - 1, (cached, prompt, got)
    assert restore("trip.1")[0] == restore("talk")[0] == 200
    more = ask(LONG + " and then")
    assert more[1] >= got["tokens"] - 1, more
    print(text)


def damaged_ones_are_refused():
    status, _, got = restore("trip.1")
    assert status == 400 and names() == ["talk", "trip.1"], got
    assert restore("talk")[0] == 200 and ask()[0]


def each_key_has_its_own():
    assert save("mine", 0)[0] == 200
    assert names(0) == ["mine"] and names(1) == []
    assert restore("mine", 1)[0] == delete("mine", 1)[0] == 404
    assert restore("mine", 0)[0] == 200 and ask(i=0)[1] > 0 and ask(i=1)[1] == 0
    assert save("mine", 1)[0] == 200 and delete("mine", 0)[0] == 200 and names(1) == ["mine"]


if part == "save":
    saved_and_listed()
    bad_ones_are_refused()
elif part == "plain":
    print(ask()[0])
elif part == "none":
    assert save("x")[0] == restore("x")[0] == call(url, "/v1/sessions")[0] == 501
else:
    {"restore": restored_after_a_restart, "damaged": damaged_ones_are_refused, "keys": each_key_has_its_own}[part]()
