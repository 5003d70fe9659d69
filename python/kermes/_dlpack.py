"""DLPack's capsules: how Python objects hand each other memory without a copy."""
from __future__ import annotations

import ctypes
from typing import Any, Tuple

from ._library import ffi

_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_get = _api.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
# A capsule keeps a pointer to its name, so these must not be temporaries.
_USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


class _Plain(ctypes.Structure):  # DLManagedTensor: DLTensor, manager_ctx, deleter
    _fields_ = [("tensor", ctypes.c_byte * 48), ("ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):  # version, manager_ctx, deleter, flags, DLTensor
    _fields_ = [("version", ctypes.c_uint32 * 2), ("ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _drop(capsule: int) -> None:
    """Deletes what a capsule holds that nobody took. It is called while the capsule is dying, so it
    is known by its address alone."""
    for name, kind in ((_PLAIN, _Plain), (_VERSIONED, _Versioned)):
        if _valid_at(capsule, name):
            address = _get_at(capsule, name)
            deleter = kind.from_address(address).deleter
            if deleter:
                _DELETER(deleter)(address)


_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api))
_get_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


def capsule(managed: Any, versioned: bool) -> Any:
    """A capsule around a tensor that the library lends out."""
    return _new(int(ffi.cast("uintptr_t", managed)), _VERSIONED if versioned else _PLAIN,
                ctypes.cast(_destructor, ctypes.c_void_p))


def ask(x: Any) -> Any:
    """An object's capsule: in the versioned form, which knows of read-only memory, where it can."""
    try:
        return x.__dlpack__(max_version=(1, 0))
    except TypeError:  # before DLPack 1.0
        return x.__dlpack__()


def look(made: Any) -> Tuple[Any, bool]:
    """What a capsule holds, as the library takes it, and whether it is the versioned form."""
    versioned = bool(_valid(made, _VERSIONED))
    if not versioned and not _valid(made, _PLAIN):
        raise TypeError("__dlpack__ gave no DLPack capsule, or one that was used before")
    address = _get(made, _VERSIONED if versioned else _PLAIN)
    kind = "struct DLManagedTensorVersioned *" if versioned else "struct DLManagedTensor *"
    return ffi.cast(kind, address), versioned


def taken(made: Any, versioned: bool) -> None:
    """The library owns it from here on, and the capsule must not delete it."""
    _rename(made, _USED[versioned])
