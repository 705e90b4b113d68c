"""Online continual-learning studies, from a laptop to a cluster."""

__version__ = "0.1.0"
