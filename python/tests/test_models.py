"""Models: tokens, chats, streams, schemas, sessions, batches, threads, Ctrl-C and bad input."""
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kermes
from conftest import ROOT

TINY = os.path.join(ROOT, "models", "kermes-tiny.gguf")


@pytest.fixture(scope="module")
def model():
    with kermes.Model(TINY, device="cpu", threads=1) as m:
        yield m


def test_a_model_says_what_it_is(model):
    i = model.info
    assert i.architecture == "llama" and i.parameters > 1000 and i.vocab > 100 and i.has_template
    assert model.metadata
    assert "kermes" in repr(model).lower()


def test_text_becomes_tokens_and_text_again(model):
    for text in ("What is Kermes?", "", "naïve café ☕", "a\0b"):
        ids = model.tokenize(text)
        assert ids.dtype == np.int32
        assert model.detokenize(ids) == text
        assert b"".join(model.piece(int(i)) for i in ids).decode().strip() == text.strip()
    assert len(model.tokenize("x" * 100_000)) > 100
    special = model.tokenize("<|im_end|>", parse_special=True)
    assert len(special) < len(model.tokenize("<|im_end|>"))


def test_a_chat_is_answered_as_it_was_taught(model):
    answer = model.chat("What is the capital of France?", temperature=0, max_tokens=60)
    assert "Paris" in answer
    assert isinstance(answer, str) and answer.end == "end"
    assert answer.stats.tokens >= len(answer.tokens) > 0
    listed = model.chat([{"role": "user", "content": "What is the capital of France?"}],
                        temperature=0, max_tokens=60)
    assert listed == answer


def test_a_stream_gives_the_same_text_in_pieces(model):
    whole = model.chat("Who are you?", temperature=0, max_tokens=60)
    stream = model.chat("Who are you?", temperature=0, max_tokens=60, stream=True)
    pieces = list(stream)
    assert len(pieces) > 3 and "".join(pieces) == whole == stream.text
    assert stream.text.end == "end" and list(stream) == []
    early = model.chat("Who are you?", temperature=0, stream=True)
    assert whole.startswith(next(early))
    early.close()
    assert list(early) == []


def test_a_schema_gives_a_dict(model):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                               "age": {"type": "integer", "maximum": 99,
                                                       "minimum": 0}},
              "required": ["name", "age"], "additionalProperties": False}
    for given in (schema, json.dumps(schema)):
        person = model.generate("A person:", schema=given, seed=3, max_tokens=200)
        assert set(person) == {"name", "age"} and isinstance(person["age"], int)

    class Person:  # as pydantic's models do
        @classmethod
        def model_json_schema(cls):
            return schema
    assert set(model.chat("A person?", schema=Person, seed=3, max_tokens=200)) == {"name", "age"}
    with pytest.raises(kermes.FormatError, match="max_tokens"):
        model.generate("A person:", schema=schema, max_tokens=2)
    assert model.generate("x", grammar='root ::= "yes" | "no"') in ("yes", "no")


def test_settings_change_what_comes(model):
    a = [model.generate("The", seed=s, temperature=1.5, max_tokens=12) for s in (1, 1, 2)]
    assert a[0] == a[1] != a[2]
    assert model.generate("The", max_tokens=3, temperature=0).end == "tokens"
    whole = model.generate("What is", max_tokens=20, temperature=0)
    stop = whole[5:8]
    cut = model.generate("What is", max_tokens=20, temperature=0, stop=[stop])
    assert cut.end == "stop" and stop not in cut and whole.startswith(cut)
    first = model.generate("What is", max_tokens=1, temperature=0).tokens[0]
    other = model.generate("What is", max_tokens=1, temperature=0,
                           logit_bias={first: float("-inf")}).tokens[0]
    assert other != first


def test_logprobs_are_those_of_the_logits(model):
    text = model.generate("What is", max_tokens=4, temperature=0, logprobs=3)
    assert len(text.logprobs) == len(text.tokens) == 4
    s = model.session()
    s.read(model.tokenize("What is", special=True))
    logits = s.logits.astype(np.float64)
    wanted = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    first = text.logprobs[0]
    assert first.id == int(logits.argmax()) and first.top[0][0] == first.id and len(first.top) == 3
    assert first.logprob == pytest.approx(wanted[first.id], abs=1e-2)


