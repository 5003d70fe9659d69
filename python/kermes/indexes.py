"""Vector indexes: embeddings compressed to a few bytes each, and searched."""
from __future__ import annotations

import queue
from typing import Any, Callable, NamedTuple, Optional, Tuple

import numpy as np

from . import _library as k
from ._library import NULL, Handle, ffi

NO_ID = 2**64 - 1  # where fewer than k were found

_METRICS = {"l2": 0, "ip": 1, "cosine": 2}
_MODES = {"fast": 0, "dense": 1, "anchors": 2}
_RERANK = {None: 0, "none": 0, "f16": 1, "int8": 2}


class IndexInfo(NamedTuple):
    """What an index holds."""
    vectors: int
    deleted: int
    dim: int
    anchors: int
    metric: str
    mode: str
    rerank: Optional[str]
    next_id: int
    code_bytes: int
    total_bytes: float
    energy: float


def _choice(table: dict, value: Any, what: str) -> int:
    try:
        return table[value]
    except (KeyError, TypeError):
        names = ", ".join(str(n) for n in table if n is not None)
        raise k.RangeError(f"no such {what}: {value!r} ({names})") from None


def _name(table: dict, value: int) -> Any:
    return next(n for n, v in table.items() if v == value)


def _vectors(x: Any, what: str, dim: Optional[int] = None) -> np.ndarray:
    """Rows of float32, side by side; the array itself where it is so already."""
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise k.DtypeError(f"{what} must be numbers, not {array.dtype}")
    if array.ndim == 1 and dim is not None:
        array = array[None]
    if array.ndim != 2:
        raise k.ShapeError(f"{what} must be (n, dim), not {array.shape}")
    if dim is not None and array.shape[1] != dim:
        raise k.ShapeError(f"{what} have {array.shape[1]} dimensions, the index {dim}")
    return np.ascontiguousarray(array, np.float32)


def _ids(ids: Any, what: str, count: Optional[int] = None) -> np.ndarray:
    array = np.atleast_1d(np.asarray(ids))
    if array.size == 0:
        array = array.astype(np.uint64)
    if array.dtype.kind not in "iu":
        raise k.DtypeError(f"{what} must be integers, not {array.dtype}")
    if array.ndim != 1:
        raise k.ShapeError(f"{what} must have one dimension, not {array.ndim}")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise k.RangeError(f"{what} must not be negative")
    if count is not None and len(array) != count:
        raise k.ShapeError(f"{len(array)} {what} for {count} vectors")
    return np.ascontiguousarray(array, np.uint64)


def _at(array: Optional[np.ndarray], kind: str) -> Any:
    return NULL if array is None else ffi.cast(kind, array.ctypes.data)


class _Contexts:
    """Contexts for building and adding, one for each thread that does so at a time."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue = queue.SimpleQueue()

    def take(self, device: Any) -> Any:
        if device == "cpu":
            try:
                return self._idle.get_nowait()
            except queue.Empty:
                pass
        k.touch()
        made = k.lib.km_ctx_new(k.text(device, "device"), 0)
        if made == NULL:
            k.fail()
        return made

    def give(self, ctx: Any, device: Any) -> None:
        k.lib.km_step_end(ctx)
        k.lib.km_ctx_clear_error(ctx)
        if device == "cpu" and self._idle.qsize() < 2:
            self._idle.put(ctx)
        else:
            k.lib.km_ctx_free(ctx)


_contexts = _Contexts()


class _Progress:
    """A Python callable as the library's progress callback. What it raises stops the work."""

    def __init__(self, fn: Optional[Callable[[str, int, int], Any]]) -> None:
        self.fn = fn
        self.raised: Optional[BaseException] = None
        self.callback = ffi.callback("bool(void *, char *, int64_t, int64_t)", self._told,
                                     error=False, onerror=self._failed)

    def _told(self, _user: Any, stage: Any, done: int, total: int) -> bool:
        if self.fn is None:  # Python looks for Ctrl-C on its way through here
            return True
        return self.fn(ffi.string(stage).decode("utf-8", "replace"), done, total) is not False

    def _failed(self, _type: Any, value: BaseException, _trace: Any) -> bool:
        self.raised = value
        return False


