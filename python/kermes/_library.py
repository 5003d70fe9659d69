"""The C library: found, loaded, its errors turned into exceptions, its objects closed once.

Every module reaches C through `_library.lib`, looked up at each call, so that a forked child can be
given an error in its place: threads of the parent, which the library counts on, are not there.
"""
from __future__ import annotations

import os
import threading
from typing import Any, NoReturn, Optional

from ._abi import ffi  # type: ignore[import-not-found, unused-ignore]

__all__ = ["ffi", "lib", "NULL", "Error", "check", "fail", "text", "path", "Handle"]

NULL = ffi.NULL


# ---- Errors ----

class Error(Exception):
    """What the library could not do, in one line. `status` is the C status: "ERR_SHAPE", ..."""

    status = "ERR_STATE"


class ShapeError(Error, ValueError):
    """Shapes do not fit."""
    status = "ERR_SHAPE"


class DtypeError(Error, TypeError):
    """A dtype does not fit."""
    status = "ERR_DTYPE"


class DeviceError(Error, RuntimeError):
    """A device is missing, or the wrong one."""
    status = "ERR_DEVICE"


class RangeError(Error, ValueError):
    """A value or an index is out of range."""
    status = "ERR_RANGE"


class MissingError(Error, ValueError):
    """An argument is missing."""
    status = "ERR_NULL"


class OutOfMemory(Error, MemoryError):
    """There is no memory for it."""
    status = "ERR_MEMORY"


class FileError(Error, OSError):
    """A file cannot be read or written."""
    status = "ERR_FILE"


class FileMissing(FileError, FileNotFoundError):
    """There is no such file."""


class FormatError(Error, ValueError):
    """A file or a text is not in the expected format."""
    status = "ERR_FORMAT"


class StateError(Error, RuntimeError):
    """A call is not possible in this state: a closed object, a forked child."""
    status = "ERR_STATE"


class UnsupportedError(Error, NotImplementedError):
    """Not supported."""
    status = "ERR_UNSUPPORTED"


class GpuError(Error, RuntimeError):
    """The GPU reported an error."""
    status = "ERR_GPU"


_BY_STATUS = {c.status: c for c in (
    ShapeError, DtypeError, DeviceError, RangeError, MissingError, OutOfMemory, FileError,
    FormatError, StateError, UnsupportedError, GpuError)}


def error(status: int, message: str, file: Any = None) -> Error:
    """The exception for a status; `file` is the path that the call was about."""
    name = ffi.string(_loaded.km_status_name(status)).decode()
    cls = _BY_STATUS.get(name, Error)
    if cls is FileError and file is not None and not os.path.exists(file):
        cls = FileMissing
    made = cls(message or ffi.string(_loaded.km_status_text(status)).decode())
    if cls is Error:
        made.status = name
    return made


def last_error(file: Any = None, status: Optional[int] = None) -> Error:
    """The exception for the last failure of this thread."""
    if status is None:
        status = _loaded.km_last_status()
    message = ffi.string(_loaded.km_last_error()).decode("utf-8", "replace")
    return error(status, message, file)


def check(status: int, file: Any = None) -> None:
    """Raises unless the status of a call is KM_OK."""
    if status:
        raise last_error(file, status)


def fail(file: Any = None) -> NoReturn:
    """Raises for a call that returned NULL or -1."""
    raise last_error(file)


# ---- Finding and loading ----

def _candidates() -> list[str]:
    chosen = os.environ.get("KERMES_LIBRARY")
    if chosen:
        return [chosen]
    here = os.path.dirname(os.path.abspath(__file__))
    found = [os.path.join(here, "lib", "libkermes.so")]
    root = os.path.dirname(os.path.dirname(here))
    if os.path.isfile(os.path.join(root, "include", "kermes.h")):  # a source tree
        found += [os.path.join(root, "build", p, "libkermes.so") for p in ("release", "test")]
    return found


