"""A registry of the classes in a package: one file each, found by being there. Plugins register beside them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import ClassVar, Generic, Protocol, TypeVar

from pcr_ray.errors import InputError
from pcr_ray.text import did_you_mean, first_line

ENTRY_POINTS = "pcr_ray.plugins"  # of installed packages: NAME = package.module


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
            if not cls.__module__.startswith(f"{self.package}."):
                self._load_package()  # whose names come first
            other = self._items.get(name)
            if other and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                where = getattr(sys.modules.get(other.__module__), "__file__", other.__module__)
                raise InputError(f"{self.kind} '{name}' is there already, in {where}: choose another name")
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

    def of_module(self, module: str) -> list[str]:
        """The names that a module registered."""
        return sorted(name for name, cls in self._items.items() if cls.__module__ == module)

    def forget(self, module: str) -> None:
        """Before a module is imported again."""
        self._items = {name: cls for name, cls in self._items.items() if cls.__module__ != module}

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def __iter__(self) -> Iterator[type[T]]:
        return iter([self._items[n] for n in self.names()])

    def _load(self) -> None:
        self._load_package()
        _load_installed()

    def _load_package(self) -> None:
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")


_installed: set[str] = set()


def _load_installed() -> None:
    """Import what installed packages name as plugins, once."""
    if _installed:
        return
    _installed.add("")  # at once: a plugin may ask a registry while it is imported
    for point in entry_points(group=ENTRY_POINTS):
        try:
            importlib.import_module(point.module)
        except (Exception, SystemExit) as error:  # somebody else's code raises anything
            _installed.clear()
            owner = point.dist.name if point.dist else point.value
            raise InputError(
                f"plugin '{point.name}' of the installed package {owner} cannot be used: {first_line(error)}\n"
                f"  Mend {owner} or uninstall it."
            ) from error
