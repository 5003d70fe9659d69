"""Tensors: NumPy-like arrays on a device, with gradients.

All of them live in one context of the library, guarded by one lock, so any thread may use any
tensor. A tensor owns its memory through a kept handle; while it hangs on the tape it also knows its
place there. The step of the context ends, and the tape with it, after `backward`, or when no tensor
that hangs on the tape is left.
"""
from __future__ import annotations

import collections
import numbers
import threading
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

import numpy as np

from . import _dlpack
from . import _library as k
from ._library import NULL, ffi

ArrayLike = Any
Axis = Union[int, Sequence[int], None]

_MAX_DIMS = 5
_END = -(2**63)

_NUMPY: Dict[str, Any] = {name: np.dtype(kind) for name, kind in (
    ("f32", np.float32), ("f16", np.float16), ("f64", np.float64), ("i32", np.int32),
    ("i64", np.int64), ("u8", np.uint8), ("i8", np.int8), ("bool", np.bool_))}
_FROM_NUMPY = {v: n for n, v in _NUMPY.items()}
_CODE = {ffi.string(k.lib.km_dtype_name(i)).decode(): i for i in range(k.lib.KM_DTYPE_COUNT)}
_NAME = {i: n for n, i in _CODE.items()}
_ALIASES = {"float32": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float64": "f64",
            "float": "f32", "double": "f64", "int32": "i32", "int64": "i64", "int": "i64",
            "uint8": "u8", "int8": "i8"}


def dtype_name(dtype: Any) -> str:
    """"f32", "i64", ... of a name, a NumPy dtype or a Python type."""
    if isinstance(dtype, str):
        name = _ALIASES.get(dtype, dtype)
        if name in _CODE:
            return name
    elif dtype is float:
        return "f32"
    elif dtype is int:
        return "i64"
    else:
        try:
            known = _FROM_NUMPY.get(np.dtype(dtype))
            if known:
                return known
        except TypeError:
            pass
    raise k.DtypeError(f"no such dtype: {dtype!r} (f32, f16, bf16, f64, i32, i64, u8, i8, bool)")


class _Local(threading.local):
    no_grad = 0


_local = _Local()


_blank = object.__new__


class _Context:
    """The one context of all tensors: its lock, its step, and handles to be released."""

    def __init__(self) -> None:
        self.pointer: Any = None
        self.lock = threading.Lock()
        self.step = 0   # counts ended steps: a place on the tape is of one step
        self.taped = 0  # tensors that hang on the tape of this step
        self.owner = 0  # the thread that records it
        self.garbage: collections.deque = collections.deque()

    def open(self) -> Any:
        k.touch()
        pointer = k.lib.km_ctx_new(b"cpu", 0)
        if pointer == NULL:
            k.fail()
        self.pointer = pointer
        return pointer

    def end_step(self) -> None:
        k.lib.km_step_end(self.pointer)
        self.step += 1
        self.taped = 0

    def drain(self) -> None:
        """Releases handles of tensors that are gone; the lock is held."""
        while self.garbage:
            try:
                kept, step = self.garbage.popleft()
            except IndexError:
                return
            k.lib.km_release(kept)
            if step == self.step:
                self.taped -= 1
                if self.taped == 0:
                    self.end_step()

    def failed(self) -> k.Error:
        """The exception for the context's error, which is cleared; the lock is held."""
        message = ffi.string(k.lib.km_ctx_error(self.pointer)).decode("utf-8", "replace")
        made = k.error(k.lib.km_ctx_status(self.pointer), message)
        k.lib.km_ctx_clear_error(self.pointer)
        return made

    def wrap(self, made: Any, operands: Any = ()) -> "Tensor":
        """A new temporary as a tensor of the user's; the lock is held."""
        lib = k.lib
        if not made:
            raise self.failed()
        kept = lib.km_keep(self.pointer, made)
        if not kept:
            raise self.failed()
        t = _blank(Tensor)
        t._kept = kept
        if lib.km_requires_grad(made):
            t._place, t._step = None, -1
            self.record(operands)
            t._place, t._step = made, self.step
            self.taped += 1
        else:
            t._place, t._step = None, -1
            if self.taped == 0:
                lib.km_step_end(self.pointer)
                self.step += 1
        return t


    def record(self, operands: Any) -> None:
        """An op was recorded: refuses what would give wrong gradients in silence."""
        me = threading.get_ident()
        if self.taped and self.owner != me:
            raise k.StateError("another thread is recording gradients; wait for its backward(), or "
                               "work inside kermes.no_grad()")
        self.owner = me
        for a in operands:
            for t in a if a.__class__ is list else (a,):
                if t.__class__ is Tensor and t._step >= 0 and t._step != self.step:
                    raise k.StateError("an operand was recorded before the last backward(), which "
                                       "has dropped its tape: detach() it, or compute it again")


