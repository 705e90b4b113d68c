"""Methods, one file each. A new method is a new file with a registered `Method` class."""

from pcr_ray.methods._base import METHODS, Method, Params

__all__ = ["METHODS", "Method", "Params"]
