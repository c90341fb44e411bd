"""Skep: a partitioned message queue and pub/sub log inside PostgreSQL."""

import importlib.metadata

from skep.errors import SkepError

__version__ = importlib.metadata.version("skep")

__all__ = ["SkepError", "__version__"]