_ctx = _Context()


def _call(name: str, *args: Any, same: Optional["Tensor"] = None) -> "Tensor":
    """Runs an op: tensors among the arguments become pointers, the result a tensor. `same` is what
    to return where the op gives back its operand."""
    ctx = _ctx
    with ctx.lock:
        pointer = ctx.pointer or ctx.open()
        if ctx.garbage:
            ctx.drain()
        fn = getattr(k.lib, name)
        given = [_given(a) for a in args]
        if _local.no_grad:
            k.lib.km_no_grad_begin(pointer)
            try:
                made = fn(pointer, *given)
            finally:
                k.lib.km_no_grad_end(pointer)
        else:
            made = fn(pointer, *given)
        if same is not None and made == same._at():
            return same
        return ctx.wrap(made, args)


def _call_two(name: str, *args: Any) -> Tuple["Tensor", "Tensor"]:
    """Runs an op that gives a second tensor through its last argument."""
    ctx = _ctx
    with ctx.lock:
        pointer = ctx.pointer or ctx.open()
        ctx.drain()
        second = ffi.new("km_tensor **")
        held = ctx.taped
        ctx.taped += 1  # the step must not end between the two
        try:
            if _local.no_grad:
                k.lib.km_no_grad_begin(pointer)
            made = getattr(k.lib, name)(pointer, *[_given(a) for a in args], second)
            if _local.no_grad:
                k.lib.km_no_grad_end(pointer)
            if held == 0:
                ctx.owner = threading.get_ident()
            first, other = ctx.wrap(made, args), ctx.wrap(second[0])
        finally:
            ctx.taped -= 1
            if ctx.taped == 0:
                ctx.end_step()
    return first, other


def _given(a: Any) -> Any:
    """An argument as C takes it: a tensor's pointer, a list of them, or the argument itself."""
    if a.__class__ is Tensor:
        return a._at()
    if a.__class__ is list:
        return ffi.new("km_tensor *[]", [t._at() for t in a])
    return a


def _status(name: str, *args: Any) -> None:
    """Runs a call that changes a tensor and returns a status."""
    ctx = _ctx
    with ctx.lock:
        pointer = ctx.pointer or ctx.open()
        ctx.drain()
        if getattr(k.lib, name)(pointer, *[_given(a) for a in args]):
            raise ctx.failed()


def _shape(shape: Any) -> Any:
    """A km_shape of an int or a sequence of them."""
    dims = (shape,) if isinstance(shape, numbers.Integral) else tuple(shape)
    if len(dims) > _MAX_DIMS:
        raise k.ShapeError(f"{len(dims)} dimensions are more than {_MAX_DIMS}")
    made = ffi.new("km_shape *")
    made.ndim = len(dims)
    for i, d in enumerate(dims):
        made.dim[i] = int(d)
    return made[0]


def _axes(axis: Axis) -> Tuple[Any, int]:
    if axis is None:
        return NULL, 0
    many: Any = (axis,) if isinstance(axis, numbers.Integral) else axis
    axes = [int(a) for a in many]
    return ffi.new("int[]", axes), len(axes)


def _device_name(device: Any) -> bytes:
    return k.text(device, "device")


