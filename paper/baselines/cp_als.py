"""CP decomposition of all windows at once by TensorLy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyadic.baselines import Baseline
from polyadic.core import step as als
from polyadic.core.algebra import gram, project
from polyadic.errors import PolyadicError


@dataclass(eq=False, repr=False)
class CPALS(Baseline):
    """CP decomposition of the tensor of all windows by TensorLy's alternating least squares.

    The whole tensor must fit in memory; TensorLy needs two to three times its size. Features are the ridge
    least-squares coefficients on the bases, as for ATD.

    Parameters
    ----------
    rank : number of components, and of features
    tensorize : from a batch (b, channels, time) to tensors (b, I, J, …); None if the input already is a tensor
    alpha : weight of the ridge term of the features
    max_iter : maximum number of iterations of TensorLy
    tol : TensorLy stops when the relative error changes by less
    device : "auto", "cpu", "cuda", …: where tensors and features are computed; TensorLy runs on the CPU
    random_state : seed of the initial values

    Attributes
    ----------
    factors_ : the bases with columns of norm 1, matrices of shapes (I, R), (J, R), …
    history_ : `error`, TensorLy's relative error ‖T - T̂‖ / ‖T‖, one number per iteration
    n_parameters_ : R · (I + J + …)
    """

    rank: int = 32
    _: KW_ONLY
    tensorize: Any = None
    alpha: float = 1e-3
    max_iter: int = 50
    tol: float = 1e-6
    device: str | torch.device = "auto"
    random_state: Any = 0

    def _learn(self, X: Any, y: Any) -> None:
        import tensorly
        from tensorly.decomposition import parafac

        source = self._source(X)
        whole = torch.cat([T.cpu() for T in self._passes(source.samples, most=0)()]).numpy()
        try:
            with tensorly.backend_context("numpy", local_threadsafe=True):
                (_, factors), errors = parafac(
                    whole,
                    int(self.rank),
                    n_iter_max=int(self.max_iter),
                    init="random",
                    tol=float(self.tol) or None,
                    random_state=self.seed_ % 2**32,
                    return_errors=True,
                )
        except np.linalg.LinAlgError as error:
            raise PolyadicError(
                f"TensorLy met a singular matrix: X has fewer components than rank={self.rank}. Use a smaller rank"
            ) from error
        bases = [np.ascontiguousarray(factor, dtype=whole.dtype) for factor in factors[1:]]
        if not all(np.isfinite(basis).all() for basis in bases):
            raise PolyadicError("TensorLy's bases did not stay finite: scale X, or use a smaller rank")
        norms = [np.linalg.norm(basis, axis=0) for basis in bases]
        self.factors_ = [basis / np.where(norm > 0, norm, 1.0) for basis, norm in zip(bases, norms, strict=True)]
        self.history_ = {"error": [float(error) for error in errors]}

    def _features(self, T: Tensor) -> Tensor:
        factors = [torch.as_tensor(factor, dtype=T.dtype, device=T.device) for factor in self.factors_]
        G = gram([factor.double() for factor in factors])
        return als.solve_coefficients(project(T, factors), G, als.Objective(alpha=float(self.alpha)))

    def _width(self) -> int:
        return int(self.factors_[0].shape[1])

    def _arrays(self) -> dict[str, np.ndarray]:
        return {f"factors.{mode}": factor for mode, factor in enumerate(self.factors_)}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        self.factors_ = [arrays[f"factors.{mode}"] for mode in range(len(arrays))]
