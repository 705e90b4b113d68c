"""`python -m pcr_ray` is the `pcr-ray` command."""

from pcr_ray.cli import entry

entry()