class Tensor:
    """An array of up to five dimensions on a device, made by `kermes.tensor` and by operators.

    >>> import kermes
    >>> a = kermes.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (a @ a + 1).numpy()
    array([[ 8., 11.],
           [16., 23.]], dtype=float32)

    Operators broadcast as in NumPy; two tensors must share a dtype. Tensors are not changed by
    operators; `assign` is the one way to overwrite one. With `requires_grad`, `backward` on a
    one-element result gives it a gradient:

    >>> w = kermes.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> w.grad.numpy()
    array([2., 4., 6.], dtype=float32)
    """

    __slots__ = ("_kept", "_place", "_step", "__weakref__")
    _kept: Any
    _place: Any
    _step: int
    __array_priority__ = 1000
    __array_ufunc__ = None  # NumPy leaves `array * tensor` to us

    def __init__(self) -> None:
        raise TypeError("tensors are made by kermes.tensor(...), kermes.zeros(...) and the like")

    def _at(self) -> Any:
        """The pointer to work with: the place on the tape while there is one."""
        return self._place if self._step == _ctx.step else self._kept

    def __del__(self) -> None:
        try:
            kept = self._kept
        except AttributeError:  # never made
            return
        lib, ctx = k.lib, _ctx
        if lib is None or k.forked:
            return
        # An op may be under way, in this thread even; it will find the handle in the list.
        if self._step < 0 and not ctx.garbage and ctx.lock.acquire(False):
            lib.km_release(kept)
            ctx.lock.release()
            return
        ctx.garbage.append((kept, self._step))
        if ctx.lock.acquire(False):
            try:
                ctx.drain()
            finally:
                ctx.lock.release()

    # ---- What it is ----

    @property
    def shape(self) -> Tuple[int, ...]:
        """Its dimensions, as a tuple."""
        s = k.lib.km_tensor_shape(self._kept)
        return tuple(s.dim[0:s.ndim])

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return k.lib.km_tensor_ndim(self._kept)

    @property
    def size(self) -> int:
        """How many elements."""
        return k.lib.km_tensor_count(self._kept)

    @property
    def dtype(self) -> str:
        """"f32", "f16", "bf16", "f64", "i32", "i64", "u8", "i8", "bool", or a block type: "q4_k"."""
        return _NAME[k.lib.km_tensor_dtype(self._kept)]

    @property
    def device(self) -> str:
        """"cpu", "cuda:0", ..."""
        return ffi.string(k.lib.km_tensor_device(self._kept)).decode()

    @property
    def requires_grad(self) -> bool:
        """Whether ops on it are recorded."""
        return bool(k.lib.km_requires_grad(self._at()))

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        if self._step == _ctx.step:
            raise k.StateError("only tensors that are no result of recorded ops can be parameters; "
                               "detach() it first")
        _status("km_require_grad", self, bool(on))

    @property
    def grad(self) -> Optional["Tensor"]:
        """The gradient that `backward` left, or None."""
        with _ctx.lock:
            found = k.lib.km_grad(self._kept)
            return None if found == NULL else _ctx.wrap(found)

    @property
    def T(self) -> "Tensor":
        """The last two axes swapped; no copy."""
        return self if self.ndim < 2 else self.transpose(-2, -1)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        where = "" if self.device == "cpu" else f", device={self.device!r}"
        grad = ", requires_grad=True" if self.requires_grad else ""
        values = np.array2string(self.numpy(), separator=", ", threshold=200, prefix="tensor(")
        return f"tensor({values}, dtype={self.dtype!r}{where}{grad})"

    # ---- Values out ----

    def numpy(self) -> np.ndarray:
        """Its values as a NumPy array.

        A contiguous tensor in host memory shares it: nothing is copied, and the array can only be
        read, since tensors do not change (`.copy()` it to write). From a GPU, of views with strides
        and of dtypes that NumPy lacks (bf16 and the block types come as float32) it is a copy.
        """
        found = self._buffer()
        if found is not None:
            found.flags.writeable = False
            return found
        name = self.dtype
        if name not in _NUMPY:
            return self.cast("f32").numpy()
        out = np.empty(self.shape, _NUMPY[name])
        with _ctx.lock:
            if k.lib.km_read(_ctx.pointer, self._kept, ffi.cast("void *", out.ctypes.data),
                             out.nbytes):
                raise _ctx.failed()
        return out

    def _buffer(self) -> Optional[np.ndarray]:
        """The memory itself as an array that keeps the tensor alive; None where it is elsewhere."""
        name = self.dtype
        if name not in _NUMPY:
            return None
        data = k.lib.km_tensor_data(self._kept)
        if data == NULL:
            return None
        shape = self.shape
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.empty(shape, _NUMPY[name])
        owner = _Memory(self, int(ffi.cast("uintptr_t", data)), shape, _NUMPY[name])
        return np.asarray(owner)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        made = self.numpy()
        if dtype is not None and np.dtype(dtype) != made.dtype:
            if copy is False:
                raise ValueError("a conversion of dtypes needs a copy")
            return made.astype(dtype)
        return made.copy() if copy else made

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Any = None, copy: Optional[bool] = None) -> Any:
        """The tensor's memory, lent out to NumPy, PyTorch, JAX and others; nothing is copied."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.device}: .to() another device first")
        given = self.copy() if copy else self
        versioned = max_version is not None and max_version[0] >= 1
        with _ctx.lock:
            made = (k.lib.km_to_dlpack_versioned if versioned else k.lib.km_to_dlpack)(
                _ctx.pointer, given._kept)
            if made == NULL:
                raise BufferError(str(_ctx.failed()))
        return _dlpack.capsule(made, versioned)

    def __dlpack_device__(self) -> Tuple[int, int]:
        name = self.device
        if name.startswith("cuda"):
            return (2, int(name.partition(":")[2] or 0))
        return (1, 0)

    def item(self) -> Any:
        """The one element of a one-element tensor, as a Python number."""
        name = self.dtype
        with _ctx.lock:
            value = k.lib.km_item(_ctx.pointer, self._kept)
            if k.lib.km_ctx_status(_ctx.pointer):
                raise _ctx.failed()
        if name == "bool":
            return bool(value)
        return int(value) if name in ("i32", "i64", "u8", "i8") else value

    def tolist(self) -> Any:
        """Its values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError("the truth of a tensor with several elements is not defined")
        return bool(self.item())

    # ---- Devices, dtypes, memory ----

    def to(self, device: str) -> "Tensor":
        """The tensor on another device; itself where it is there. Gradients find their way back."""
        return _call("km_to", self, _device_name(device), same=self)

    def cast(self, dtype: Any) -> "Tensor":
        """Converted to another dtype."""
        return _call("km_cast", self, _CODE[dtype_name(dtype)], same=self)

    def copy(self) -> "Tensor":
        """A contiguous copy with memory of its own."""
        return _call("km_copy", self)

    def contiguous(self) -> "Tensor":
        """The tensor with its rows side by side; no copy where they are already."""
        return _call("km_contiguous", self, same=self)

    def detach(self) -> "Tensor":
        """The same data, off the tape."""
        return _call("km_detach", self)

    def assign(self, value: ArrayLike) -> "Tensor":
        """Overwrites the elements, converted and broadcast as needed. Returns the tensor."""
        source = _operand(value, self)
        _status("km_assign", self, source)
        return self

    # ---- Gradients ----

    def backward(self) -> None:
        """Back-propagates from a one-element tensor: adds to the gradients of all parameters it
        used. The tape is gone afterwards, so each result is back-propagated once."""
        with _ctx.lock:
            if self._step != _ctx.step:
                raise k.StateError("nothing was recorded for this tensor, or the tape has gone: a "
                                   "parameter needs requires_grad=True, and backward() runs once")
            failed = k.lib.km_backward(_ctx.pointer, self._place)
            made = _ctx.failed() if failed else None
            _ctx.end_step()
        if made:
            raise made

    def zero_grad(self) -> None:
        """Clears its gradient."""
        with _ctx.lock:
            k.lib.km_zero_grad(_ctx.pointer, ffi.new("km_tensor *[]", [self._kept]), 1)

    # ---- Views ----

    def reshape(self, *shape: Any) -> "Tensor":
        """Another shape; one dimension may be -1. Copies only where the strides leave no other way."""
        dims = shape[0] if len(shape) == 1 else shape
        return _call("km_reshape", self, _shape(dims))

    def transpose(self, axis0: int = -2, axis1: int = -1) -> "Tensor":
        """Two axes swapped; no copy."""
        return _call("km_transpose", self, axis0, axis1)

    def permute(self, *axes: int) -> "Tensor":
        """All axes in a new order; no copy."""
        order = [int(a) for a in (axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)]
        if len(order) != self.ndim:
            raise k.ShapeError(f"permute of {self.ndim} dimensions got {len(order)} axes")
        return _call("km_permute", self, ffi.new("int[]", order))

    def broadcast_to(self, *shape: Any) -> "Tensor":
        """Repeated along axes of length 1, by NumPy's rule; no copy."""
        dims = shape[0] if len(shape) == 1 else shape
        return _call("km_broadcast", self, _shape(dims))

    def unsqueeze(self, axis: int) -> "Tensor":
        """A new axis of length 1."""
        return _call("km_unsqueeze", self, axis)

    def squeeze(self, axis: int) -> "Tensor":
        """Without an axis of length 1."""
        return _call("km_squeeze", self, axis)

    def split(self, n: int, axis: int = 0) -> Tuple["Tensor", ...]:
        """Cut along an axis into n equal parts; no copy."""
        length = self.shape[axis]
        if n < 1 or length % n:
            raise k.ShapeError(f"an axis of {length} cannot be cut into {n} equal parts")
        part = length // n
        return tuple(_call("km_narrow", self, axis, i * part, part) for i in range(n))

    def __getitem__(self, key: Any) -> "Tensor":
        if isinstance(key, (Tensor, np.ndarray, list)):
            picked = key if isinstance(key, Tensor) else tensor(np.asarray(key), device=self.device)
            if picked.dtype == "bool":
                return _call("km_masked_select", self, picked)
            if picked.ndim != 1:
                raise k.ShapeError("a tensor of indices must have one dimension here; see gather()")
            return _call("km_index_select", self, 0, picked)
        keys = key if isinstance(key, tuple) else (key,)
        if sum(1 for i in keys if i is Ellipsis) > 1:
            raise IndexError("more than one ... in an index")
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            named = sum(1 for i in keys if i is not None and i is not Ellipsis)
            keys = keys[:at] + (slice(None),) * (self.ndim - named) + keys[at + 1:]
        out, axis = self, 0
        for i in keys:
            if i is None:
                out = out.unsqueeze(axis)
                axis += 1
            elif axis >= out.ndim:
                raise IndexError(f"too many indices for {self.ndim} dimensions")
            elif isinstance(i, slice):
                if i != slice(None):
                    length = out.shape[axis]
                    start, stop, step = i.indices(length)
                    if stop < 0:  # backwards past the first
                        stop = _END
                    out = _call("km_slice", out, axis, start, stop, step)
                axis += 1
            elif isinstance(i, numbers.Integral):
                length, i = out.shape[axis], int(i)
                if not -length <= i < length:  # IndexError also ends `for row in tensor`
                    raise IndexError(f"index {i} is out of range for an axis of {length}")
                out = _call("km_select", out, axis, i)
            else:
                raise TypeError(f"tensors cannot be indexed by {type(i).__name__}")
        return out

    def __iter__(self) -> Iterator["Tensor"]:
        for i in range(len(self)):
            yield self[i]

    # ---- Operators ----

    def __add__(self, other: ArrayLike) -> "Tensor":
        if _is_number(other):
            return _call("km_add_scalar", self, other)
        return _binary("km_add", self, other)

    __radd__ = __add__

    def __sub__(self, other: ArrayLike) -> "Tensor":
        if _is_number(other):
            return _call("km_add_scalar", self, -other)
        return _binary("km_sub", self, other)

    def __rsub__(self, other: ArrayLike) -> "Tensor":
        if _is_number(other):
            return (-self) + other
        return _binary("km_sub", other, self)

    def __mul__(self, other: ArrayLike) -> "Tensor":
        if _is_number(other):
            return _call("km_mul_scalar", self, other)
        return _binary("km_mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_div", self, other)

    def __rtruediv__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_div", other, self)

    def __pow__(self, other: ArrayLike) -> "Tensor":
        if _is_number(other):
            return _call("km_pow_scalar", self, other)
        return _binary("km_pow", self, other)

    def __rpow__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_pow", other, self)

    def __matmul__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_matmul", self, other)

    def __rmatmul__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_matmul", other, self)

    def __neg__(self) -> "Tensor":
        return _call("km_neg", self)

    def __abs__(self) -> "Tensor":
        return _call("km_abs", self)

    def __eq__(self, other: ArrayLike) -> "Tensor":  # type: ignore[override]
        return _binary("km_eq", self, other)

    def __ne__(self, other: ArrayLike) -> "Tensor":  # type: ignore[override]
        return _binary("km_ne", self, other)

    def __lt__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_lt", self, other)

    def __le__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_le", self, other)

    def __gt__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_gt", self, other)

    def __ge__(self, other: ArrayLike) -> "Tensor":
        return _binary("km_ge", self, other)

    __hash__ = object.__hash__

    # ---- Reductions ----

    def sum(self, axis: Axis = None, keepdim: bool = False) -> "Tensor":
        """Sum over axes; None: over all."""
        return _call("km_sum", self, *_axes(axis), keepdim)

    def mean(self, axis: Axis = None, keepdim: bool = False) -> "Tensor":
        """Mean over axes; None: over all."""
        return _call("km_mean", self, *_axes(axis), keepdim)

    def max(self, axis: Axis = None, keepdim: bool = False) -> "Tensor":
        """The largest over axes; None: over all."""
        return _call("km_max", self, *_axes(axis), keepdim)

    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> "Tensor":
        """sum((x - mean)^2) / (n - correction)."""
        return _call("km_var", self, *_axes(axis), keepdim, correction)

    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> "Tensor":
        """log(sum(exp(x)))."""
        return _call("km_logsumexp", self, *_axes(axis), keepdim)

    def argmax(self, axis: int = -1, keepdim: bool = False) -> "Tensor":
        """Where the largest is along an axis, as i64; the first of equals."""
        return _call("km_argmax", self, axis, keepdim)


