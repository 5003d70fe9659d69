"""Tensors: operators against NumPy, gradients, memory shared with NumPy, threads and bad input."""
import gc
import threading
import weakref

import numpy as np
import pytest

import kermes

RNG = np.random.default_rng(1)


def data(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_operators_agree_with_numpy():
    a, b = data(3, 4), np.abs(data(3, 4)) + 0.5
    x, y = kermes.tensor(a), kermes.tensor(b)
    for ours, theirs in [
            (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (y ** x, b ** a),
            (x + 2, a + 2), (2 + x, 2 + a), (x - 2, a - 2), (2 - x, 2 - a), (x * 3, a * 3),
            (3 * x, 3 * a), (x / 4, a / 4), (4 / y, 4 / b), (y ** 2, b ** 2), (2.0 ** x, 2.0 ** a),
            (-x, -a), (abs(x), abs(a)), (x @ y.T, a @ b.T), (a @ y.T, a @ b.T), (x @ b.T, a @ b.T),
            (a * y, a * b), (x + b[0], a + b[0]), (x + [1, 2, 3, 4], a + [1, 2, 3, 4])]:
        assert isinstance(ours, kermes.Tensor)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=1e-6)
    for ours, theirs in [(x < y, a < b), (x <= 0, a <= 0), (x > y, a > b), (x >= y, a >= b),
                         (x == x, a == a), (x != y, a != b)]:
        assert ours.dtype == "bool"
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_indexing_agrees_with_numpy():
    a = data(4, 5, 6)
    x = kermes.tensor(a)
    for key in [0, -1, slice(1, 3), slice(None, None, -1), slice(None, None, 2), (1, 2, 3),
                (slice(None), 2), (Ellipsis, 1), (None, 1), (slice(3, 0, -2), None, Ellipsis, 4),
                (slice(0, 0),), slice(10, 20)]:
        np.testing.assert_array_equal(x[key].numpy(), a[key])
    np.testing.assert_array_equal(x[[2, 0]].numpy(), a[[2, 0]])
    np.testing.assert_array_equal(x[x > 0].numpy(), a[a > 0])
    assert [row.shape for row in x] == [(5, 6)] * 4


def test_reductions_and_views_agree_with_numpy():
    a = data(2, 3, 4)
    x = kermes.tensor(a)
    for ours, theirs in [
            (x.sum(), a.sum()), (x.sum(axis=1), a.sum(1)), (x.mean((0, 2)), a.mean((0, 2))),
            (x.max(-1, keepdim=True), a.max(-1, keepdims=True)), (x.var(0), a.var(0, ddof=1)),
            (x.argmax(2), a.argmax(2)), (x.reshape(6, -1), a.reshape(6, -1)),
            (x.reshape((4, 6)), a.reshape(4, 6)), (x.permute(2, 0, 1), a.transpose(2, 0, 1)),
            (x.transpose(0, 1), a.transpose(1, 0, 2)), (x.unsqueeze(1), a[:, None]),
            (x[:1].squeeze(0), a[0]), (x[0].broadcast_to(5, 3, 4), np.broadcast_to(a[0], (5, 3, 4))),
            (kermes.concat([x, x], 1), np.concatenate([a, a], 1)),
            (kermes.stack([x, a]), np.stack([a, a])), (x.split(2, axis=2)[1], a[:, :, 2:]),
            (kermes.where(x > 0, x, 0), np.where(a > 0, a, 0)),
            (kermes.maximum(x, 0.5), np.maximum(a, 0.5))]:
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=1e-6)


def test_arrays_share_memory_and_outlive_their_tensor():
    x = kermes.tensor(data(100, 100))
    a, b = x.numpy(), np.asarray(x)
    assert np.shares_memory(a, b) and not a.flags.writeable
    before = a.copy()
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is not None  # the array holds it
    kermes.zeros((100, 100))    # would take memory that was given back
    np.testing.assert_array_equal(a, before)
    del a, b
    gc.collect()
    assert alive() is None