def _load() -> Any:
    tried = _candidates()
    for name in tried:
        if os.path.exists(name) or os.environ.get("KERMES_LIBRARY"):
            try:
                return ffi.dlopen(name)
            except OSError as e:
                raise ImportError(f"kermes: {name} cannot be loaded: {e}") from None
    raise ImportError("kermes: libkermes.so was not found; looked for " + ", ".join(tried)
                      + ". KERMES_LIBRARY=FILE names one.")


_loaded = _load()
lib: Any = _loaded
used = False  # something was made that has threads: a forked child cannot go on with it
forked = False


class _Forked:
    """Stands in for the library in a child made by fork()."""

    def __getattr__(self, name: str) -> Any:
        raise StateError("this process was forked from one that used Kermes, whose threads are not "
                         "here: start it by multiprocessing's \"spawn\", or use Kermes first here")


def _after_fork() -> None:
    global lib, forked
    if used:
        forked = True
        lib = _Forked()


os.register_at_fork(after_in_child=_after_fork)


def touch() -> None:
    """Notes that the library is in use from here on."""
    global used
    used = True


def given(struct: str, call: str, *args: Any) -> Any:
    """A struct that a call of the library gives out: settings with their defaults, a description."""
    out = ffi.new(f"{struct} *")
    check(getattr(lib, f"{call}_sized")(*args, out, ffi.sizeof(struct)))
    return out


# ---- Texts ----

def text(value: Any, what: str) -> bytes:
    """A str or bytes as C takes it: UTF-8 without NUL."""
    if isinstance(value, str):
        try:
            value = value.encode("utf-8")
        except UnicodeEncodeError as e:
            raise ValueError(f"{what} is not valid Unicode: {e.reason}") from None
    elif not isinstance(value, bytes):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if b"\0" in value:
        raise ValueError(f"{what} contains a NUL character")
    return value


def path(value: Any, what: str = "path") -> bytes:
    """A path (str, bytes or os.PathLike) as C takes it."""
    made = os.fsencode(value)
    if b"\0" in made:
        raise ValueError(f"{what} contains a NUL character")
    return made


def string(made: Any) -> str:
    """A text that C gave out, decoded and freed."""
    try:
        return ffi.string(made).decode("utf-8", "replace")
    finally:
        lib.km_string_free(made)


# ---- Objects ----

class Handle:
    """An object of the library that is closed once, and never while a call is using it.

    `with self._using as p:` gives the pointer and keeps it alive for the block; close() in another
    thread takes effect when the last such block ends.
    """

    _kind = "object"

    def __init__(self, pointer: Any, free: str) -> None:
        self._pointer = pointer
        self._free = free
        self._users = 0
        self._closed = False
        self._guard = threading.Lock()
        self._using = _Using(self)
        touch()

    def close(self) -> None:
        """Frees what the object holds, once calls under way have ended. Closing twice is fine."""
        with self._guard:
            self._closed = True
            pointer = self._take()
        self._drop(pointer)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def _take(self) -> Any:
        if not self._closed or self._users or self._pointer is None:
            return None
        pointer, self._pointer = self._pointer, None
        return pointer

    def _drop(self, pointer: Any) -> None:
        if pointer is not None and not forked:
            getattr(lib, self._free)(pointer)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # Nobody else holds it, so there is nothing to guard, and a lock could be held by this thread.
        if getattr(self, "_pointer", None) is not None and lib is not None:
            pointer, self._pointer = self._pointer, None
            self._drop(pointer)


class _Using:
    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        import weakref
        self._handle = weakref.ref(handle)

    def __enter__(self) -> Any:
        h: Any = self._handle()
        with h._guard:
            if h._closed:
                raise StateError(f"this {h._kind} is closed")
            h._users += 1
            return h._pointer

    def __exit__(self, *_: Any) -> None:
        h: Any = self._handle()
        with h._guard:
            h._users -= 1
            pointer = h._take()
        h._drop(pointer)
