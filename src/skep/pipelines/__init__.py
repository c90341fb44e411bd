"""Jobs on Spark, each a function and a command: `archive`, `load`, `replay`."""

import importlib
import typing

from skep.errors import ConfigError

__all__ = ["Selection", "archive", "read_archive"]

if typing.TYPE_CHECKING:
    from skep.pipelines.archiving import archive, read_archive
    from skep.spark.options import Selection
else:
    # Loaded when first asked for: pyspark is an extra, and slow to import.
    _HOMES = {
        "Selection": "skep.spark.options",
        "archive": "skep.pipelines.archiving",
        "read_archive": "skep.pipelines.archiving",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'skep.pipelines' has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in ("pyspark", "pyarrow"):
                raise
            raise ConfigError(f"{error.name} is not installed", hint="pip install 'skep[spark]'") from None
