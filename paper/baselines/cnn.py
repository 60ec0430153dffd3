"""The supervised baseline: the backbone and a linear classifier, trained end to end (section 4.2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paper.baselines.backbone import Backbone
from paper.baselines.shared import labels_of
from paper.baselines.training import DeepBaseline, Learner


class _Classifier(Learner):
    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        backbone = Backbone(shape)
        super().__init__(shape, backbone.n_features)
        self.encoder = backbone
        self.linear = nn.Linear(backbone.n_features, n_classes, dtype=torch.float32)

    def objective(self, S: Tensor, codes: Tensor | None) -> Tensor:
        assert codes is not None
        return cross_entropy(self.linear(self.encode(S)), codes.repeat(len(S) // len(codes)))

    def probabilities(self, T: Tensor) -> Tensor:
        """Compute the class probabilities (b, classes) of unstandardised tensors."""
        return torch.softmax(self.linear(self(T)), dim=1)


class ReferenceCNN(ClassifierMixin, DeepBaseline):  # type: ignore[misc]
    """A CNN trained end to end on labelled windows; its features are those of the backbone.

    With an augmentation, the view of each window is trained with the label of the window. `n_parameters_` counts the
    backbone and the linear layer to the classes.

    Parameters
    ----------
    tensorize, augment, learning_rate, weight_decay, batch_size, max_epochs, patience, holdout : as for `SimCLR`, except
        that the augmentation is optional
    device, random_state : as for `SimCLR`

    Attributes
    ----------
    classes_ : (classes,), the class labels
    history_, n_epochs_, best_epoch_, n_parameters_, seed_, tensorize_ : as for `SimCLR`

    Examples
    --------
    >>> X, y = torch.randn(20, 3, 9, 8), np.arange(20) % 2
    >>> model = ReferenceCNN(max_epochs=1).fit(X, y)
    >>> model.predict(X).shape, model.predict_proba(X).shape
    ((20,), torch.Size([20, 2]))
    """

    classes_: np.ndarray

    def _codes(self, y: Any, source: Any) -> Tensor:
        self.classes_, codes = labels_of(y, source.n_windows, type(self).__name__)
        return torch.from_numpy(codes.astype(np.int64))

    def _network_for(self, shape: Sequence[int]) -> Learner:
        return _Classifier(shape, len(self.classes_))

    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class: (N, classes), the same kind of array as X."""
        check_is_fitted(self)
        samples = self._samples(X, reset=False)
        rows = []
        with torch.no_grad():
            for T in self._tensors(samples):
                network = self._ready(T)
                assert isinstance(network, _Classifier)
                rows.append(network.probabilities(T).to(T.dtype))
        return samples.like_input(torch.cat(rows))

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class of each window: (N,)."""
        probabilities = torch.as_tensor(self.predict_proba(X))
        chosen: np.ndarray = self.classes_[probabilities.argmax(dim=1).cpu().numpy()]
        return chosen

    def _extra(self) -> dict[str, Any]:
        return super()._extra() | {"classes": self.classes_.tolist(), "classes_type": self.classes_.dtype.str}

    def _restore(self, arrays: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        self.classes_ = np.asarray(extra["classes"], dtype=np.dtype(extra["classes_type"]))
        super()._restore(arrays, extra)
