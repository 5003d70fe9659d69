"""How a text is made: settings, the text that comes out, and a stream of its pieces."""
from __future__ import annotations

import json
import threading
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple,
                    TypedDict, Union)

from . import _library as k
from ._library import NULL, ffi


class Settings(TypedDict, total=False):
    """Keyword arguments of `generate`, `chat` and `batch`. What is left out is as the model's file
    recommends."""
    max_tokens: int  # 0: until the context is full
    stop: Union[str, Sequence[str]]  # texts at which it ends, which are not given out
    schema: Any  # a pydantic model, a JSON schema (dict or text), or True for any JSON
    strict_schema: bool  # refuse a schema with formats that cannot be held to
    grammar: str  # GBNF
    logprobs: int  # of the chosen token and of so many of the likeliest
    past_end: bool  # goes on after an end-of-text token
    shift: bool  # a full context goes on from its second half
    exact: bool  # bit for bit the text of an empty session
    rendered: bool  # the prompt comes from a chat template
    adapter: Any  # one of those that the model has, by name or path, and no other; (name, scale)
    adapters: Sequence[Any]  # several; []: none
    temperature: float  # 0: always the likeliest token
    top_k: int
    top_p: float
    min_p: float
    typical: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repeat_last: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Dict[int, float]  # token id: what is added to its logit
    seed: int
    on_prompt: Callable[[int, int], Any]  # (done, total) tokens read; False stops


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical", "repeat_penalty",
             "frequency_penalty", "presence_penalty", "repeat_last", "dry_multiplier", "dry_base",
             "dry_allowed_length", "mirostat", "mirostat_tau", "mirostat_eta")


class Logprob(NamedTuple):
    """A token that was chosen, and those that were likeliest."""
    id: int
    logprob: float
    top: List[Tuple[int, float]]


class Stats(NamedTuple):
    """What a generation took."""
    prompt_tokens: int
    reused: int
    tokens: int
    prompt_seconds: float
    seconds: float
    first_seconds: float
    guessed: int
    accepted: int


class Text(str):
    """A text that a model made: a str that also knows how it was made.

    end is why it ended: "tokens" (max_tokens), "end" (the model's own end), "stop", "grammar",
    "context" or "stopped".
    """

    tokens: List[int]
    logprobs: Optional[List[Logprob]]
    end: str
    stats: Optional[Stats]


def settings_from(settings: Any) -> Dict[str, Any]:
    """Checks the names of keyword arguments."""
    for name in settings:
        if name not in Settings.__annotations__:
            raise TypeError(f"there is no setting {name!r}: help(kermes.Settings) lists them")
    return dict(settings)


def schema_text(schema: Any) -> bytes:
    """A JSON schema as text, of a pydantic model, a dict, a text, or True for any JSON."""
    if schema is True:
        return b"{}"
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    elif isinstance(schema, type) and hasattr(schema, "schema"):  # pydantic 1
        schema = schema.schema()
    if isinstance(schema, dict):
        schema = json.dumps(schema, allow_nan=False)
    if not isinstance(schema, (str, bytes)):
        raise TypeError("schema must be a pydantic model, a dict, a JSON text or True, not "
                        + type(schema).__name__)
    return k.text(schema, "schema")


class _Prompt:
    """Callback of reading a prompt."""

    def __init__(self, fn: Callable[[int, int], Any]) -> None:
        self.fn = fn
        self.raised: Optional[BaseException] = None
        self.callback = ffi.callback("bool(void *, int64_t, int64_t)", self._told, error=False,
                                     onerror=self._failed)

    def _told(self, _user: Any, done: int, total: int) -> bool:
        return self.fn(done, total) is not False

    def _failed(self, _type: Any, value: BaseException, _trace: Any) -> bool:
        self.raised = value
        return False


class generation:
    """Settings as the struct that C takes, with all that it points to."""

    def __init__(self, model: Any, settings: Dict[str, Any]) -> None:
        from .models import hold_adapters
        self.hold: List[Any] = []
        self.prompt: Optional[_Prompt] = None
        how = self.how = k.given("km_generation", "km_generation_defaults", model)
        get: Any = settings.get
        if get("max_tokens") is not None:
            how.max_tokens = get("max_tokens")
        stops = get("stop")
        if stops is not None:
            stops = [stops] if isinstance(stops, str) else list(stops)
            self.hold.append([ffi.new("char[]", k.text(s, "stop")) for s in stops])
            self.hold.append(ffi.new("char *[]", self.hold[-1]))
            how.stops, how.n_stops = self.hold[-1], len(stops)
        if get("grammar") is not None:
            self.hold.append(ffi.new("char[]", k.text(get("grammar"), "grammar")))
            how.grammar = self.hold[-1]
        self.json = get("schema") is not None and get("schema") is not False
        if self.json:
            self.hold.append(ffi.new("char[]", schema_text(get("schema"))))
            how.schema = self.hold[-1]
        for name in ("strict_schema", "past_end", "shift", "exact", "rendered"):
            if get(name) is not None:
                setattr(how, name, bool(get(name)))
        self.logprobs = get("logprobs") is not None
        if self.logprobs:
            how.logprobs = int(get("logprobs"))
        if get("adapter") is not None and get("adapters") is not None:
            raise TypeError("give one of adapter and adapters")
        if get("adapter") is not None or get("adapters") is not None:
            chosen = list(get("adapters")) if get("adapters") is not None else [get("adapter")]
            how.adapters, how.n_adapters = hold_adapters(chosen, self.hold), len(chosen)
        for name in _SAMPLING:
            if get(name) is not None:
                setattr(how.sampling, name, get(name))
        if get("seed") is not None:
            how.sampling.seed = get("seed") & (2**64 - 1)
        bias = get("logit_bias")
        if bias:
            self.hold.append(ffi.new("km_logit_bias[]", [(int(i), float(x)) for i, x in bias.items()]))
            how.sampling.bias, how.sampling.n_bias = self.hold[-1], len(bias)
        if get("on_prompt") is not None:
            self.prompt = _Prompt(get("on_prompt"))
            how.on_prompt = self.prompt.callback

    def result(self, text: "Text") -> Any:
        """The text, or what its JSON says."""
        if not self.json:
            return text
        try:
            return json.loads(text)
        except ValueError:
            raise k.FormatError(f"the text ended ({text.end}) before its JSON was whole: "
                                "allow more max_tokens") from None


