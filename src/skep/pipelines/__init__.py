"""Spark jobs, each a function and a command: `analytics`, `archive`, `compact`, `import_files`, `replay`."""

import importlib
import typing

from skep.errors import ConfigError

__all__ = [
    "ImportSource", "QueueScope", "TimeRange",
    "analytics", "archive", "compact", "import_files", "read_archive", "replay",
]  # fmt: skip

if typing.TYPE_CHECKING:
    from skep.pipelines.analysing import analytics
    from skep.pipelines.archiving import archive, read_archive
    from skep.pipelines.compacting import compact
    from skep.pipelines.importing import ImportSource, import_files
    from skep.pipelines.replaying import TimeRange, replay
    from skep.spark.options import QueueScope
else:
    # Imported on first use: pyspark is an extra, and slow to import.
    _MODULES = {
        "ImportSource": "skep.pipelines.importing",
        "QueueScope": "skep.spark.options",
        "TimeRange": "skep.pipelines.replaying",
        "analytics": "skep.pipelines.analysing",
        "archive": "skep.pipelines.archiving",
        "compact": "skep.pipelines.compacting",
        "import_files": "skep.pipelines.importing",
        "read_archive": "skep.pipelines.archiving",
        "replay": "skep.pipelines.replaying",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'skep.pipelines' has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(_MODULES[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in ("pyspark", "pyarrow"):
                raise
            raise ConfigError(f"{error.name} is not installed", hint="pip install 'skep[spark]'") from None