def test_dtypes_go_both_ways():
    for name, kind in [("f32", np.float32), ("f16", np.float16), ("f64", np.float64),
                       ("i32", np.int32), ("i64", np.int64), ("u8", np.uint8), ("i8", np.int8),
                       ("bool", np.bool_)]:
        a = np.array([[1, 0, 3]], kind)
        x = kermes.tensor(a)
        assert x.dtype == name
        np.testing.assert_array_equal(x.numpy(), a)
        assert x.numpy().dtype == kind
    assert kermes.tensor([1.5]).dtype == "f32" and kermes.tensor([1]).dtype == "i64"
    b = kermes.tensor([1.0, 2.5], dtype="bf16")
    assert b.dtype == "bf16" and b.numpy().tolist() == [1.0, 2.5]
    assert kermes.tensor(np.float64(2)).shape == ()
    assert kermes.zeros((0, 3)).numpy().shape == (0, 3)


def test_strided_arrays_are_read_as_they_look():
    a = data(6, 8)
    np.testing.assert_array_equal(kermes.tensor(a[::2, ::-1].T).numpy(), a[::2, ::-1].T)
    np.testing.assert_array_equal(kermes.tensor(a.astype(">f4"), dtype="f32").numpy(), a)


def test_gradients_are_those_of_calculus():
    a, b = data(5, 4), data(4, 3)
    x, w = kermes.tensor(a), kermes.tensor(b, requires_grad=True)
    assert w.grad is None
    loss = ((x @ w) ** 2).mean()
    loss.backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * a.T @ (a @ b) / 15, rtol=1e-4, atol=1e-6)
    assert loss.item() == pytest.approx(((a @ b) ** 2).mean(), rel=1e-5)  # its value stays
    ((x @ w) ** 2).mean().backward()  # gradients add up until they are cleared
    np.testing.assert_allclose(w.grad.numpy(), 4 * a.T @ (a @ b) / 15, rtol=1e-4, atol=1e-6)
    w.zero_grad()
    assert w.grad is None or not w.grad.numpy().any()


def test_training_a_line_finds_it():
    for make in (lambda p: kermes.SGD(p, lr=0.1, momentum=0.9), lambda p: kermes.AdamW(p, lr=0.1)):
        x = data(64, 2)
        y = x @ np.array([[2.0], [-1.0]], np.float32) + 0.5
        w = kermes.tensor(np.zeros((2, 1), np.float32), requires_grad=True)
        b = kermes.tensor(np.zeros(1, np.float32), requires_grad=True)
        opt = make([w, b])
        for _ in range(200):
            opt.zero_grad()
            kermes.mse(kermes.tensor(x) @ w + b, y).backward()
            opt.step()
        np.testing.assert_allclose(w.numpy().ravel(), [2, -1], atol=0.02)
        assert b.item() == pytest.approx(0.5, abs=0.02)


def test_no_grad_and_detach_record_nothing():
    w = kermes.tensor([1.0, 2.0], requires_grad=True)
    with kermes.no_grad():
        y = (w * w).sum()
    assert not y.requires_grad
    assert (w * w).requires_grad and not (w * w).detach().requires_grad
    with pytest.raises(kermes.StateError):
        y.backward()


def test_gradients_that_would_be_wrong_are_refused():
    w = kermes.tensor([1.0, 2.0], requires_grad=True)
    h = w * w
    loss = h.sum()
    loss.backward()
    with pytest.raises(kermes.StateError):
        loss.backward()
    with pytest.raises(kermes.StateError):
        (h * w).sum()
    assert (h + 1).tolist() == [2.0, 5.0]  # as a constant it serves
    assert (h.detach() * w).sum().requires_grad


def test_memory_comes_back_without_a_word():
    from kermes import _library as k
    from kermes.tensors import _ctx
    kermes.zeros(1)
    live = lambda: k.given("km_stats", "km_ctx_stats", _ctx.pointer).live_bytes
    gc.collect()
    before = live()
    x = kermes.ones((256, 1024))
    for _ in range(50):
        y = (x + 1) * 2
    w = kermes.tensor(data(16), requires_grad=True)
    for _ in range(20):
        z = (w * w).sum()  # recorded, never back-propagated
    assert live() < before + 5 * 2**20
    del x, y, z, w
    gc.collect()
    assert live() <= before


