"""Many prompts together: each step of the model makes a token of every sequence that runs."""
from __future__ import annotations

import threading
from typing import Any, Dict, List, Sequence

from . import _library as k
from ._library import NULL, Handle, ffi
from .generation import Pieces, generation


class _Batch(Handle):
    _kind = "batch"


def run_batch(model: Any, prompts: Sequence[Any], chat: bool, sequences: int,
              settings: Dict[str, Any], stop: threading.Event) -> List[Any]:
    """The texts of all prompts; those that find no room wait for others to end."""
    from .models import token_ids
    if isinstance(prompts, (str, bytes)):
        raise TypeError("batch takes a list of prompts; generate takes one")
    given = []
    for p in prompts:
        if chat:
            given.append(model.tokenize(model.render(p), parse_special=True))
        elif isinstance(p, (str, bytes)):
            given.append(model.tokenize(p, special=True))
        else:
            given.append(token_ids(p))
    if not given:
        return []
    if sequences < 0:
        raise k.RangeError("sequences must not be negative")
    if chat:
        settings["rendered"] = True
    with model._using as m:
        how = generation(m, settings)
        options = k.given("km_batch_options", "km_batch_defaults")
        options.sequences = min(len(given), sequences or 16)
        made = k.lib.km_batch_new(m, options)
        if made == NULL:
            k.fail()
    done: List[Any] = [None] * len(given)
    waiting = list(range(len(given)))[::-1]
    running: Dict[int, Any] = {}
    most = 64
    events = ffi.new("km_piece_event[]", most)
    with _Batch(made, "km_batch_free") as batch, batch._using as b:
        def start() -> None:
            while waiting and len(running) < options.sequences:
                sequence = k.lib.km_batch_join(b)
                if sequence < 0:
                    if running:
                        return  # when another one ends
                    k.fail()
                i = waiting.pop()
                ids = given[i]
                running[sequence] = (i, Pieces(how.logprobs))
                k.check(k.lib.km_batch_start(b, sequence, ffi.cast("int32_t *", ids.ctypes.data),
                                             len(ids), how.how))
        start()
        while running and not stop.is_set():
            n = k.lib.km_batch_step(b, events, most)
            if n < 0:
                k.fail()
            if n == 0:
                raise k.StateError("a batch ended before its sequences")
            ended = []
            for j in range(n):
                e = events[j]
                if e.sequence not in running:
                    continue
                i, pieces = running[e.sequence]
                if e.status:
                    message = ffi.buffer(e.text, e.bytes)[:].decode("utf-8", "replace")
                    raise k.error(e.status, f"prompt {i}: {message}")
                pieces.take(e)
                if e.end:
                    done[i] = pieces.text(k.given("km_generated", "km_batch_generated", b, e.sequence))
                    ended.append(e.sequence)
            for sequence in ended:
                del running[sequence]
                k.check(k.lib.km_batch_leave(b, sequence))
            if ended:
                start()
    if stop.is_set():
        return []
    return [how.result(text) for text in done]
