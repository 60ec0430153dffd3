"""Tensorizers and augmentations are values: never changed, cloned to themselves, stored in files by name and fields."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from polyadic.errors import PolyadicError

__all__ = ["Immutable"]


class Immutable:
    """A value of a pipeline, described by its dataclass fields.

    Subclasses register themselves when they are defined, so that a model file can name them; one that is not a
    dataclass has no description, and `polyadic.load` asks for it again.
    """

    _kinds: ClassVar[dict[str, type[Immutable]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Immutable._kinds[cls.type_name()] = cls

    @classmethod
    def type_name(cls) -> str:
        """The name in a file: that of the class, with its module if that is not one of ours."""
        own = cls.__module__.partition(".")[0] == "polyadic"
        return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"

    @staticmethod
    def find(name: str) -> type[Immutable] | None:
        """The subclass of that name, if it has been defined by now."""
        return Immutable._kinds.get(name)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name, as scikit-learn asks for them."""
        return {name: getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())}

    def with_params(self, **changes: Any) -> Self:
        """A copy with other values of some fields.

        Examples
        --------
        >>> from polyadic.augment import Jitter
        >>> Jitter(0.1).with_params(degree=0.2)
        Jitter(degree=0.2)
        """
        known = self.get_params()
        for name in changes:
            if name not in known:
                raise PolyadicError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known) or 'none'}"
                )
        return type(self)(**{**known, **changes})

    def __sklearn_clone__(self) -> Self:
        return self
