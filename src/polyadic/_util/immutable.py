"""Base class of immutable objects, such as tensorizers and augmentations, stored in files by name and fields."""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from typing import Any, ClassVar, Self

import numpy as np

from polyadic.errors import PolyadicError


class Immutable:
    """An immutable object of a pipeline, described by its dataclass fields.

    Subclasses register themselves when defined, so that model files can refer to them by name. One that is not a
    dataclass cannot be stored.
    """

    _kinds: ClassVar[dict[str, type[Immutable]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]  # otherwise `dataclass` would generate one
        Immutable._kinds[cls.type_name()] = cls

    @classmethod
    def type_name(cls) -> str:
        """Return the name used in files: the class name, with its module if outside polyadic."""
        own = cls.__module__.partition(".")[0] == "polyadic"
        return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"

    @staticmethod
    def find(name: str) -> type[Immutable] | None:
        """Return the subclass of that name, or None if it is not defined (yet)."""
        return Immutable._kinds.get(name)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the fields by name, as scikit-learn does."""
        return {name: getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())}

    def with_params(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        known = self.get_params()
        for name in changes.keys() - known.keys():
            raise PolyadicError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
        return type(self)(**{**known, **changes})

    def __sklearn_clone__(self) -> Self:
        return self

    def __repr__(self) -> str:
        """Show only fields that differ from their defaults, like scikit-learn, and arrays by their shape.

        Examples
        --------
        >>> from polyadic.spectral import STFT
        >>> STFT(64, 16), STFT(4, 2, mean=np.zeros((20, 3)))
        (STFT(n_fft=64, hop=16), STFT(n_fft=4, hop=2, mean=<20 × 3 numbers>))
        """
        shown: list[str] = []
        known: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        for item in known:
            value = getattr(self, item.name)
            if item.repr and repr(value) != repr(item.default):
                array = np.asarray(value if isinstance(value, tuple | list | np.ndarray) else ())
                many = array.dtype.kind in "iuf" and array.size > 4
                text = f"<{' × '.join(map(str, array.shape))} numbers>" if many else repr(value)
                shown.append(f"{item.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"