class Pieces:
    """Collects the events of one generation."""

    __slots__ = ("texts", "tokens", "logprobs", "end", "_wants")

    def __init__(self, logprobs: bool) -> None:
        self.texts: List[str] = []
        self.tokens: List[int] = []
        self.logprobs: List[Logprob] = []
        self.end = ""
        self._wants = logprobs

    def take(self, e: Any) -> str:
        """Notes an event; returns its text."""
        if e.id >= 0:
            self.tokens.append(e.id)
            if self._wants:
                self.logprobs.append(Logprob(e.id, e.logprob, [
                    (e.top[i].id, e.top[i].logprob) for i in range(e.n_top)]))
        text = ffi.buffer(e.text, e.bytes)[:].decode("utf-8", "replace") if e.bytes else ""
        if text:
            self.texts.append(text)
        if e.end:
            self.end = ffi.string(k.lib.km_end_name(e.end)).decode()
        return text

    def text(self, stats: Any = None) -> Text:
        made = Text("".join(self.texts))
        made.tokens, made.end = self.tokens, self.end
        made.logprobs = self.logprobs if self._wants else None
        made.stats = None if stats is None else Stats(
            stats.prompt_tokens, stats.reused, stats.tokens, stats.prompt_seconds, stats.seconds,
            stats.first_seconds, stats.guessed, stats.accepted)
        return made


def interruptible(call: Callable[[], Any], cancel: Callable[[], None]) -> Any:
    """Runs a long call into C so that Ctrl-C ends it: in the main thread, where Python sees signals
    only between its own instructions, another thread makes the call while this one waits. What does
    not end at once when cancelled ends by itself; the call holds all that it uses."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: List[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            result.append((call(), None))
        except BaseException as e:  # handed to the waiting thread
            result.append((None, e))
        finally:
            done.set()
    threading.Thread(target=work, daemon=True, name="kermes").start()
    try:
        done.wait()
    except BaseException:
        cancel()
        done.wait(0.05)
        raise
    value, raised = result[0]
    if raised is not None:
        raise raised
    return value


class Stream(Iterator[str]):
    """The pieces of a text as they come; `text` is all of it, so far.

        stream = m.chat("Hello", stream=True)
        for piece in stream: print(piece, end="", flush=True)
        stream.text.end, stream.text.stats.tokens

    cancel() ends it, from any thread. Leaving the loop early is fine.
    """

    def __init__(self, session: Any, how: generation, own: bool) -> None:
        self._session: Any = session
        self._how = how
        self._own = own
        self._event = ffi.new("km_piece_event *")
        self._pieces = Pieces(how.logprobs)
        self._stats: Any = None
        self._turn = session._turn
        self._done = False

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> str:
        while not self._done:
            s = self._session
            with s._using as p, s._lock:
                if s._turn != self._turn:
                    self._done = True
                    raise k.StateError("the session has gone on with something else")
                got = k.lib.km_generate_next(p, self._event)
                if got < 0:
                    self._done = True
                    raise k.last_error()
                piece = self._pieces.take(self._event) if got else ""
                if got == 0 or self._event.end:
                    self._finish(p)
            if piece:
                return piece
        self.close()
        raise StopIteration

    def _finish(self, pointer: Any) -> None:
        self._done = True
        self._stats = k.given("km_generated", "km_generate_state", pointer)
        self._session._ended(self)

    @property
    def text(self) -> Text:
        """The text so far."""
        return self._pieces.text(self._stats)

    @property
    def result(self) -> Any:
        """The text, or with a schema the dict that it says."""
        return self._how.result(self.text)

    def cancel(self) -> None:
        """Ends the generation, from any thread."""
        session = self._session
        if session is not None:
            session.cancel()

    def close(self) -> None:
        """Ends it, and gives back what it holds."""
        self._done = True
        if self._own and self._session is not None:
            session, self._session = self._session, None
            session.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_own", False):
            self.close()
