"""Language models: opened, asked, streamed, held to a schema, many prompts at once."""
from __future__ import annotations

import json
import os
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _library as k
from ._library import NULL, Handle, ffi
from .generation import interruptible, settings_from
from .tensors import _CODE, dtype_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .generation import Settings
    from .sessions import Session

Messages = Union[str, Sequence[Dict[str, Any]]]
Adapter = Union[str, "os.PathLike[str]", Tuple[Any, float], Dict[str, Any]]


class ModelInfo(NamedTuple):
    """What a model is, and where it runs."""
    path: str
    name: str
    architecture: str
    devices: str
    file_type: str
    parameters: int
    bytes: int
    context: int
    trained_context: int
    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    has_template: bool
    can_embed: bool


def token_ids(ids: Any) -> np.ndarray:
    """Token ids as C takes them."""
    array = np.atleast_1d(np.asarray(ids))
    if array.size == 0:
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise k.DtypeError("token ids must be a list of integers")
    if array.size and (array.min() < -2**31 or array.max() >= 2**31):
        raise k.RangeError("a token id is out of range")
    return np.ascontiguousarray(array, np.int32)


def messages_json(messages: Messages, system: Optional[str] = None) -> bytes:
    """A chat as JSON: a str is what the user says."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    made = list(messages)
    for m in made:
        if not isinstance(m, dict) or "role" not in m:
            raise ValueError('a message is a dict such as {"role": "user", "content": "..."}')
    if system is not None:
        made.insert(0, {"role": "system", "content": system})
    return k.text(json.dumps(made, allow_nan=False), "messages")


class _Loading:
    """The callback of loading; Ctrl-C is seen on the way through it."""

    def __init__(self, fn: Optional[Callable[[int, int], Any]]) -> None:
        self.fn = fn
        self.raised: Optional[BaseException] = None
        self.callback = ffi.callback("bool(void *, uint64_t, uint64_t)", self._told, error=False,
                                     onerror=self._failed)

    def _told(self, _user: Any, done: int, total: int) -> bool:
        return self.fn is None or self.fn(done, total) is not False

    def _failed(self, _type: Any, value: BaseException, _trace: Any) -> bool:
        self.raised = value
        return False


class Model(Handle):
    """A language model, opened and ready. Any number of threads may use one at once.

        m = kermes.Model("SmolLM2-135M-Instruct.Q4_1.gguf")
        for piece in m.chat("Why is the sky blue?", stream=True):
            print(piece, end="")
        m.generate("Once upon a time", max_tokens=50, temperature=0)
        m.chat("Name a person.", schema=Person)            # a pydantic model; a dict comes back
        m.batch(["One", "Two", "Three"], max_tokens=20)    # together, a step at a time

    path is a GGUF file, a Hugging Face folder, a training run's folder or a name in the model
    folder (KERMES_MODELS); None is the newest there. An open file, or bytes that hold a GGUF, serve
    too.
    """

    _kind = "model"

    def __init__(self, path: Any = None, *, device: Optional[str] = None,
                 devices: Optional[str] = None, gpu_layers: Optional[int] = None, threads: int = 0,
                 activations: int = 0, memory: int = 0, context: int = 0, sequences: int = 0,
                 cache: str = "f16", dtype: Optional[str] = None, tokenizer: Any = None,
                 chat_template: Optional[str] = None, draft: Any = None,
                 adapters: Sequence[Adapter] = (), rescue: bool = True,
                 tokenizer_only: bool = False,
                 progress: Optional[Callable[[int, int], Any]] = None) -> None:
        """Opens a model.

        device: "auto", "cpu", "cuda", "cuda:1"; devices: several, "cuda:0,cuda:1", that share the
        layers; gpu_layers: how many the GPU takes (-1: as many as fit). memory: bytes of a GPU that
        may be used. context: tokens of a sequence; sequences: how many sessions at once. cache:
        "f16", "f32", "bf16", "q8_0" or "q4_0" for keys and values. draft: "lookup" or a smaller
        model. adapters: LoRA folders or GGUF files, each a path, (path, scale), or a dict of path,
        scale, name, and off (used only where a generation asks for it). tokenizer_only: no weights,
        to tokenize and render. progress(done, total) is told of bytes loaded; False stops.
        """
        how = k.given("km_model_options", "km_model_defaults")
        hold: List[Any] = []  # what the struct points to

        def given(value: Any, what: str, as_path: bool = False) -> Any:
            if value is None:
                return NULL
            hold.append(ffi.new("char[]", k.path(value, what) if as_path else k.text(value, what)))
            return hold[-1]
        how.device = given(device, "device")
        how.devices = given(devices, "devices")
        if gpu_layers is not None:
            how.gpu_layers = gpu_layers
        how.threads, how.activations, how.memory = threads, activations, memory
        how.context, how.sequences = context, sequences
        how.cache = _CODE[dtype_name(cache)]
        if dtype is not None:
            how.dtype = _CODE[dtype_name(dtype)]
        how.tokenizer = given(tokenizer, "tokenizer", True)
        how.chat_template = given(chat_template, "chat_template")
        how.draft = given(draft, "draft", True)
        if adapters:
            how.adapters = hold_adapters(adapters, hold)
            how.n_adapters = len(adapters)
        how.no_rescue, how.tokenizer_only = not rescue, tokenizer_only
        told = _Loading(progress)
        how.progress = told.callback

        k.touch()
        name: Optional[bytes] = None
        self._memory: Any = None
        if path is None:
            made = k.lib.km_model_open(NULL, how)
        elif isinstance(path, (bytearray, memoryview)) or (
                isinstance(path, bytes) and path[:4] == b"GGUF"):
            self._memory = ffi.from_buffer(path)  # must outlive the model
            made = k.lib.km_model_open_memory(self._memory, len(self._memory), how)
        elif hasattr(path, "fileno"):
            made = k.lib.km_model_open_fd(path.fileno(), how)
        else:
            name = k.path(path)
            made = k.lib.km_model_open(name, how)
        if made == NULL:
            failed = k.last_error(name)
            raise told.raised if told.raised is not None else failed
        super().__init__(made, "km_model_close")

    # ---- What it is ----

    @property
    def info(self) -> ModelInfo:
        """Name, architecture, sizes, context, devices."""
        with self._using as p:
            i = k.given("km_model_info", "km_model_describe", p)
            if i.size == 0:
                k.fail()

            def text(s: Any) -> str:
                return ffi.string(s).decode("utf-8", "replace") if s != NULL else ""
            return ModelInfo(text(i.path), text(i.name), text(i.architecture), text(i.devices),
                             text(i.file_type), i.parameters, i.bytes, i.context, i.trained_context,
                             i.vocab, i.dim, i.layers, i.heads, i.kv_heads, bool(i.has_template),
                             bool(i.can_embed))

    @property
    def metadata(self) -> Dict[str, Any]:
        """All that the model's file says of itself."""
        with self._using as p:
            made = k.lib.km_model_describe_json(p)
            if made == NULL:
                k.fail()
            return json.loads(k.string(made))

    # ---- Adapters ----

    @property
    def adapters(self) -> List[Dict[str, Any]]:
        """The adapters that it has: name, path, scale, and off (used only where asked for)."""
        with self._using as p:
            made = k.lib.km_model_adapters_json(p)
            if made == NULL:
                k.fail()
            return json.loads(k.string(made))

    def add_adapter(self, path: Any, *, scale: float = 1.0, name: Optional[str] = None,
                    off: bool = False) -> None:
        """Adds a LoRA while the model is open, as if it had been opened with it.

            m.add_adapter("pirate/", off=True)
            m.generate("Hello", adapter="pirate")
        """
        hold: List[Any] = []
        made = hold_adapters([{"path": path, "scale": scale, "name": name, "off": off}], hold)
        with self._using as p:
            k.check(k.lib.km_model_add_adapter(p, made), k.path(path, "adapter"))

    def remove_adapter(self, name: str) -> None:
        """Removes one; texts that use it go on with it."""
        word = k.text(name, "name")
        with self._using as p:
            k.check(k.lib.km_model_remove_adapter(p, word))

    def __repr__(self) -> str:
        if self.closed:
            return "<kermes.Model, closed>"
        i = self.info
        return f"<kermes.Model {i.name!r}, {i.architecture}, {i.parameters / 1e6:.0f}M, on {i.devices}>"

    # ---- Tokens ----

    def tokenize(self, text: Union[str, bytes], *, special: bool = False,
                 parse_special: bool = False) -> np.ndarray:
        """The text's token ids, int32 (n).

        special: with what the tokenizer wants before and after a text; parse_special: "<|im_end|>"
        in the text is that token, not its letters.
        """
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if not isinstance(raw, bytes):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        flags = (1 if special else 0) | (2 if parse_special else 0)
        ids = np.empty(len(raw) + 8, np.int32)
        with self._using as p:
            n = k.lib.km_tokenize(p, raw, len(raw), flags, ffi.cast("int32_t *", ids.ctypes.data),
                                  len(ids))
            if n < 0:
                k.fail()
            if n > len(ids):
                ids = np.empty(n, np.int32)
                n = k.lib.km_tokenize(p, raw, len(raw), flags,
                                      ffi.cast("int32_t *", ids.ctypes.data), len(ids))
        return ids[:n].copy()

    def detokenize(self, ids: Any, *, skip_special: bool = False) -> str:
        """The text of token ids."""
        given = token_ids(ids)
        at = ffi.cast("int32_t *", given.ctypes.data)
        flags = 4 if skip_special else 0
        with self._using as p:
            n = k.lib.km_detokenize(p, at, len(given), flags, NULL, 0)
            if n < 0:
                k.fail()
            room = ffi.new("char[]", n + 1)
            if k.lib.km_detokenize(p, at, len(given), flags, room, n) < 0:
                k.fail()
        return ffi.buffer(room, n)[:].decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """What one token stands for: bytes, part of a character perhaps."""
        size = ffi.new("size_t *")
        with self._using as p:
            found = k.lib.km_token_piece(p, token, size)
            if found == NULL:
                raise k.RangeError(f"there is no token {token}")
            return ffi.buffer(found, size[0])[:]

    @property
    def bos(self) -> Optional[int]:
        """The token before a text, or None."""
        with self._using as p:
            t = k.lib.km_model_bos(p)
        return None if t < 0 else t

    @property
    def eos(self) -> Optional[int]:
        """The token after a text, or None."""
        with self._using as p:
            t = k.lib.km_model_eos(p)
        return None if t < 0 else t

    def embed(self, text: Any) -> np.ndarray:
        """Hidden states after the last norm, float32 (n, dim), of a text or of token ids."""
        given = self.tokenize(text, special=True) if isinstance(text, (str, bytes)) \
            else token_ids(text)

        def call() -> np.ndarray:
            with self._using as p:
                out = np.empty((len(given), k.given("km_model_info", "km_model_describe", p).dim), np.float32)
                k.check(k.lib.km_embed_tokens(p, ffi.cast("int32_t *", given.ctypes.data), len(given),
                                              ffi.cast("float *", out.ctypes.data)))
            return out
        return interruptible(call, lambda: None)

    # ---- Chats ----

    def render(self, messages: Messages, *, system: Optional[str] = None,
               tools: Optional[Sequence[Any]] = None, chat_template: Optional[str] = None,
               variables: Optional[Dict[str, Any]] = None, thinking: Optional[bool] = None,
               answer: bool = True) -> str:
        """A chat as the text that the model reads, by its chat template.

        messages: a str, what the user says, or a list of {"role": ..., "content": ...}. answer: the
        text ends where an answer begins.
        """
        raw = messages_json(messages, system)
        options = k.given("km_render_options", "km_render_defaults")
        hold: List[Any] = []

        def given(value: Any, what: str) -> Any:
            if value is None:
                return NULL
            hold.append(ffi.new("char[]", k.text(value, what)))
            return hold[-1]
        options.chat_template = given(chat_template, "chat_template")
        options.tools = given(None if tools is None else json.dumps(list(tools)), "tools")
        options.variables = given(None if variables is None else json.dumps(variables), "variables")
        options.thinking = 0 if thinking is None else 1 if thinking else -1
        options.no_answer = not answer
        with self._using as p:
            made = k.lib.km_render_chat(p, raw, options)
            if made == NULL:
                k.fail()
            return k.string(made)

    # ---- Generation ----

    def session(self) -> "Session":
        """A new session: what the model has read, to go on from."""
        from .sessions import Session
        return Session(self)

    def generate(self, prompt: str, *, stream: bool = False, **settings: "Unpack[Settings]") -> Any:
        """Goes on with a prompt: the text as a `kermes.Text`, or with `stream` its pieces as they
        come, or with `schema` a dict.

            m.generate("The capital of France is", max_tokens=8, temperature=0)
            m.generate(prompt, schema={"type": "object", "properties": {"age": {"type": "integer"}}})

        Settings: max_tokens, stop, schema, grammar, logprobs, temperature, top_k, top_p, min_p,
        typical, repeat_penalty, frequency_penalty, presence_penalty, repeat_last, dry_multiplier,
        mirostat, logit_bias, seed, ...: `help(kermes.Settings)`. Ctrl-C ends it.
        """
        made = settings_from(settings)
        return self.session()._run(prompt, made, stream, own=True)

    def chat(self, messages: Messages, *, system: Optional[str] = None,
             tools: Optional[Sequence[Any]] = None, thinking: Optional[bool] = None,
             stream: bool = False, **settings: "Unpack[Settings]") -> Any:
        """Answers a chat: as `generate`, of messages that the chat template makes a prompt of.

            m.chat("Why is the sky blue?")
            m.chat([{"role": "user", "content": "Hi"}], system="You are brief.", stream=True)
        """
        made = settings_from(settings)
        prompt = self.render(messages, system=system, tools=tools, thinking=thinking)
        made["rendered"] = True
        return self.session()._run(prompt, made, stream, own=True)

    def batch(self, prompts: Sequence[Any], *, chat: bool = False, sequences: int = 0,
              **settings: "Unpack[Settings]") -> List[Any]:
        """Many prompts together, a step of all at a time: their texts (dicts, with `schema`).

        Prompts are texts or lists of token ids; with `chat` each is what a chat's user says, or a
        list of messages. sequences: how many run at once (0: 16); the others wait for their turn.

            m.batch(["One", "Two", "Three"], max_tokens=20)
        """
        from .batches import run_batch
        made, stop = settings_from(settings), threading.Event()
        return interruptible(lambda: run_batch(self, prompts, chat, sequences, made, stop), stop.set)


def hold_adapters(adapters: Sequence[Adapter], hold: List[Any]) -> Any:
    """A C array of adapters; what it points to goes into `hold`."""
    made = ffi.new("km_adapter[]", len(adapters))
    for i, a in enumerate(adapters):
        given: Dict[str, Any] = dict(a) if isinstance(a, dict) else {}
        if not given:
            given["path"], given["scale"] = a if isinstance(a, tuple) else (a, 0.0)
        unknown = set(given) - {"path", "scale", "name", "off"}
        if unknown:
            raise TypeError(f"an adapter has no {sorted(unknown)[0]!r}")
        if given.get("path") is not None:
            hold.append(ffi.new("char[]", k.path(given["path"], "adapter")))
            made[i].path = hold[-1]
        if given.get("name") is not None:
            hold.append(ffi.new("char[]", k.text(given["name"], "name")))
            made[i].name = hold[-1]
        made[i].scale, made[i].off = given.get("scale") or 0.0, bool(given.get("off"))
    hold.append(made)
    return made
