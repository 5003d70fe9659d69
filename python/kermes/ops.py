"""Ops on tensors, as functions. Those with an operator or a method of `Tensor` are not repeated."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

from . import _library as k
from ._library import NULL, ffi
from .tensors import (_CODE, ArrayLike, Tensor, _binary, _call, _call_two, _ctx, _operand, dtype_name,
                      tensor)

_ACTS = {None: 0, "none": 0, "relu": 1, "gelu": 2, "gelu_erf": 3, "silu": 4}
_NO_IGNORE = -(2**63)


def _act(name: Optional[str]) -> int:
    try:
        return _ACTS[name]
    except (KeyError, TypeError):
        raise k.RangeError(f"no such activation: {name!r} (relu, gelu, gelu_erf, silu)") from None


def _tensor(x: ArrayLike) -> Tensor:
    return x if isinstance(x, Tensor) else tensor(x)


def _maybe(x: Optional[ArrayLike]) -> Any:
    return NULL if x is None else _tensor(x)


def _unary(c_name: str, name: str, doc: str) -> Callable[[ArrayLike], Tensor]:
    def op(x: ArrayLike) -> Tensor:
        return _call(c_name, _tensor(x))
    op.__name__ = op.__qualname__ = name
    op.__doc__ = doc
    return op


sqrt = _unary("km_sqrt", "sqrt", "The square root of each element.")
rsqrt = _unary("km_rsqrt", "rsqrt", "1 / sqrt(x).")
exp = _unary("km_exp", "exp", "e^x.")
log = _unary("km_log", "log", "The natural logarithm.")
sin = _unary("km_sin", "sin", "The sine.")
cos = _unary("km_cos", "cos", "The cosine.")
tanh = _unary("km_tanh", "tanh", "The hyperbolic tangent.")
sigmoid = _unary("km_sigmoid", "sigmoid", "1 / (1 + exp(-x)).")
relu = _unary("km_relu", "relu", "max(x, 0).")
gelu = _unary("km_gelu", "gelu", "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).")
gelu_erf = _unary("km_gelu_erf", "gelu_erf", "x/2 (1 + erf(x / sqrt 2)).")
silu = _unary("km_silu", "silu", "x / (1 + exp(-x)).")
nonzero = _unary("km_nonzero", "nonzero",
                 "i64 (count, rank of x): the index of each element that is not 0.")


def maximum(a: ArrayLike, b: ArrayLike) -> Tensor:
    """The larger of each two elements; NaN wins."""
    return _binary("km_maximum", a if _any(a, b) else _tensor(a), b)


def minimum(a: ArrayLike, b: ArrayLike) -> Tensor:
    """The smaller of each two elements; NaN wins."""
    return _binary("km_minimum", a if _any(a, b) else _tensor(a), b)


def _any(a: ArrayLike, b: ArrayLike) -> bool:
    return isinstance(a, Tensor) or isinstance(b, Tensor)


def clamp(x: ArrayLike, lo: float, hi: float) -> Tensor:
    """min(max(x, lo), hi)."""
    return _call("km_clamp", _tensor(x), lo, hi)


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Tensor:
    """a where the condition holds, b elsewhere; all three broadcast."""
    left = a if isinstance(a, Tensor) else _operand(a, b) if isinstance(b, Tensor) else _tensor(a)
    return _call("km_where", _tensor(condition), left, _operand(b, left))


def masked_fill(x: ArrayLike, mask: ArrayLike, value: float) -> Tensor:
    """x with `value` where the mask holds."""
    return _call("km_masked_fill", _tensor(x), _tensor(mask), value)


def masked_select(x: ArrayLike, mask: ArrayLike) -> Tensor:
    """Those elements whose mask is true, as a list."""
    return _call("km_masked_select", _tensor(x), _tensor(mask))


def masked_scatter(x: ArrayLike, mask: ArrayLike, source: ArrayLike) -> Tensor:
    """x with the ith place that the mask picks replaced by source[i]."""
    return _call("km_masked_scatter", _tensor(x), _tensor(mask), _tensor(source))


def triu(x: ArrayLike, diagonal: int = 0) -> Tensor:
    """The upper triangle: keeps j - i >= diagonal."""
    return _call("km_triu", _tensor(x), diagonal)


def tril(x: ArrayLike, diagonal: int = 0) -> Tensor:
    """The lower triangle: keeps j - i <= diagonal."""
    return _call("km_tril", _tensor(x), diagonal)


def dropout(x: ArrayLike, p: float) -> Tensor:
    """Zeroes each element with probability p and scales the rest by 1/(1-p)."""
    return _call("km_dropout", _tensor(x), p)


def matmul(a: ArrayLike, b: ArrayLike) -> Tensor:
    """(..., m, k) x (..., k, n) -> (..., m, n), the same as `a @ b`."""
    return _binary("km_matmul", a if _any(a, b) else _tensor(a), b)


def linear(x: ArrayLike, w: Tensor, b: Optional[Tensor] = None, act: Optional[str] = None) -> Tensor:
    """act(x w^T + b): x (..., in), w (out, in), b (out) -> (..., out). w may be in blocks (q4_k)."""
    return _call("km_linear", _tensor(x), w, _maybe(b), _act(act))


def mlp(x: ArrayLike, w1: Tensor, b1: Optional[Tensor], act: Optional[str], w2: Tensor,
        b2: Optional[Tensor] = None) -> Tensor:
    """act(x w1^T + b1) w2^T + b2, the middle of a transformer block."""
    return _call("km_mlp", _tensor(x), w1, _maybe(b1), _act(act), w2, _maybe(b2))


def softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return _call("km_softmax", _tensor(x), axis)


def log_softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """log(softmax(x)) along an axis."""
    return _call("km_log_softmax", _tensor(x), axis)


def layer_norm(x: ArrayLike, w: Tensor, b: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * w + b over the last axis."""
    return _call("km_layer_norm", _tensor(x), w, _maybe(b), eps)


