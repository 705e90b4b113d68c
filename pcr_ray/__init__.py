"""Online continual-learning studies, from a laptop to a cluster. From Python: `load`, `run`, `results`, `curves`."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["RunOptions", "curves", "load", "results", "run"]


def __getattr__(name: str) -> Any:
    """The interface of `pcr_ray.api`, imported when it is used: importing the package costs nothing."""
    if name in __all__:
        from pcr_ray import api

        return getattr(api, name)
    raise AttributeError(f"module 'pcr_ray' has no attribute '{name}'")
