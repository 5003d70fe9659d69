"""Optimisers: parameters updated in place from their gradients."""
from __future__ import annotations

from typing import Iterable, List, Tuple

from . import _library as k
from ._library import NULL, ffi
from .tensors import Tensor, _ctx, zeros


class _Optimiser:
    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters: List[Tensor] = list(parameters)
        for p in self.parameters:
            if not isinstance(p, Tensor):
                raise TypeError(f"parameters must be tensors, not {type(p).__name__}")
            if not p.requires_grad:
                raise k.StateError("a parameter needs requires_grad=True")

    def _state(self) -> List[Tensor]:
        return [zeros(p.shape, "f64" if p.dtype == "f64" else "f32", p.device)
                for p in self.parameters]

    def _pointers(self, tensors: List[Tensor]) -> object:
        return ffi.new("km_tensor *[]", [t._kept for t in tensors])

    def zero_grad(self) -> None:
        """Clears the gradients of all parameters."""
        with _ctx.lock:
            k.lib.km_zero_grad(_ctx.pointer or _ctx.open(), self._pointers(self.parameters),
                               len(self.parameters))


class SGD(_Optimiser):
    """Stochastic gradient descent, with momentum where asked for.

    >>> w = kermes.tensor([4.0], requires_grad=True)
    >>> opt = kermes.SGD([w], lr=0.1)
    >>> for _ in range(50):
    ...     opt.zero_grad(); (w * w).sum().backward(); opt.step()
    >>> abs(w.item()) < 0.01
    True
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(parameters)
        self.lr, self.momentum = lr, momentum
        self.weight_decay, self.nesterov = weight_decay, nesterov
        self._m = self._state() if momentum else None

    def step(self) -> None:
        """One update of all parameters that have a gradient."""
        how = k.given("km_sgd", "km_sgd_defaults")
        how.lr, how.momentum = self.lr, self.momentum
        how.weight_decay, how.nesterov = self.weight_decay, self.nesterov
        with _ctx.lock:
            m = self._pointers(self._m) if self._m is not None else NULL
            if k.lib.km_sgd_step(_ctx.pointer or _ctx.open(), self._pointers(self.parameters), m,
                                 len(self.parameters), how):
                raise _ctx.failed()


class AdamW(_Optimiser):
    """Adam with decoupled weight decay (with `coupled` the decay of plain Adam)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3,
                 betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01, coupled: bool = False) -> None:
        super().__init__(parameters)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.weight_decay, self.coupled = weight_decay, coupled
        self.steps = 0
        self._m, self._v = self._state(), self._state()

    def step(self) -> None:
        """One update of all parameters that have a gradient."""
        how = k.given("km_adamw", "km_adamw_defaults")
        how.lr, (how.beta1, how.beta2), how.eps = self.lr, self.betas, self.eps
        how.weight_decay, how.step, how.coupled = self.weight_decay, self.steps + 1, self.coupled
        with _ctx.lock:
            if k.lib.km_adamw_step(_ctx.pointer or _ctx.open(), self._pointers(self.parameters),
                                   self._pointers(self._m), self._pointers(self._v),
                                   len(self.parameters), how):
                raise _ctx.failed()
        self.steps += 1
