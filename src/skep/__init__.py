"""Skep: a partitioned message queue and pub/sub log inside PostgreSQL."""

import importlib
import importlib.metadata
import typing

__version__ = importlib.metadata.version("skep")

__all__ = ["AsyncSkep", "DeadLetter", "Message", "NewMessage", "Receipt", "Skep", "SkepError", "__version__"]

if typing.TYPE_CHECKING:
    from skep.client import AsyncSkep, Skep
    from skep.errors import SkepError
    from skep.message import DeadLetter, Message, NewMessage, Receipt
else:
    # Imported on first use: pytest loads this package for its plugin in every run, and the driver takes 300 ms.
    _HOMES = {"AsyncSkep": "skep.client", "Skep": "skep.client", "SkepError": "skep.errors"}

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'skep' has no attribute {name!r}")
        globals()[name] = value = getattr(importlib.import_module(_HOMES.get(name, "skep.message")), name)
        return value

    def __dir__() -> list[str]:
        return __all__
