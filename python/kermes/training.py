"""Training a language model from texts."""
from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from . import _library as k
from ._library import NULL, ffi

_EVENTS = ("prepare", "start", "step", "log", "eval", "save", "sample", "note")
_ENDS = ("done", "early", "stopped")


class TrainStatus(NamedTuple):
    """Where a run stands; what is not known is NaN."""
    step: int
    steps: int
    train_loss: float
    val_loss: float
    best_val: float
    best_step: int
    lr: float
    norm: float
    loss_scale: float
    skipped: int
    tokens_per_s: float
    mfu: float
    left: float
    seconds: float


class TrainResult(NamedTuple):
    """What a run came to. end: "done", "early" (patience ran out) or "stopped"."""
    end: str
    last_val: float
    tokens_per_s: float
    wall: float
    parameters: int
    trained: int
    device: str
    status: TrainStatus


def _status(s: Any) -> TrainStatus:
    return TrainStatus(*(getattr(s, f) for f in TrainStatus._fields))


def train_settings() -> Dict[str, str]:
    """The settings that `train` takes, with what each is for.

    >>> kermes.train_settings()["steps"] != ""
    True
    """
    found: Dict[str, str] = {}
    i = 0
    while True:
        row = k.lib.km_train_setting(i)
        if row == NULL:
            return found
        found[ffi.string(row.name).decode().replace("-", "_")] = ffi.string(row.help).decode()
        i += 1


class _Settings:
    """Keyword arguments as the struct that C takes, by the library's own table of settings."""

    def __init__(self, given: Dict[str, Any]) -> None:
        self.hold: List[Any] = []
        self.how = k.given("km_train_settings", "km_train_defaults")
        rows = {}
        i = 0
        while k.lib.km_train_setting(i) != NULL:
            row = k.lib.km_train_setting(i)
            rows[ffi.string(row.name).decode().replace("-", "_")] = row
            i += 1
        if given.get("resume") and given.get("out") is not None:
            k.check(k.lib.km_train_read_run(self.how, k.path(given["out"], "out")))
        for name, value in given.items():
            if name not in rows:
                raise TypeError(f"there is no setting {name!r}: kermes.train_settings() lists them")
            if value is not None:
                self._set(name, rows[name], value)

    def __del__(self) -> None:
        if not k.forked:
            k.lib.km_train_settings_free(self.how)

    def _text(self, value: Any, name: str) -> Any:
        raw = k.path(value, name) if isinstance(value, os.PathLike) else k.text(value, name)
        self.hold.append(ffi.new("char[]", raw))
        return self.hold[-1]

    def _set(self, name: str, row: Any, value: Any) -> None:
        at = ffi.cast("char *", self.how) + row.offset
        if row.kind == k.lib.KM_SETTING_FLAG:
            ffi.cast("bool *", at)[0] = bool(value)
        elif row.kind == k.lib.KM_SETTING_TEXT:
            ffi.cast("char **", at)[0] = self._text(value, name)
        elif row.kind == k.lib.KM_SETTING_LIST:
            many = [value] if isinstance(value, (str, bytes, os.PathLike)) else list(value)
            to = ffi.cast("km_train_list *", at)
            if len(many) > len(to.at):
                raise k.RangeError(f"{name}: more than {len(to.at)}")
            for i, one in enumerate(many):
                to.at[i] = self._text(one, name)
            to.n = len(many)
        else:
            if (row.lo or row.hi) and not row.lo <= value <= row.hi:
                raise k.RangeError(f"{name} must be from {row.lo:g} to {row.hi:g}, not {value}")
            kind = "int64_t *" if row.kind == k.lib.KM_SETTING_INT else "double *"
            ffi.cast(kind, at)[0] = value


def train(data: Union[str, Sequence[str], None] = None, out: Any = None, *,
          on_step: Optional[Callable[[TrainStatus], Any]] = None,
          on_event: Optional[Callable[[str, TrainStatus, str], Any]] = None,
          **settings: Any) -> TrainResult:
    """Trains a language model from texts; the folder `out` then holds it, for `kermes.Model(out)`.

        kermes.train(data="book.txt", out="run", tokenizer="bpe:4096", steps=500, on_step=print)

    data: files or folders, each perhaps with ":WEIGHT". Settings are the command's, with
    underscores (layers, dim, context, batch, lr, lora_rank, init, resume, ...):
    `kermes.train_settings()`. on_step(status) is told every `log_every` steps; on_event(name, status,
    text) of everything: "prepare", "start", "step", "log", "eval", "save", "sample", "note". on_step
    returning False stops with a checkpoint, from which `resume=True` goes on; so do Ctrl-C and an
    exception in either, which is raised afterwards.
    """
    given = _Settings({"data": data, "out": out, **settings})
    state: Dict[str, Any] = {"stop": False, "raised": None}

    def failed(_type: Any, value: BaseException, _trace: Any) -> None:
        if state["raised"] is None:
            state["raised"] = value
        state["stop"] = True

    def event(_user: Any, e: int, s: Any, text: Any) -> None:
        if state["stop"] or (on_step is None and on_event is None):
            return
        name = _EVENTS[e] if e < len(_EVENTS) else str(e)
        status = _status(s)
        if on_event is not None:
            on_event(name, status, "" if text == NULL else ffi.string(text).decode("utf-8", "replace"))
        if on_step is not None and name == "log" and on_step(status) is False:
            state["stop"] = True

    def stop(_user: Any) -> bool:
        return state["stop"]
    told = ffi.callback("void(void *, km_train_event, km_train_status *, char *)", event,
                        onerror=failed)
    asked = ffi.callback("bool(void *)", stop, error=True, onerror=failed)
    hooks = ffi.new("km_train_hooks *")
    hooks.size, hooks.event, hooks.stop = ffi.sizeof("km_train_hooks"), told, asked
    result = ffi.new("km_train_result *")
    result.size = ffi.sizeof("km_train_result")
    k.touch()
    status = k.lib.km_train(given.how, hooks, result)
    made = k.last_error(status=status) if status else None
    if state["raised"] is not None:
        raise state["raised"]
    if made:
        raise made
    return TrainResult(_ENDS[result.end], result.last_val, result.tokens_per_s, result.wall,
                       result.parameters, result.trained,
                       ffi.string(result.device).decode(), _status(result.status))