class _Memory:
    """A tensor's memory as NumPy's array interface, which keeps the tensor alive."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, owner: Tensor, address: int, shape: Tuple[int, ...], dtype: np.dtype) -> None:
        self._tensor = owner
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str,
                                    "data": (address, False)}


def _is_number(x: Any) -> bool:
    if x.__class__ is float or x.__class__ is int:
        return True
    return isinstance(x, numbers.Real) and not isinstance(x, np.ndarray)


def _operand(x: ArrayLike, like: Tensor) -> Tensor:
    """x as a tensor of the dtype and on the device of another one."""
    if isinstance(x, Tensor):
        return x
    if _is_number(x):
        return full((), float(x), dtype=like.dtype, device=like.device)
    return tensor(x, dtype=like.dtype, device=like.device)


def _binary(name: str, a: ArrayLike, b: ArrayLike) -> Tensor:
    like = a if isinstance(a, Tensor) else b
    try:
        left, right = _operand(a, like), _operand(b, like)
    except (TypeError, k.DtypeError):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            raise
        other = b if like is a else a
        raise TypeError(f"a tensor and {type(other).__name__} do not go together") from None
    return _call(name, left, right)


# ---- Creation ----

def tensor(data: ArrayLike, dtype: Any = None, device: str = "cpu",
           requires_grad: bool = False) -> Tensor:
    """A tensor of nested lists, numbers, a NumPy array, or anything that becomes one.

    dtype None keeps an array's own; Python floats (float64 lists) become f32. A copy is made;
    `from_dlpack` shares memory instead, of NumPy's arrays too.

    >>> kermes.tensor([[1, 2], [3, 4]], dtype="f32").shape
    (2, 2)
    """
    if isinstance(data, Tensor):
        made = data.cast(dtype) if dtype is not None else data.copy()
        made = made.to(device) if device != made.device else made
        made = made.detach()
    else:
        array = np.asarray(data)
        if array.dtype.kind not in "fiub":
            raise k.DtypeError(f"tensors hold numbers, not {array.dtype}")
        if dtype is None and array.dtype == np.float64 and not isinstance(data, np.ndarray):
            array = array.astype(np.float32)
        want = dtype_name(dtype if dtype is not None else array.dtype)
        held = want if want in _NUMPY else "f32"
        try:
            array = np.ascontiguousarray(array, _NUMPY[held]).reshape(array.shape)
        except (ValueError, TypeError) as e:
            raise k.DtypeError(f"the data cannot become {held}: {e}") from None
        made = _call("km_from_data", _CODE[held], _shape(array.shape),
                     ffi.cast("void *", array.ctypes.data))
        if held != want:
            made = made.cast(want)
        if device != "cpu":
            made = made.to(device)
    if requires_grad:
        made.requires_grad = True
    return made


def _placed(made: Tensor, device: str) -> Tensor:
    return made if device == "cpu" else made.to(device)


def zeros(shape: Any, dtype: Any = "f32", device: str = "cpu") -> Tensor:
    """All zeros."""
    return _placed(_call("km_zeros", _CODE[dtype_name(dtype)], _shape(shape)), device)


def ones(shape: Any, dtype: Any = "f32", device: str = "cpu") -> Tensor:
    """All ones."""
    return _placed(_call("km_ones", _CODE[dtype_name(dtype)], _shape(shape)), device)


def full(shape: Any, value: float, dtype: Any = "f32", device: str = "cpu") -> Tensor:
    """One value everywhere."""
    return _placed(_call("km_full", _CODE[dtype_name(dtype)], _shape(shape), value), device)


def arange(count: int, start: float = 0, step: float = 1, dtype: Any = "f32",
           device: str = "cpu") -> Tensor:
    """start, start + step, ...: `count` of them."""
    return _placed(_call("km_arange", _CODE[dtype_name(dtype)], count, start, step), device)


def uniform(shape: Any, lo: float = 0, hi: float = 1, dtype: Any = "f32",
            device: str = "cpu") -> Tensor:
    """Random numbers, evenly from lo to hi."""
    return _placed(_call("km_uniform", _CODE[dtype_name(dtype)], _shape(shape), lo, hi), device)


def normal(shape: Any, mean: float = 0, sd: float = 1, dtype: Any = "f32",
           device: str = "cpu") -> Tensor:
    """Random numbers from a normal distribution."""
    return _placed(_call("km_normal", _CODE[dtype_name(dtype)], _shape(shape), mean, sd), device)


def seed(value: int) -> None:
    """Restarts the random sequence of tensors: the same seed gives the same numbers."""
    with _ctx.lock:
        k.lib.km_seed(_ctx.pointer or _ctx.open(), value & (2**64 - 1))


class no_grad:
    """Nothing is recorded inside a `with kermes.no_grad():`, in this thread."""

    def __enter__(self) -> "no_grad":
        _local.no_grad += 1
        return self

    def __exit__(self, *_: Any) -> None:
        _local.no_grad -= 1


def from_dlpack(x: Any) -> Tensor:
    """A tensor over the memory of an object with `__dlpack__` (NumPy, PyTorch, JAX, ...).

    Nothing is copied, so what changes that memory changes the tensor, and `assign` changes it.

    >>> a = np.arange(3, dtype="float32")
    >>> t = kermes.from_dlpack(a)
    >>> a[0] = 7
    >>> t.tolist()
    [7.0, 1.0, 2.0]
    """
    if isinstance(x, Tensor):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{type(x).__name__} has no __dlpack__")
    capsule = _dlpack.ask(x)
    with _ctx.lock:
        pointer = _ctx.pointer or _ctx.open()
        _ctx.drain()
        managed, versioned = _dlpack.look(capsule)
        kept = (k.lib.km_from_dlpack_versioned if versioned else k.lib.km_from_dlpack)(pointer, managed)
        if kept == NULL:
            raise _ctx.failed()
        _dlpack.taken(capsule, versioned)
        t = Tensor.__new__(Tensor)
        t._kept, t._place, t._step = kept, None, -1
    return t
