"""torch, imported when it is first used.

What a study needs to know of methods and datasets (names, parameters, costs) stands in their own files, beside code
that computes with torch. Through this module those files are imported in milliseconds, and torch (3 s of CPU) only by
whoever computes.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import nn
else:

    class _Lazy(types.ModuleType):
        """Becomes a copy of the module's namespace at the first look, so that later looks cost nothing more."""

        def __getattr__(self, name: str) -> Any:
            module = importlib.import_module(self.__name__)
            vars(self).update(vars(module))
            return getattr(module, name)

    torch, F, nn = (_Lazy(name) for name in ("torch", "torch.nn.functional", "torch.nn"))

__all__ = ["F", "nn", "torch"]
