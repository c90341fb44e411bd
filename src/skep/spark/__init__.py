"""The Spark data source `format("skep")`: reads and writes queues, in batches and streams."""

import importlib
import typing

from skep.errors import ConfigError

__all__ = ["parse", "register", "session"]

if typing.TYPE_CHECKING:
    from skep.spark.builder import register, session
    from skep.spark.typed import parse
else:
    # Imported on first use: pyspark is an extra, and slow to import.
    _MODULES = {"parse": "skep.spark.typed", "register": "skep.spark.builder", "session": "skep.spark.builder"}

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'skep.spark' has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(_MODULES[name]), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in ("pyspark", "pyarrow"):
                raise
            raise ConfigError(f"{missing} is not installed", hint="pip install 'skep[spark]'") from None