def test_threads_share_tensors():
    a = data(64, 64)
    x = kermes.tensor(a)
    want, wrong = a @ a + 1, []

    def work():
        for _ in range(50):
            if not np.allclose((x @ x + 1).numpy(), want, rtol=1e-4, atol=1e-4):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_another_threads_recording_is_not_disturbed():
    w = kermes.tensor([3.0], requires_grad=True)
    y = (w * w).sum()
    seen = []

    def other():
        kermes.zeros(4) + 1  # plain ops go on
        try:
            w * 2
        except kermes.StateError as e:
            seen.append(e)
    t = threading.Thread(target=other)
    t.start()
    t.join()
    assert len(seen) == 1
    y.backward()
    assert w.grad.item() == 6


def test_dlpack_goes_both_ways_without_copies():
    a = data(3, 4)
    x = kermes.from_dlpack(a)
    assert np.shares_memory(x.numpy(), a)
    a[0, 0] = 42
    assert x[0, 0].item() == 42
    back = np.from_dlpack(x + 0)
    np.testing.assert_array_equal(back, a)
    y = kermes.tensor(a)
    lent = np.from_dlpack(y)
    assert np.shares_memory(lent, y.numpy())
    alive = weakref.ref(y)
    del y
    gc.collect()
    kermes.zeros((3, 4))
    np.testing.assert_array_equal(lent, a)  # the memory is lent, the tensor may go
    assert alive() is None
    np.testing.assert_array_equal(kermes.from_dlpack(a[::-1, ::2]).numpy(), a[::-1, ::2])
    assert x.__dlpack_device__() == (1, 0)


def test_memory_from_dlpack_is_given_back_once():
    for used in (True, False):
        a = np.ones(1000, np.float32)
        ref = weakref.ref(a)
        if used:
            t = kermes.from_dlpack(a)
            del a
            gc.collect()
            assert ref() is not None and float(t.sum()) == 1000
            del t
        else:
            capsule = kermes.tensor(a).__dlpack__()  # nobody takes it
            del capsule, a
        kermes.zeros(1)
        gc.collect()
        assert ref() is None


def test_a_capsule_is_used_once():
    class Once:
        capsule = kermes.tensor([1.0]).__dlpack__()

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)
    kermes.from_dlpack(Once())
    with pytest.raises(TypeError):
        kermes.from_dlpack(Once())
    Once.capsule = "no capsule"
    with pytest.raises(TypeError):
        kermes.from_dlpack(Once())
    with pytest.raises(TypeError):
        kermes.from_dlpack([1, 2])


def test_order_and_repetition_agree_with_numpy():
    a = data(4, 6)
    x = kermes.tensor(a)
    values, where = kermes.sort(x, descending=True)
    np.testing.assert_array_equal(values.numpy(), -np.sort(-a))
    np.testing.assert_array_equal(where.numpy(), np.argsort(-a, kind="stable"))
    best, at = kermes.topk(x, 2)
    np.testing.assert_array_equal(best.numpy(), -np.sort(-a)[:, :2])
    np.testing.assert_array_equal(at.numpy(), np.argsort(-a, kind="stable")[:, :2])
    np.testing.assert_allclose(kermes.cumsum(x, 0).numpy(), np.cumsum(a, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(kermes.repeat(x, 3).numpy(), np.tile(a, (3, 1)))
    np.testing.assert_array_equal(kermes.repeat_each(x, 2, axis=1).numpy(), np.repeat(a, 2, 1))
    np.testing.assert_array_equal(kermes.one_hot([1, 0], 3).numpy(), [[0, 1, 0], [1, 0, 0]])
    w = kermes.tensor(a, requires_grad=True)
    kermes.topk(w, 1)[0].sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), (a == a.max(1, keepdims=True)).astype("f4"))


