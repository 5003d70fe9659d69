"""Files of tensors (safetensors, GGUF, npy), and the devices of this machine."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union

from . import _library as k
from ._library import NULL, ffi
from .tensors import Tensor, _call, _ctx, _placed, tensor


class Device(NamedTuple):
    """A device of this machine."""
    name: str
    title: str
    kind: str
    driver: str
    memory: int
    memory_free: int
    usable: bool
    note: str


def devices() -> List[Device]:
    """All devices that this machine shows, usable or not, and why not.

    >>> kermes.devices()[0].name
    'cpu'
    """
    def text(s: Any) -> str:
        return ffi.string(s).decode("utf-8", "replace")
    found = []
    for i in range(k.lib.km_device_count()):
        d = k.lib.km_device_describe(i)
        if d != NULL:
            found.append(Device(text(d.name), text(d.title), text(d.kind), text(d.driver), d.memory,
                                d.memory_free, bool(d.usable), text(d.note)))
    return found


def load(path: Any, name: Optional[str] = None, device: str = "cpu") -> Union[Tensor, Dict[str, Tensor]]:
    """Tensors of a .safetensors, .gguf or .npy file, or of a folder of them.

    A dict of all by name; of an .npy file, or with `name`, the one tensor. Types that Kermes cannot
    load are left out of the dict.
    """
    raw = k.path(path)
    wanted = None if name is None else k.text(name, "name")
    file = k.lib.km_file_open(raw)
    if file == NULL:
        k.fail(raw)
    try:
        def one(key: bytes) -> Tensor:
            return _placed(_call("km_file_load", file, key), device)
        if wanted is not None:
            return one(wanted)
        count = k.lib.km_file_count(file)
        found = [k.lib.km_file_at(file, i) for i in range(count)]
        if count == 1 and ffi.string(found[0].name) == b"":
            return one(b"")
        return {ffi.string(t.name).decode("utf-8", "replace"): one(ffi.string(t.name))
                for t in found if t.dtype != k.lib.KM_DTYPE_COUNT}
    finally:
        k.lib.km_file_close(file)


def save(path: Any, tensors: Union[Tensor, Mapping[str, Any]],
         meta: Optional[Mapping[str, Any]] = None) -> None:
    """Writes tensors, as the name's ending says: .safetensors, .gguf (dicts by name), or .npy (one).

    NumPy arrays serve as tensors. meta: texts to keep beside them. The file changes only when all of
    the new one is on disk.

        kermes.save("w.safetensors", {"w": w, "b": b}, meta={"step": "100"})
    """
    raw = k.path(path)
    if isinstance(tensors, Mapping):
        names = [k.text(n, "a tensor's name") for n in tensors]
        held = [t if isinstance(t, Tensor) else tensor(t) for t in tensors.values()]
    else:
        names, held = [b""], [tensors if isinstance(tensors, Tensor) else tensor(tensors)]
    texts = [ffi.new("char[]", n) for n in names]
    about = NULL if meta is None else ffi.new("char[]", k.text(json.dumps(dict(meta)), "meta"))
    with _ctx.lock:
        pointer = _ctx.pointer or _ctx.open()
        rows = ffi.new("km_named_tensor[]", len(held))
        for row, text, t in zip(rows, texts, held):
            row.name, row.tensor = text, t._kept
        if k.lib.km_save(pointer, raw, rows, len(held), about):
            raise _ctx.failed()