class Index(Handle):
    """Vectors as their nearest anchor and a short code of the rest, found by `search`.

    >>> x = np.random.default_rng(0).normal(size=(2000, 64)).astype("float32")
    >>> index = kermes.Index.build(x, bytes=16)
    >>> ids, distances = index.search(x[:3], k=10)
    >>> ids.shape
    (3, 10)

    Any number of threads may search, add, delete and save at once.
    """

    _kind = "index"

    def __init__(self, path: Any) -> None:
        """Opens an index file, which is mapped, not read."""
        name = k.path(path)
        made = k.lib.km_index_open(name)
        if made == NULL:
            k.fail(name)
        super().__init__(made, "km_index_close")

    @classmethod
    def open(cls, path: Any) -> "Index":
        """Opens an index file, which is mapped, not read; the same as `Index(path)`."""
        return cls(path)

    @classmethod
    def build(cls, vectors: Any, ids: Any = None, *, bytes: Optional[float] = None,
              ratio: Optional[float] = None, recall: Optional[float] = None, metric: str = "l2",
              mode: str = "fast", anchors: int = 0, rerank: Optional[str] = None, seed: int = 0,
              skip_bad: bool = False, lloyd: bool = False, device: str = "cpu",
              progress: Optional[Callable[[str, int, int], Any]] = None) -> "Index":
        """Builds an index of vectors (n, dim) in memory. float32 rows are read where they are.

        At most one says how small: bytes of a vector's code, ratio (bytes of the vectors over those
        of the index) or recall (the smallest code that finds so much of the ten nearest); none: half
        a byte for each dimension. metric: "l2", "ip" or "cosine"; mode: "fast", "dense" (better
        recall, slower) or "anchors". rerank: "f16" or "int8" keeps vectors for exact re-ranking.
        ids: 0, 1, 2, ... unless given. progress(stage, done, total) may return False to stop.
        """
        x = _vectors(vectors, "vectors")
        numbers = None if ids is None else _ids(ids, "ids", len(x))
        told = _Progress(progress)
        how = k.given("km_index_options", "km_index_defaults")
        how.metric = _choice(_METRICS, metric, "metric")
        how.mode = _choice(_MODES, mode, "mode")
        how.rerank = _choice(_RERANK, rerank, "rerank")
        how.anchors, how.seed = anchors, seed
        how.bytes, how.ratio, how.recall = bytes or 0, ratio or 0, recall or 0
        for name, value in (("bytes", bytes), ("ratio", ratio), ("recall", recall)):
            if value is not None and not value > 0:
                raise k.RangeError(f"{name} must be above 0, not {value}")
        how.skip_bad, how.lloyd = skip_bad, lloyd
        how.progress = told.callback
        ctx = _contexts.take(device)
        try:
            made = k.lib.km_index_build(ctx, _at(x, "float *"), x.shape[0], x.shape[1],
                                        _at(numbers, "uint64_t *"), how)
            failed = k.last_error() if made == NULL else None
        finally:
            _contexts.give(ctx, device)
        if told.raised is not None:
            if made != NULL:
                k.lib.km_index_close(made)
            raise told.raised
        if failed:
            raise failed
        index = cls.__new__(cls)
        Handle.__init__(index, made, "km_index_close")
        return index

    @property
    def info(self) -> IndexInfo:
        """What it holds: count, dim, metric, bytes, ..."""
        with self._using as p:
            i = k.given("km_index_info", "km_index_describe", p)
        return IndexInfo(i.count, i.deleted, i.dim, i.anchors, _name(_METRICS, i.metric),
                         _name(_MODES, i.mode), _name(_RERANK, i.rerank), i.next_id, i.code_bytes,
                         i.total_bytes, i.energy)

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        with self._using as p:
            return k.given("km_index_info", "km_index_describe", p).dim

    def __len__(self) -> int:
        with self._using as p:
            return k.given("km_index_info", "km_index_describe", p).count

    def __repr__(self) -> str:
        if self.closed:
            return "<kermes.Index, closed>"
        i = self.info
        return f"<kermes.Index of {i.vectors} vectors x {i.dim}, {i.metric}, {i.code_bytes} bytes each>"

    def search(self, queries: Any, k: int = 10, *, probe: int = 0, rerank: int = 0,
               allow: Any = None, deny: Any = None, threads: int = 0,
               out: Optional[Tuple[np.ndarray, np.ndarray]] = None) -> Tuple[np.ndarray, np.ndarray]:
        """The k nearest of each query (n, dim), best first: ids (n, k) and distances (n, k).

        A single query (dim) gives (k) and (k). Where there are fewer than k, the id is
        `kermes.NO_ID` and the distance infinite. probe: so many cells are looked at, 0 for all;
        rerank: so many candidates are compared again by the kept vectors; allow and deny: only, or
        none of, these ids. out: arrays to write to (uint64 and float32, (n, k)).
        """
        from . import _library as lib_
        with self._using as p:
            lib = lib_.lib
            dim = lib_.given("km_index_info", "km_index_describe", p).dim
            single = np.ndim(queries) == 1
            x = _vectors(queries, "queries", dim)
            n = x.shape[0]
            if k < 1:
                raise lib_.RangeError(f"k must be at least 1, not {k}")
            if probe < 0 or rerank < 0 or threads < 0:
                raise lib_.RangeError("probe, rerank and threads must not be negative")
            if n * k > 2**40:
                raise lib_.OutOfMemory(f"{n} x {k} results are too many")
            if out is None:
                ids, distances = np.empty((n, k), np.uint64), np.empty((n, k), np.float32)
            else:
                ids, distances = out
                _check_out(ids, np.uint64, (n, k))
                _check_out(distances, np.float32, (n, k))
            how = NULL
            if probe or rerank or allow is not None or deny is not None:
                how = lib_.given("km_search_options", "km_search_defaults")
                how.probe, how.rerank = probe, rerank
                if allow is not None:
                    allow = np.unique(_ids(allow, "allow"))
                    if not len(allow):  # nothing is allowed: no pointer says that
                        ids[:], distances[:] = NO_ID, np.inf
                        return (ids[0], distances[0]) if single else (ids, distances)
                    how.allow, how.n_allow = _at(allow, "uint64_t *"), len(allow)
                if deny is not None:
                    deny = np.unique(_ids(deny, "deny"))
                    how.deny, how.n_deny = _at(deny, "uint64_t *"), len(deny)
            lib_.check(lib.km_index_search(p, _at(x, "float *"), n, k, how, threads,
                                           _at(ids, "uint64_t *"), _at(distances, "float *")))
        return (ids[0], distances[0]) if single else (ids, distances)

    def add(self, vectors: Any, ids: Any = None) -> None:
        """Adds vectors (n, dim), under ids that are given or counted on."""
        with self._using as p:
            x = _vectors(vectors, "vectors", k.given("km_index_info", "km_index_describe", p).dim)
            numbers = None if ids is None else _ids(ids, "ids", len(x))
            ctx = _contexts.take("cpu")
            try:
                k.check(k.lib.km_index_add(ctx, p, _at(x, "float *"), x.shape[0],
                                           _at(numbers, "uint64_t *")))
            finally:
                _contexts.give(ctx, "cpu")

    def delete(self, ids: Any) -> None:
        """Deletes the vectors of these ids: all of them, or with an id that is not there none."""
        numbers = _ids(ids, "ids")
        with self._using as p:
            k.check(k.lib.km_index_delete(p, _at(numbers, "uint64_t *"), len(numbers)))

    def decode(self, ids: Any) -> np.ndarray:
        """The vectors of these ids as the index knows them: (n, dim)."""
        numbers = _ids(ids, "ids")
        with self._using as p:
            x = np.empty((len(numbers), k.given("km_index_info", "km_index_describe", p).dim), np.float32)
            k.check(k.lib.km_index_decode(p, _at(numbers, "uint64_t *"), len(numbers),
                                          _at(x, "float *")))
        return x

    def anchors(self) -> np.ndarray:
        """The anchors themselves: (anchors, dim)."""
        with self._using as p:
            i = k.given("km_index_info", "km_index_describe", p)
            x = np.empty((i.anchors, i.dim), np.float32)
            k.check(k.lib.km_index_anchors(p, _at(x, "float *")))
        return x

    def merge(self, other: "Index", shift: bool = False) -> int:
        """Adds all of another index. Its ids must be others, or with `shift` are moved behind all
        that are here; returns by how much."""
        if not isinstance(other, Index):
            raise TypeError(f"an index is merged with an index, not {type(other).__name__}")
        if other is self:
            raise k.StateError("an index cannot be merged with itself")
        moved = ffi.new("uint64_t *")
        with self._using as p, other._using as q:
            ctx = _contexts.take("cpu")
            try:
                k.check(k.lib.km_index_merge(ctx, p, q, moved if shift else NULL))
            finally:
                _contexts.give(ctx, "cpu")
        return moved[0]

    def save(self, path: Any, compact: bool = False) -> None:
        """Writes the index to a file; deleted vectors are dropped with `compact`."""
        name = k.path(path)
        with self._using as p:
            k.check(k.lib.km_index_save(p, name, compact))


def _check_out(array: Any, dtype: Any, shape: Tuple[int, int]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape \
            or not array.flags.c_contiguous or not array.flags.writeable:
        raise k.ShapeError(f"out must be a writable, contiguous {np.dtype(dtype)} array of {shape}")