def test_a_session_remembers_forks_rewinds_and_comes_back(model, tmp_path):
    s = model.session()
    s.chat("What is 3 + 4?", temperature=0, max_tokens=40)
    assert [m["role"] for m in s.messages] == ["user", "assistant"]
    held = len(s)
    assert held > 0 and len(s.tokens) == held
    again = s.chat("Who are you?", temperature=0, max_tokens=40)
    assert again.stats.reused > 0 and len(s.messages) == 4
    other = s.fork()
    assert len(other) == len(s) and other.messages == s.messages
    s.rewind(5)
    assert len(s) == 5 and len(other) > 5
    other.save(tmp_path / "s")
    back = model.session()
    back.restore(tmp_path / "s")
    np.testing.assert_array_equal(back.tokens, other.tokens)
    for x in (s, other, back):
        x.close()


def test_a_session_that_goes_on_drops_its_stream(model):
    s = model.session()
    stream = s.generate("What", stream=True, max_tokens=50)
    next(stream)
    s.generate("Who", max_tokens=2)
    with pytest.raises(kermes.StateError):
        list(stream)


def test_a_callback_may_call_back_in_or_raise(model):
    s, seen = model.session(), []
    s.generate("What is", max_tokens=2, on_prompt=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1][0] == seen[-1][1]
    with pytest.raises(kermes.Error):
        s.generate("Who is", max_tokens=2, on_prompt=lambda *_: s.rewind(0))
    with pytest.raises(ZeroDivisionError):
        s.generate("How is", max_tokens=2, on_prompt=lambda *_: 1 // 0)
    assert s.generate("What is", max_tokens=2).end == "tokens"


def test_a_batch_gives_what_each_prompt_gives(model):
    prompts = ["What is the capital of France?", "Who are you?", "What is 3 + 4?"] * 3
    together = model.batch(prompts, chat=True, temperature=0, max_tokens=40, sequences=4)
    apart = [model.chat(p, temperature=0, max_tokens=40) for p in prompts[:3]]
    assert "Paris" in together[0]
    assert together[:3] == apart and together[3:6] == apart
    assert all(t.end == "end" for t in together)
    assert model.batch([]) == []
    assert len(model.batch(["a", model.tokenize("b", special=True)], max_tokens=2)) == 2


def test_hidden_states_are_rows(model):
    if not model.info.can_embed:
        pytest.skip("this model has none")
    x = model.embed("What is Kermes?")
    assert x.shape == (len(model.tokenize("What is Kermes?", special=True)), model.info.dim)
    assert np.isfinite(x).all() and x.std() > 0


def test_threads_share_a_model(model):
    want = model.chat("Who are you?", temperature=0, max_tokens=30)
    got, errors = [], []

    def work():
        try:
            for _ in range(3):
                got.append(model.chat("Who are you?", temperature=0, max_tokens=30))
        except Exception as e:
            errors.append(e)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and got == [want] * 12


def test_a_stream_is_cancelled_by_another_thread(model):
    # At several moments: also while a shifted context is read again, which is most of the time here.
    for i in range(8):
        stream = model.generate("Once", stream=True, temperature=1.5, past_end=True, shift=True)
        threading.Timer(0.1 + 0.007 * i, stream.cancel).start()
        assert sum(1 for _ in stream) > 0
        assert stream.text.end == "stopped"


def test_a_closed_model_raises_and_its_sessions_go_on():
    m = kermes.Model(TINY, device="cpu", threads=1)
    s = m.session()
    s.read("What is")
    m.close()
    assert m.closed and repr(m)
    for call in (lambda: m.info, lambda: m.tokenize("a"), lambda: m.generate("a"),
                 lambda: m.batch(["a"]), lambda: m.session(), lambda: m.embed("a")):
        with pytest.raises(kermes.StateError, match="closed"):
            call()
    assert len(s) > 0
    s.close()
    with pytest.raises(kermes.StateError, match="closed"):
        s.rewind(0)
    m.close()


def test_a_model_opens_from_memory_and_from_an_open_file():
    with open(TINY, "rb") as f:
        with kermes.Model(f, tokenizer_only=True) as m:
            assert len(m.tokenize("Hello"))
        f.seek(0)
        data = f.read()
    with kermes.Model(data, device="cpu", threads=1) as m:
        assert "Paris" in m.chat("What is the capital of France?", temperature=0, max_tokens=40)
    told = []
    kermes.Model(TINY, device="cpu", progress=lambda done, total: told.append((done, total))).close()
    with pytest.raises(ZeroDivisionError):
        kermes.Model(TINY, device="cpu", progress=lambda *_: 1 // 0)


CTRL_C = """
import sys, time, kermes
m = kermes.Model({path!r}, device="cpu", threads=1)
{prepare}
print("ready", flush=True)
try:
    {work}
except KeyboardInterrupt:
    print("interrupted", time.monotonic(), flush=True)
print(m.generate("a", max_tokens=1).end)
"""


@pytest.mark.parametrize("prepare, work", [
    ("", "m.generate('Once', temperature=1.5, past_end=True, shift=True)"),
    ("", "[None for _ in m.generate('Once', temperature=1.5, past_end=True, shift=True, stream=True)]"),
    ("", "\n    while True: m.batch(['Once'] * 3, temperature=1.5, past_end=True)"),
    ("text = 'word ' * 60", "\n    while True: m.generate(text, max_tokens=1)"),
])
def test_ctrl_c_ends_a_generation_at_once(prepare, work):
    code = CTRL_C.format(path=TINY, prepare=prepare, work=work)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
                          ) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.3)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            word, when = child.stdout.readline().split()
            assert word == "interrupted"
            # 0.1 s is what a user notices; a busy machine may take longer to wake a thread.
            assert float(when) - sent < 0.1 * 5
            assert child.stdout.readline() == "tokens\n"  # the model is still good
            assert child.wait(20) == 0
        finally:
            child.kill()


