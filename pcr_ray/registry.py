"""A registry of the classes in a package: one file each, found by being there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import ClassVar, Generic, Protocol, TypeVar

from pcr_ray.errors import InputError
from pcr_ray.text import did_you_mean


class Named(Protocol):
    name: ClassVar[str]  # set by `register`


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Maps names to classes; importing every module of `package` fills it on first use."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._items: dict[str, type[T]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            if name in self._items:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            cls.name = name
            self._items[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        self._load()
        return sorted(self._items)

    def get(self, name: str) -> type[T]:
        self._load()
        if name not in self._items:
            raise InputError(f"unknown {self.kind} '{name}'{did_you_mean(str(name), self.names())}")
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def __iter__(self) -> Iterator[type[T]]:
        return iter([self._items[n] for n in self.names()])

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