def test_files_of_tensors_come_back(tmp_path):
    a, b = data(3, 4), np.arange(5, dtype=np.int32)
    for ending in ("safetensors", "gguf"):
        path = tmp_path / f"t.{ending}"
        kermes.save(path, {"a": kermes.tensor(a), "b": b}, meta={"made": "here"})
        back = kermes.load(path)
        assert set(back) == {"a", "b"}
        np.testing.assert_array_equal(back["a"].numpy(), a)
        np.testing.assert_array_equal(back["b"].numpy(), b)
        np.testing.assert_array_equal(kermes.load(path, "b").numpy(), b)
    kermes.save(tmp_path / "t.npy", a)
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), a)
    np.testing.assert_array_equal(kermes.load(tmp_path / "t.npy").numpy(), a)
    with pytest.raises(FileNotFoundError):
        kermes.load(tmp_path / "none.npy")
    with pytest.raises(kermes.Error):
        kermes.load(tmp_path / "t.gguf", "no such")
    with pytest.raises(kermes.Error):
        kermes.save(tmp_path / "t.zip", {"a": a})
    with pytest.raises(ValueError):
        kermes.save(tmp_path / "t.gguf", {"a\0b": a})
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(kermes.Error):
        kermes.load(tmp_path / "bad.gguf")


def test_the_cpu_is_among_the_devices():
    found = kermes.devices()
    assert any(d.name == "cpu" and d.usable and d.memory > 0 for d in found)


@pytest.mark.parametrize("call, error", [
    (lambda x: x @ kermes.zeros(3), ValueError),
    (lambda x: x + kermes.zeros((2, 2), "i32"), kermes.DtypeError),
    (lambda x: x.reshape(3, 3), kermes.ShapeError),
    (lambda x: x.reshape(1, 1, 1, 1, 1, 4), kermes.ShapeError),
    (lambda x: x.reshape(2**62, 2**62), kermes.Error),
    (lambda x: kermes.zeros((2**40, 2**40)), kermes.Error),
    (lambda x: kermes.zeros(2**45), kermes.Error),
    (lambda x: kermes.zeros(2**70), OverflowError),
    (lambda x: kermes.zeros((-3,)), kermes.Error),
    (lambda x: kermes.zeros("two"), (TypeError, ValueError)),
    (lambda x: x[5], IndexError),
    (lambda x: x[0, 0, 0], IndexError),
    (lambda x: x["a"], TypeError),
    (lambda x: x[..., ...], IndexError),
    (lambda x: x.sum(axis=7), kermes.Error),
    (lambda x: x.sum(axis=2**40), OverflowError),
    (lambda x: x.cast("f99"), TypeError),
    (lambda x: x.to("cuda:\0"), ValueError),
    (lambda x: x.to("moon"), kermes.DeviceError),
    (lambda x: x.to(None), TypeError),
    (lambda x: x + "text", TypeError),
    (lambda x: x + None, TypeError),
    (lambda x: x.item(), kermes.Error),
    (lambda x: float(x), kermes.Error),
    (lambda x: bool(x), ValueError),
    (lambda x: x.backward(), kermes.StateError),
    (lambda x: x.permute(0), kermes.ShapeError),
    (lambda x: x.permute(0, 7), kermes.Error),
    (lambda x: kermes.tensor(["a"]), TypeError),
    (lambda x: kermes.tensor([[1], [1, 2]]), (ValueError, TypeError)),
    (lambda x: kermes.tensor(object()), TypeError),
    (lambda x: kermes.concat([]), kermes.ShapeError),
    (lambda x: kermes.concat([x, "a"]), TypeError),
    (lambda x: kermes.embedding(x, [5]), kermes.Error),
    (lambda x: kermes.embedding(x, [0.5]), kermes.Error),
    (lambda x: kermes.linear(x, x, act="tanhh"), ValueError),
    (lambda x: kermes.softmax(x, axis=9), kermes.Error),
    (lambda x: kermes.Tensor(), TypeError),
    (lambda x: kermes.SGD([1], lr=1), TypeError),
    (lambda x: kermes.SGD([x], lr=1), kermes.StateError),
    (lambda x: x.assign(kermes.zeros(3)), kermes.ShapeError),
    (lambda x: len(kermes.tensor(1.0)), TypeError),
])
def test_bad_input_raises_and_nothing_is_lost(call, error):
    x = kermes.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(error) as e:
        call(x)
    assert str(e.value)
    assert (x + 1).tolist() == [[2, 3], [4, 5]]  # the next op is fine