def test_a_forked_child_gets_an_error_and_no_hang(child):
    out = child(f"""
import os, kermes
m = kermes.Model({TINY!r}, device="cpu")
pid = os.fork()
if pid == 0:
    try:
        m.generate("a")
        os._exit(1)
    except kermes.StateError as e:
        os._exit(7 if "fork" in str(e) else 8)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), m.generate("a", max_tokens=1).end)
""")
    assert out == "7 tokens\n"


def write_adapter(folder, model, seed, layer="o_proj", rank=4):
    """A LoRA of random numbers in PEFT's form."""
    dim, rng, header, data = model.info.dim, np.random.default_rng(seed), {}, b""
    for i in range(model.info.layers):
        for part, shape in (("lora_A", (rank, dim)), ("lora_B", (dim, rank))):
            v = (0.5 * rng.normal(size=shape)).astype("<f4").tobytes()
            header[f"base_model.model.model.layers.{i}.self_attn.{layer}.{part}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(v)]}
            data += v
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}))
    return folder


def test_adapters_are_chosen_by_each_generation(model, tmp_path):
    one, two = (write_adapter(tmp_path / n, model, i) for i, n in enumerate(("one", "two")))
    how = dict(temperature=0, max_tokens=12, past_end=True)
    plain = model.generate("Once upon", **how)
    with kermes.Model(TINY, device="cpu", threads=1,
                      adapters=[one, {"path": two, "name": "other", "scale": 0.5, "off": True}]) as m:
        assert [a["name"] for a in m.adapters] == ["one", "other"]
        first = m.generate("Once upon", **how)
        assert first != plain == m.generate("Once upon", adapters=[], **how)
        assert m.generate("Once upon", adapter="one", **how) == first
        other = m.generate("Once upon", adapter="other", **how)
        assert other not in (plain, first)
        assert m.generate("Once upon", adapter=("other", 0.5), **how) == other
        assert m.generate("Once upon", adapters=["one", ("other", 2.0)], **how) != first
        s = m.session()
        s.set_adapters(["other"])
        assert s.generate("Once upon", **how) == other
        s.set_adapters(None)
        assert s.generate("Once upon", **how) == first
        m.remove_adapter("one")
        assert m.generate("Once upon", **how) == plain
        m.add_adapter(one, name="again", off=True)
        assert m.generate("Once upon", adapter="again", **how) == first
        assert m.batch(["Once upon"] * 2, adapter="again", **how) == [first, first]


