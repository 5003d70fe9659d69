"""Training from Python: a run that ends, is told of, stops, goes on, and refuses what is wrong."""
import os

import pytest

import kermes

SMALL = dict(tokenizer="bytes", layers=1, heads=2, dim=16, context=32, batch=2, steps=6, log_every=2,
             eval_every=0, device="cpu", threads=1)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    return path


def test_a_run_trains_and_tells(book, tmp_path):
    told, events = [], []
    r = kermes.train(data=book, out=tmp_path / "run", on_step=told.append,
                     on_event=lambda name, status, text: events.append(name), **SMALL)
    assert r.end == "done" and r.status.step == 6 and r.parameters > 1000
    assert [s.step for s in told] == sorted({s.step for s in told}) and told[-1].step == 6
    assert told[-1].train_loss > 0
    assert "start" in events and events.count("step") >= 5
    assert os.path.isdir(tmp_path / "run" / "model")


def test_a_run_stops_and_goes_on(book, tmp_path):
    out = tmp_path / "run"
    first = kermes.train(data=book, out=out, on_step=lambda s: s.step < 2, **SMALL)
    assert first.end == "stopped" and first.status.step < 6
    again = kermes.train(out=out, resume=True, device="cpu", threads=1)
    assert again.end == "done" and again.status.step == 6
    with pytest.raises(ZeroDivisionError):
        kermes.train(data=book, out=tmp_path / "other", on_step=lambda s: 1 // 0, **SMALL)


@pytest.mark.parametrize("settings, error", [
    (dict(stepz=3), TypeError),
    (dict(steps=-1), ValueError),
    (dict(steps="ten"), TypeError),
    (dict(steps=2**80), (OverflowError, ValueError)),
    (dict(lr=float("nan")), kermes.Error),
    (dict(data="/no/such.txt"), kermes.Error),
    (dict(data=["a.txt"] * 40), ValueError),
    (dict(out="a\0b"), ValueError),
    (dict(out=None), kermes.Error),
    (dict(tokenizer=5), TypeError),
    (dict(tokenizer="bpe:many"), kermes.Error),
    (dict(device="moon"), kermes.Error),
    (dict(heads=3), kermes.Error),
])
def test_what_is_wrong_raises(book, tmp_path, settings, error):
    with pytest.raises(error) as e:
        kermes.train(**{**SMALL, "data": book, "out": tmp_path / "run", **settings})
    assert str(e.value)
