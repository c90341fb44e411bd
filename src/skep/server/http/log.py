"""The server's log on standard error: lines for people, or one JSON object per line for programs."""

import json
import logging
import sys
from datetime import UTC, datetime

from skep.config import Config


class JsonLines(logging.Formatter):
    """One JSON object per record, on one line whatever the message contains."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class Lines(logging.Formatter):
    """A line for people, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in record.getMessage())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time} {record.levelname.lower():7} {text}{trace}"


def write_log(config: Config) -> None:
    """Configure the loggers of Skep and of the HTTP server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if config.log_format == "json" else Lines())
    for name, level in (("skep", config.log_level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
