"""Kermes: a local AI engine. Language models, vectors compressed and searched, and tensors with
gradients, on the CPU or on an NVIDIA GPU, by one C library that comes with this package.

Models:

    import kermes
    m = kermes.Model("SmolLM2-135M-Instruct.Q4_1.gguf")
    for piece in m.chat("Why is the sky blue?", stream=True): print(piece, end="")
    person = m.generate(prompt, schema=Person)         # a pydantic model or a JSON schema; a dict
    answers = m.batch(["One", "Two", "Three"])         # together
    s = m.session(); s.chat("Hello"); s.fork().chat("Who are you?")

Tensors, as in NumPy, with gradients:

    import kermes, numpy as np
    x = kermes.tensor(np.random.rand(64, 32).astype("float32"))
    w = kermes.tensor(np.zeros((32, 1), "float32"), requires_grad=True)
    loss = kermes.mse(x @ w, np.ones((64, 1)))
    loss.backward()                        # w.grad
    (x @ w).numpy()                        # shares memory, nothing is copied

Training, from a text to a model:

    kermes.train(data="book.txt", out="run", tokenizer="bpe:4096", on_step=print)

Vectors, a few bytes each:

    index = kermes.Index.build(vectors, bytes=48)      # (n, dim) float32
    ids, distances = index.search(queries, k=10)       # (q, 10) each
    index.save("vectors.kmi"); index = kermes.Index("vectors.kmi")

What goes wrong is an exception: `kermes.Error`, with the C status in `.status`, and at the same time
the Python exception that fits (ValueError, MemoryError, FileNotFoundError, ...). The interpreter lock
is released while C works, and any thread may use any object. A child made by fork() gets a
`kermes.StateError`; start workers by multiprocessing's "spawn".
"""
from __future__ import annotations

from . import _library
from ._library import (DeviceError, DtypeError, Error, FileError, FileMissing, FormatError, GpuError,
                       MissingError, OutOfMemory, RangeError, ShapeError, StateError,
                       UnsupportedError)
from .files import Device, devices, load, save
from .generation import Logprob, Settings, Stats, Stream, Text
from .indexes import NO_ID, Index, IndexInfo
from .models import Model, ModelInfo
from .ops import (attention, attention_qkv, bce_with_logits, clamp, clip_grad_norm, concat, cos,
                  cross_entropy, cumsum, dropout, embedding, exp, gather, gelu, gelu_erf, index_select,
                  layer_norm, linear, log, log_softmax, masked_fill, masked_scatter, masked_select,
                  matmul, maximum, minimum, mlp, mse, nonzero, one_hot, relu, repeat, repeat_each, rms_norm, rope,
                  rsqrt, scatter, scatter_add, sigmoid, silu, sin, softmax, sort, sqrt, stack, tanh,
                  topk, tril, triu, where)
from .optim import SGD, AdamW
from .sessions import Session
from .tensors import (Tensor, arange, from_dlpack, full, no_grad, normal, ones, seed, tensor, uniform,
                      zeros)
from .training import TrainResult, TrainStatus, train, train_settings

__version__ = _library.ffi.string(_library.lib.km_version()).decode()
__all__ = [
    # models
    "Model", "ModelInfo", "Session", "Settings", "Stream", "Text", "Logprob", "Stats",
    # tensors
    "Tensor", "tensor", "from_dlpack", "zeros", "ones", "full", "arange", "uniform", "normal", "seed",
    "no_grad", "SGD", "AdamW", "clip_grad_norm",
    # ops
    "attention", "attention_qkv", "bce_with_logits", "clamp", "concat", "cos", "cross_entropy",
    "cumsum",    "dropout", "embedding", "exp", "gather", "gelu", "gelu_erf", "index_select", "layer_norm",
    "linear", "log", "log_softmax", "masked_fill", "masked_scatter", "masked_select", "matmul",
    "maximum", "minimum", "mlp", "mse", "nonzero", "one_hot", "relu", "repeat", "repeat_each",
    "rms_norm", "rope", "rsqrt", "scatter",
    "scatter_add", "sigmoid", "silu", "sin", "softmax", "sort", "sqrt", "stack", "tanh", "topk",
    "tril", "triu",
    "where",
    # training
    "train", "train_settings", "TrainResult", "TrainStatus",
    # files and devices
    "load", "save", "devices", "Device",
    # vectors
    "Index", "IndexInfo", "NO_ID",
    # errors
    "Error", "ShapeError", "DtypeError", "DeviceError", "RangeError", "MissingError", "OutOfMemory",
    "FileError", "FileMissing", "FormatError", "StateError", "UnsupportedError", "GpuError",
]
