"""Jobs on Spark, each a function and a command: `archive`, `compact`, `import_files`, `replay`."""

import importlib
import typing

from skep.errors import ConfigError

__all__ = ["Selection", "Source", "Span", "archive", "compact", "import_files", "read_archive", "replay"]

if typing.TYPE_CHECKING:
    from skep.pipelines.archiving import archive, read_archive
    from skep.pipelines.compacting import compact
    from skep.pipelines.importing import Source, import_files
    from skep.pipelines.replaying import Span, replay
    from skep.spark.options import Selection
else:
    # Loaded when first asked for: pyspark is an extra, and slow to import.
    _HOMES = {
        "Selection": "skep.spark.options",
        "Source": "skep.pipelines.importing",
        "Span": "skep.pipelines.replaying",
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
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in ("pyspark", "pyarrow"):
                raise
            raise ConfigError(f"{error.name} is not installed", hint="pip install 'skep[spark]'") from None
