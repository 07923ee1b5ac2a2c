"""Replacing a matrix by one that is nearly orthogonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.transforms._batch import WIDER, over_values
from lightning_hooks.transforms._check import check_count, check_finite, check_flag, is_finite
from lightning_hooks.transforms._contract import refuse_sparse
from lightning_hooks.transforms.base import Context, Transform

_MOST_STEPS: Final = 1000
# The iterations should bring singular values near 1. If one grows beyond this bound, the iterations diverge.
_MOST_GROWTH: Final = 1e6


@dataclass(frozen=True)
class Orthogonalize(Transform):
    """Bring the singular values of each matrix near 1 by Newton-Schulz iterations, as in the Muon optimizer.

    From `X = G / (norm(G) + eps)`, with the Frobenius norm, each iteration computes `a X + (b A + c A A) X` with
    `A = X Xᵀ`. With the default coefficients, singular values that are not tiny end between about 0.7 and 1.2; more steps
    do not bring them closer to 1. Tensors of fewer than two dimensions stay unchanged. Muon applies this to its momentum;
    on a gradient it equals Muon with `momentum=0`, without its shape-dependent learning-rate factor.

    Matrices of equal shape are processed as one batch. float16 and bfloat16 are computed in float32 (Muon computes
    everything in bfloat16). The norm is that of the whole matrix, so a NaN spreads through the matrix. Refused on
    activations, and rarely useful on gradients of modules: their first dimension is the batch, so examples would be mixed.

    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.

    Args:
        steps: the number of iterations; from 1 to 1000, 5 by default.
        coefficients: (a, b, c) of the polynomial; Muon's by default.
        eps: added to the norm; at least 0, 1e-7 by default. A zero matrix stays zero if `eps` is above 0.
        flatten: whether tensors of more than two dimensions are reshaped to matrices [d0, d1 * d2 …], as Muon does with the
            weights of convolutions; True by default. If False, they stay unchanged.

    Raises:
        RuleError: if an option is not in its range.
        TransformError: when called with a sparse gradient, since the result is dense.

    Example:
        >>> (result,) = Orthogonalize()([torch.diag(torch.tensor([10.0, 1.0]))], Context())
        >>> bool(torch.all((torch.linalg.svdvals(result) - 1).abs() < 0.35))
        True
    """

    on_activations: ClassVar[bool] = False

    steps: int = 5
    _: KW_ONLY
    coefficients: Sequence[float] = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    flatten: bool = True

    def __post_init__(self) -> None:
        check_count(self, "steps", at_least=1)
        if self.steps > _MOST_STEPS:
            raise RuleError(f"Orthogonalize.steps must be at most {_MOST_STEPS}, got {self.steps}")
        check_finite(self, "eps", at_least=0)
        check_flag(self, "flatten")
        given: Any = self.coefficients
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 3 or not all(map(is_finite, given)):
            raise RuleError(f"Orthogonalize.coefficients must be three finite numbers, got {shown(given)}")
        object.__setattr__(self, "coefficients", tuple(map(float, given)))
        self._refuse_divergence()

    def _refuse_divergence(self) -> None:
        """Raise if the coefficients let singular values, which start between 0 and 1, grow without end."""
        a, b, c = self.coefficients
        values = torch.linspace(0, 1, 1001, dtype=torch.float64, device="cpu")
        for _ in range(self.steps):
            values = values * (a + values.square() * (b + c * values.square()))
            # `not … <= bound` also refuses a NaN.
            if not bool((values.abs() <= _MOST_GROWTH).all()):
                raise RuleError(
                    f"Orthogonalize.coefficients {self.coefficients} make singular values grow without end: after at most "
                    f"steps={self.steps} iterations one is above {_MOST_GROWTH:g}"
                )

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each matrix with singular values near 1."""
        refuse_sparse(self, tensors, context, "its orthogonal form is dense")
        return over_values(tensors, context, self._change)

    def _change(self, values: list[Tensor], owned: bool) -> list[Tensor]:
        results = list(values)
        batches: dict[tuple[torch.device, torch.dtype, int, int], list[int]] = {}
        for index, value in enumerate(values):
            if value.numel() and (value.dim() == 2 or (value.dim() > 2 and self.flatten)):
                rows, columns = value.shape[0], value.numel() // value.shape[0]
                batches.setdefault((value.device, value.dtype, min(rows, columns), max(rows, columns)), []).append(index)
            elif not owned:
                results[index] = value.clone()
        for members in batches.values():
            orthogonal = self._iterate(torch.stack([_wide(values[index]) for index in members]))
            for index, new in zip(members, orthogonal.unbind(), strict=True):
                value = values[index]
                matrix = new.mT if _is_tall(value) else new
                shaped = matrix.reshape(value.shape)
                # Copy the matrix out of the batch: a slice would keep the whole batch in memory.
                results[index] = value.copy_(shaped) if owned else torch.empty_like(value).copy_(shaped)
        return results

    def _iterate(self, x: Tensor) -> Tensor:
        """Run the iterations on a batch [n, rows, columns] with rows <= columns."""
        a, b, c = self.coefficients
        x = x / (torch.linalg.matrix_norm(x, keepdim=True) + self.eps)
        for _ in range(self.steps):
            gram = x @ x.mH
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x


def _is_tall(value: Tensor) -> bool:
    return value.shape[0] ** 2 > value.numel()


def _wide(value: Tensor) -> Tensor:
    """A tensor as a matrix with rows <= columns, in the dtype to calculate in.

    A tall matrix is transposed, because f(X) = f(Xᵀ)ᵀ and the product X Xᵀ is then smaller.
    """
    matrix = value.reshape(value.shape[0], -1).to(WIDER.get(value.dtype, value.dtype))
    return matrix.mT if _is_tall(value) else matrix
