"""Ray Tune trainables: thin wrappers around `pcr_ray.learner`."""
