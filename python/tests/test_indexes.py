"""Indexes: built, searched, changed, saved and opened, by many threads, and with bad input."""
import threading

import numpy as np
import pytest

import kermes


@pytest.fixture(scope="module")
def index(clusters):
    return kermes.Index.build(clusters, bytes=16)


def test_a_search_finds_the_nearest(index, clusters):
    ids, distances = index.search(clusters[:100], k=10)
    assert ids.shape == distances.shape == (100, 10)
    assert ids.dtype == np.uint64 and distances.dtype == np.float32
    exact = ((clusters[:100, None] - clusters[None]) ** 2).sum(-1).argsort(1)[:, :10]
    found = np.mean([len(set(a) & set(b)) for a, b in zip(ids.tolist(), exact.tolist())]) / 10
    assert found > 0.7
    assert (np.diff(distances, axis=1) >= 0).all()
    one, far = index.search(clusters[5], k=3)
    assert one.shape == far.shape == (3,)
    assert one.tolist() == ids[5, :3].tolist()


def test_results_go_to_arrays_of_the_caller(index, clusters):
    out = np.empty((4, 5), np.uint64), np.empty((4, 5), np.float32)
    ids, distances = index.search(clusters[:4], k=5, out=out)
    assert ids is out[0] and distances is out[1]
    np.testing.assert_array_equal(ids, index.search(clusters[:4], k=5)[0])


def test_only_what_is_allowed_is_found(index, clusters):
    ids, _ = index.search(clusters[:3], k=5, allow=[7, 3, 9, 9])
    assert set(ids.ravel().tolist()) <= {3, 7, 9, kermes.NO_ID}
    first = index.search(clusters[0], k=1)[0][0]
    assert first not in index.search(clusters[0], k=5, deny=[first])[0]
    ids, distances = index.search(clusters[:2], k=2, allow=[])
    assert (ids == kermes.NO_ID).all() and np.isinf(distances).all()


def test_an_index_is_changed_saved_and_opened(clusters, tmp_path):
    index = kermes.Index.build(clusters[:1000], ids=np.arange(1000) + 5000, bytes=16, metric="cosine",
                               rerank="f16")
    assert len(index) == 1000 and index.dim == 32 and index.info.metric == "cosine"
    index.add(clusters[1000:1010], ids=range(10))
    assert len(index) == 1010
    index.delete([5000, 5001])
    assert len(index) == 1008 and index.info.deleted >= 0
    path = tmp_path / "v.kmi"
    index.save(path)
    with kermes.Index(path) as again:
        assert len(again) == 1008
        np.testing.assert_array_equal(again.search(clusters[:5], rerank=20)[0],
                                      index.search(clusters[:5], rerank=20)[0])
        assert again.decode([5002]).shape == (1, 32)
        assert again.anchors().shape == (again.info.anchors, 32)
    other = kermes.Index.build(clusters[1500:], bytes=16, metric="cosine", rerank="f16")
    moved = index.merge(other, shift=True)
    assert moved > 5999 - 1 and len(index) == 1508


def test_progress_is_told_and_stops(clusters):
    told = []
    kermes.Index.build(clusters, bytes=8, progress=lambda *a: told.append(a))
    assert told and all(0 <= done <= total for _, done, total in told)
    with pytest.raises(kermes.Error):
        kermes.Index.build(clusters, bytes=8, progress=lambda *a: False)
    with pytest.raises(ZeroDivisionError):
        kermes.Index.build(clusters, bytes=8, progress=lambda *a: 1 // 0)
    assert len(kermes.Index.build(clusters, bytes=8)) == 2000


def test_threads_search_while_others_add_and_close(clusters):
    index = kermes.Index.build(clusters[:500], bytes=8)
    errors = []

    def search():
        try:
            for _ in range(200):
                index.search(clusters[:5], k=5, threads=1)
        except kermes.StateError:
            pass  # closed below us: an exception, not a crash
        except Exception as e:
            errors.append(e)

    def add():
        try:
            for i in range(20):
                index.add(clusters[i:i + 1], ids=[10_000 + i])
        except kermes.StateError:
            pass
        except Exception as e:
            errors.append(e)
    threads = [threading.Thread(target=f) for f in (search, search, add)]
    for t in threads:
        t.start()
    threads[2].join()
    index.close()
    for t in threads:
        t.join()
    assert not errors and index.closed
    with pytest.raises(kermes.StateError, match="closed"):
        index.search(clusters[:1])
    index.close()


@pytest.mark.parametrize("call, error", [
    (lambda i, x: i.search(x[:, :5]), kermes.ShapeError),
    (lambda i, x: i.search(x[None]), kermes.ShapeError),
    (lambda i, x: i.search(x[:2], k=0), ValueError),
    (lambda i, x: i.search(x[:2], k=-1), ValueError),
    (lambda i, x: i.search(x[:2], k=2**60), MemoryError),
    (lambda i, x: i.search(x[:2], k="3"), TypeError),
    (lambda i, x: i.search(np.array([["a"] * 32])), TypeError),
    (lambda i, x: i.search(x[:2] + 1j), TypeError),
    (lambda i, x: i.search(x[:2], probe=-4), kermes.Error),
    (lambda i, x: i.search(x[:2], probe=2**80), OverflowError),
    (lambda i, x: i.search(x[:2], allow=[-1]), ValueError),
    (lambda i, x: i.search(x[:2], allow=[1.5]), TypeError),
    (lambda i, x: i.search(x[:2], out=(np.empty((2, 9)), np.empty((2, 9)))), ValueError),
    (lambda i, x: i.delete([10**15]), kermes.Error),
    (lambda i, x: i.decode([10**15]), kermes.Error),
    (lambda i, x: i.add(x[:2], ids=[1]), kermes.ShapeError),
    (lambda i, x: i.add(x[:1] * np.nan), kermes.Error),
    (lambda i, x: i.merge(i), kermes.StateError),
    (lambda i, x: i.merge("file"), TypeError),
    (lambda i, x: i.save("/no/such/folder/x"), OSError),
    (lambda i, x: i.save("a\0b"), ValueError),
    (lambda i, x: kermes.Index("/no/such/file"), FileNotFoundError),
    (lambda i, x: kermes.Index(__file__), kermes.FormatError),
    (lambda i, x: kermes.Index(7), TypeError),
    (lambda i, x: kermes.Index.build(x[0]), kermes.ShapeError),
    (lambda i, x: kermes.Index.build(x[:0]), kermes.Error),
    (lambda i, x: kermes.Index.build(x, bytes=-1), ValueError),
    (lambda i, x: kermes.Index.build(x, bytes=8, ratio=4), kermes.Error),
    (lambda i, x: kermes.Index.build(x, metric="hamming"), ValueError),
    (lambda i, x: kermes.Index.build(x, metric=["l2"]), ValueError),
    (lambda i, x: kermes.Index.build(x, anchors=-5), kermes.Error),
    (lambda i, x: kermes.Index.build(x, ids=[1, 2]), kermes.ShapeError),
    (lambda i, x: kermes.Index.build(x[:2], ids=[3, 3]), kermes.Error),
    (lambda i, x: kermes.Index.build(x, device="moon"), kermes.DeviceError),
])
def test_bad_input_raises_and_nothing_is_lost(index, clusters, call, error):
    with pytest.raises(error) as e:
        call(index, clusters)
    assert str(e.value)
    assert index.search(clusters[:1], k=1)[0].shape == (1, 1)