def rms_norm(x: ArrayLike, w: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * w over the last axis."""
    return _call("km_rms_norm", _tensor(x), w, eps)


def embedding(table: Tensor, ids: ArrayLike) -> Tensor:
    """Rows of a table: (v, c), (...) -> (..., c)."""
    return _call("km_embedding", table, _tensor(ids))


def gather(x: Tensor, index: ArrayLike, axis: int = -1) -> Tensor:
    """out[i][j] = x[i][index[i][j]] for axis 1, likewise for others."""
    return _call("km_gather", x, axis, _tensor(index))


def scatter(x: Tensor, index: ArrayLike, source: ArrayLike, axis: int = -1) -> Tensor:
    """A copy of x with source[i][j] put at x[i][index[i][j]]."""
    return _call("km_scatter", x, axis, _tensor(index), _operand(source, x))


def scatter_add(x: Tensor, index: ArrayLike, source: ArrayLike, axis: int = -1) -> Tensor:
    """A copy of x with source[i][j] added at x[i][index[i][j]]."""
    return _call("km_scatter_add", x, axis, _tensor(index), _operand(source, x))


def index_select(x: Tensor, index: ArrayLike, axis: int = 0) -> Tensor:
    """The entries of an axis that an index (n) names."""
    return _call("km_index_select", x, axis, _tensor(index))


def _joined(name: str, parts: Sequence[ArrayLike], axis: int) -> Tensor:
    given = [_tensor(p) for p in parts]
    if not given:
        raise k.ShapeError("nothing to join")
    return _call(name, given, len(given), axis)


def concat(parts: Sequence[ArrayLike], axis: int = 0) -> Tensor:
    """Tensors one behind the other along an axis."""
    return _joined("km_concat", parts, axis)


def stack(parts: Sequence[ArrayLike], axis: int = 0) -> Tensor:
    """Tensors one behind the other along a new axis."""
    return _joined("km_stack", parts, axis)


def repeat(x: ArrayLike, n: int, axis: int = 0) -> Tensor:
    """x n times, one after another, along an axis."""
    return _call("km_repeat", _tensor(x), axis, n)


def repeat_each(x: ArrayLike, n: int, axis: int = 0) -> Tensor:
    """Each element n times in a row, along an axis."""
    return _call("km_repeat_each", _tensor(x), axis, n)


def one_hot(ids: ArrayLike, classes: int, dtype: Any = "f32") -> Tensor:
    """(...) -> (..., classes): 1 where ids[i] == j, 0 elsewhere."""
    return _call("km_one_hot", _tensor(ids), classes, _CODE[dtype_name(dtype)])


def cumsum(x: ArrayLike, axis: int = -1) -> Tensor:
    """y[i] = x[0] + ... + x[i] along an axis."""
    return _call("km_cumsum", _tensor(x), axis)


def sort(x: ArrayLike, axis: int = -1, descending: bool = False) -> Tuple[Tensor, Tensor]:
    """x in order along an axis, and where each element was (i64)."""
    given = _tensor(x)
    return _call_two("km_sort", given, axis, descending)


def topk(x: ArrayLike, count: int, axis: int = -1, largest: bool = True) -> Tuple[Tensor, Tensor]:
    """The `count` largest (smallest) along an axis, from the first, and where each was (i64)."""
    return _call_two("km_topk", _tensor(x), count, axis, largest)


def rope(x: Tensor, positions: Optional[ArrayLike] = None, adjacent: bool = False,
         base: float = 10000.0, n_dims: int = 0) -> Tensor:
    """Rotary positions: pair i of the last axis is turned by position * base^(-2i/n_dims).
    x (..., T, d), positions (T). adjacent: pairs (2i, 2i + 1), else (i, i + d/2)."""
    return _call("km_rope", x, _maybe(positions), 1 if adjacent else 0, base, n_dims)


def attention(q: Tensor, key: Tensor, value: Tensor, causal: bool = False,
              scale: float = 0.0) -> Tensor:
    """softmax(q k^T * scale) v: q (B, H, Tq, D), k, v (B, Hkv, Tk, D). scale 0: 1/sqrt(D)."""
    return _call("km_attention", q, key, value, causal, scale)


def attention_qkv(qkv: Tensor, heads: int, kv_heads: Optional[int] = None, causal: bool = False,
                  scale: float = 0.0) -> Tensor:
    """The same over q, k and v side by side: qkv (B, T, (H + 2 Hkv) D) -> (B, T, H D)."""
    return _call("km_attention_qkv", qkv, heads, heads if kv_heads is None else kv_heads, causal,
                 scale)


def _reduction(name: str) -> int:
    if name not in ("mean", "sum"):
        raise k.RangeError(f"no such reduction: {name!r} (mean, sum)")
    return 0 if name == "mean" else 1


def cross_entropy(logits: Tensor, targets: ArrayLike, ignore_index: Optional[int] = None,
                  reduction: str = "mean") -> Tensor:
    """-log softmax(logits)[target]: logits (..., v), targets (...) i32 or i64."""
    ignored = _NO_IGNORE if ignore_index is None else ignore_index
    return _call("km_cross_entropy", logits, _tensor(targets), ignored, _reduction(reduction))


def mse(x: Tensor, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """(x - target)^2."""
    return _call("km_mse", x, _operand(target, x), _reduction(reduction))


def bce_with_logits(x: Tensor, target: ArrayLike, reduction: str = "mean") -> Tensor:
    """The binary cross entropy of sigmoid(x) and targets from 0 to 1."""
    return _call("km_bce_with_logits", x, _operand(target, x), _reduction(reduction))


def clip_grad_norm(parameters: Sequence[Tensor], max_norm: float) -> float:
    """Scales gradients so that their global 2-norm is at most max_norm; returns the norm before."""
    with _ctx.lock:
        pointers = ffi.new("km_tensor *[]", [t._kept for t in parameters])
        norm = k.lib.km_clip_grad_norm(_ctx.pointer or _ctx.open(), pointers, len(parameters), max_norm)
        if k.lib.km_ctx_status(_ctx.pointer):
            raise _ctx.failed()
    return norm
