"""Sessions: what a model has read, to go on from, fork, rewind and save."""
from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from . import _library as k
from ._library import NULL, Handle, ffi
from .generation import Stream, generation, interruptible, settings_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .generation import Settings
    from .models import Messages, Model


_CHUNK = 512  # tokens read between looks for Ctrl-C


class Session(Handle):
    """What a model has read: a later prompt that begins the same is not read again.

        s = m.session()
        s.chat("My name is Ada.")
        s.chat("What is my name?")          # remembers
        other = s.fork()                    # shares what was read

    One thread at a time uses a session; `cancel` may come from any.
    """

    _kind = "session"

    def __init__(self, model: "Model", _pointer: Any = None) -> None:
        if _pointer is None:
            with model._using as m:
                _pointer = k.lib.km_session_new(m)
                if _pointer == NULL:
                    k.fail()
        super().__init__(_pointer, "km_session_free")
        self.model = model
        self.messages: List[Dict[str, Any]] = []  # of `chat`
        self._lock = threading.RLock()  # a callback that calls back in gets C's answer, no hang
        self._turn = 0  # counts generations: a stream is of one
        self._asked: Any = None

    def __len__(self) -> int:
        with self._using as p, self._lock:
            return max(0, k.lib.km_session_length(p))

    def __bool__(self) -> bool:
        return True

    @property
    def tokens(self) -> np.ndarray:
        """The ids of the tokens that it holds, int32 (n)."""
        with self._using as p, self._lock:
            n = k.lib.km_session_length(p)
            if n <= 0:
                return np.empty(0, np.int32)
            return np.frombuffer(ffi.buffer(k.lib.km_session_tokens(p), 4 * n), np.int32).copy()

    @property
    def logits(self) -> Optional[np.ndarray]:
        """Of the token after the last: float32 (vocab); None where there are none."""
        with self._using as p, self._lock:
            found = k.lib.km_session_logits(p)
            if found == NULL:
                return None
            n = self.model.info.vocab
            return np.frombuffer(ffi.buffer(found, 4 * n), np.float32).copy()

    def read(self, text: Any) -> None:
        """Reads a text, or token ids, after what is there."""
        from .models import token_ids
        ids = self.model.tokenize(text, special=len(self) == 0) \
            if isinstance(text, (str, bytes)) else token_ids(text)

        stop = threading.Event()

        def call() -> None:
            with self._using as p, self._lock:
                self._turn += 1
                for at in range(0, len(ids), _CHUNK):
                    if stop.is_set():
                        return
                    part = ids[at:at + _CHUNK]
                    k.check(k.lib.km_session_read(p, ffi.cast("int32_t *", part.ctypes.data),
                                                  len(part)))
        interruptible(call, stop.set)

    def set_adapters(self, adapters: Any = None) -> None:
        """The adapters of what is read and generated from now on, as in `Model.generate`; None: the
        model's. What was read with others is forgotten."""
        from .models import hold_adapters
        hold: list = []
        chosen = [] if adapters is None else list(adapters)
        made = hold_adapters(chosen, hold)
        with self._using as p, self._lock:
            self._turn += 1
            k.check(k.lib.km_session_set_adapters(p, made, -1 if adapters is None else len(chosen)))

    def rewind(self, length: int) -> None:
        """Forgets what comes after the first `length` tokens."""
        with self._using as p, self._lock:
            self._turn += 1
            k.check(k.lib.km_session_rewind(p, length))

    def fork(self) -> "Session":
        """Another session that holds what this one does; memory is shared until one goes on."""
        with self._using as p, self._lock:
            made = k.lib.km_session_fork(p)
            if made == NULL:
                k.fail()
        other = Session(self.model, made)
        other.messages = list(self.messages)
        return other

    def save(self, path: Any) -> None:
        """Writes what it holds to a file."""
        name = k.path(path)
        with self._using as p, self._lock:
            k.check(k.lib.km_session_save(p, name))

    def restore(self, path: Any) -> None:
        """Holds what a file says, which `save` of the same model wrote."""
        name = k.path(path)
        with self._using as p, self._lock:
            self._turn += 1
            k.check(k.lib.km_session_restore(p, name), name)

    def cancel(self) -> None:
        """Ends the generation under way, from any thread."""
        with self._using as p:
            k.lib.km_session_cancel(p)

    def generate(self, prompt: Any, *, stream: bool = False, **settings: "Unpack[Settings]") -> Any:
        """Goes on with a prompt, a text or token ids, as `Model.generate`; its beginning that the
        session holds is not read again, and what the session held beyond is forgotten."""
        return self._run(prompt, settings_from(settings), stream, own=False)

    def chat(self, messages: "Messages", *, system: Optional[str] = None,
             tools: Optional[Sequence[Any]] = None, thinking: Optional[bool] = None,
             stream: bool = False, **settings: "Unpack[Settings]") -> Any:
        """Answers, and remembers: a str is the user's next message, a list the whole chat so far.
        `messages` holds the chat, answers included."""
        made = settings_from(settings)
        said = self.messages + [{"role": "user", "content": messages}] \
            if isinstance(messages, str) else list(messages)
        if system is not None and not (said and said[0].get("role") == "system"):
            said.insert(0, {"role": "system", "content": system})
        prompt = self.model.render(said, tools=tools, thinking=thinking)
        made["rendered"] = True
        return self._run(prompt, made, stream, own=False, asked=said)

    def _run(self, prompt: Any, settings: Dict[str, Any], stream: bool, own: bool,
             asked: Any = None) -> Any:
        try:
            made = self._begin(prompt, settings, own, asked)
            if stream:
                return made
            for _ in made:
                pass
            return made.result
        except BaseException:
            if own:
                self.close()
            raise

    def _begin(self, prompt: Any, settings: Dict[str, Any], own: bool, asked: Any) -> Stream:
        from .models import token_ids
        ids = None
        if isinstance(prompt, str):
            raw = prompt.encode("utf-8", "surrogatepass")
        elif isinstance(prompt, bytes):
            raw = prompt
        elif prompt is None or isinstance(prompt, dict):
            raise TypeError(f"a prompt is a text or token ids, not {type(prompt).__name__}")
        else:
            ids = token_ids(prompt)
        with self.model._using as m:
            how = generation(m, settings)

        def call() -> None:
            with self._using as p, self._lock:
                self._turn += 1
                if ids is None:
                    status = k.lib.km_generate_begin(p, raw, len(raw), how.how)
                else:
                    status = k.lib.km_generate_begin_ids(
                        p, ffi.cast("int32_t *", ids.ctypes.data), len(ids), how.how)
                if how.prompt is not None and how.prompt.raised is not None:
                    raise how.prompt.raised
                k.check(status)
        interruptible(call, self.cancel)
        made = Stream(self, how, own)
        self._asked = (self._turn, asked)
        return made

    def _ended(self, stream: Stream) -> None:
        """A generation came to its end: a chat remembers the answer."""
        if self._asked is not None and self._asked[0] == stream._turn and self._asked[1] is not None:
            self.messages = self._asked[1] + [{"role": "assistant", "content": str(stream.text)}]
