"""Where sweeps run besides this machine, one file per backend. A new backend is a new file."""

from pcr_ray.clusters._base import BACKENDS, Backend, Job

__all__ = ["BACKENDS", "Backend", "Job"]