@pytest.mark.parametrize("call, error", [
    (lambda m: kermes.Model("/no/such/model.gguf"), FileNotFoundError),
    (lambda m: kermes.Model("a\0b"), ValueError),
    (lambda m: kermes.Model(__file__), kermes.Error),
    (lambda m: kermes.Model(b"GGUF" + b"\xff" * 64), kermes.Error),
    (lambda m: kermes.Model(bytearray(b"nothing")), kermes.Error),
    (lambda m: kermes.Model(TINY, device="moon"), kermes.Error),
    (lambda m: kermes.Model(TINY, context=-1), kermes.Error),
    (lambda m: kermes.Model(TINY, threads=2**40), OverflowError),
    (lambda m: kermes.Model(TINY, cache="i32"), kermes.Error),
    (lambda m: kermes.Model(TINY, adapters=["/no/such"]), kermes.Error),
    (lambda m: kermes.Model(7), TypeError),
    (lambda m: m.tokenize(None), TypeError),
    (lambda m: m.detokenize([10**6]), kermes.Error),
    (lambda m: m.detokenize([2**40]), ValueError),
    (lambda m: m.detokenize(["a"]), TypeError),
    (lambda m: m.piece(-1), ValueError),
    (lambda m: m.piece(2**40), OverflowError),
    (lambda m: m.generate(None), TypeError),
    (lambda m: m.generate({}), TypeError),
    (lambda m: m.generate("a", temprature=1), TypeError),
    (lambda m: m.generate("a", temperature="hot"), TypeError),
    (lambda m: m.generate("a", temperature=-1), kermes.Error),
    (lambda m: m.generate("a", temperature=float("nan")), kermes.Error),
    (lambda m: m.generate("a", top_k=2**70), OverflowError),
    (lambda m: m.generate("a", max_tokens=-5), kermes.Error),
    (lambda m: m.generate("a", logprobs=10**6), kermes.Error),
    (lambda m: m.generate("a", stop=[3]), TypeError),
    (lambda m: m.generate("a", stop="a\0"), ValueError),
    (lambda m: m.generate("a", grammar="root ::= ("), kermes.Error),
    (lambda m: m.generate("a", schema="{"), kermes.Error),
    (lambda m: m.generate("a", schema=5), TypeError),
    (lambda m: m.generate("a", logit_bias={10**8: 1.0}), kermes.Error),
    (lambda m: m.generate("a", adapters=["/no/such"]), kermes.Error),
    (lambda m: m.generate("a", adapter="nobody"), kermes.Error),
    (lambda m: m.generate("a", adapter="x", adapters=[]), TypeError),
    (lambda m: m.generate("a", adapter={"weight": 1}), TypeError),
    (lambda m: m.add_adapter("/no/such"), FileNotFoundError),
    (lambda m: m.remove_adapter("nobody"), kermes.Error),
    (lambda m: m.session().set_adapters(["nobody"]), kermes.Error),
    (lambda m: m.generate([10**6]), kermes.Error),
    (lambda m: m.generate("word " * 20000), kermes.Error),
    (lambda m: m.chat(["hello"]), ValueError),
    (lambda m: m.chat([{"role": "user", "content": float("nan")}]), ValueError),
    (lambda m: m.chat("hi", tools=[object()]), TypeError),
    (lambda m: m.render("hi", chat_template="{% if %}"), kermes.Error),
    (lambda m: m.batch("one"), TypeError),
    (lambda m: m.batch(["a"], sequences=-1), ValueError),
    (lambda m: m.batch([[10**6]]), kermes.Error),
    (lambda m: m.session().rewind(99), kermes.Error),
    (lambda m: m.session().rewind(-1), kermes.Error),
    (lambda m: m.session().restore(__file__), kermes.Error),
    (lambda m: m.session().restore("/no/such"), FileNotFoundError),
    (lambda m: m.session().read([10**6]), kermes.Error),
    (lambda m: m.embed([10**6]), kermes.Error),
])
def test_bad_input_raises_and_nothing_is_lost(model, call, error):
    with pytest.raises(error) as e:
        call(model)
    assert str(e.value)
    assert model.generate("a", max_tokens=1).end in ("tokens", "end")
