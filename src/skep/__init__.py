"""Skep: a partitioned message queue and pub/sub log inside PostgreSQL."""

import importlib.metadata

from skep.client import AsyncSkep, Skep
from skep.errors import SkepError
from skep.message import DeadLetter, Message, NewMessage, Receipt

__version__ = importlib.metadata.version("skep")

__all__ = ["AsyncSkep", "DeadLetter", "Message", "NewMessage", "Receipt", "Skep", "SkepError", "__version__"]
