"""What `.option(…)` takes: every name, what it may be, what it means. Unknown ones are errors that name the nearest."""

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

from skep.config import WORDS, check_database_url
from skep.errors import ConfigError

EARLIEST, LATEST = -2, -1
IGNORED = {"path", "checkpointlocation", "queryname"}  # Spark's own, which it hands on
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Option(NamedTuple):
    """How the text of an option is read, and its default as the page shows it."""

    read: Callable[[str], object]
    default: str
    help: str


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text.strip()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("it names no queue")
    return names


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise ValueError("it is not a whole number from 1")
    return int(text)


def _switch(text: str) -> bool:
    if text.strip().lower() not in WORDS:
        raise ValueError("it is neither true nor false")
    return WORDS[text.strip().lower()]


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip())
    if not found:
        raise ValueError("it is not a time such as 500ms, 30s, 15m, 1h")
    return timedelta(seconds=int(found[1]) * UNITS[found[2]])


def _instant(text: str) -> datetime:
    """Read a time: as Kafka's options do, in milliseconds since 1970, or as ISO 8601, where no zone means UTC."""
    try:
        if re.fullmatch(r"\d+", text.strip()):
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError, OSError):
        raise ValueError("it is not a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _offsets(text: str) -> str | dict[str, dict[str, int]]:
    """Read earliest, latest, group:<name>, or {"queue": {"partition": offset}} with -2 for earliest, -1 for latest."""
    word = text.strip()
    if word in ("earliest", "latest") or re.fullmatch(r"group:.+", word):
        return word
    try:
        places: object = json.loads(word)
    except ValueError:
        raise ValueError('it is not earliest, latest, group:<name>, or {"queue": {"partition": offset}}') from None
    if not isinstance(places, dict) or not all(
        _are_offsets(lanes) for lanes in cast("dict[str, object]", places).values()
    ):
        raise ValueError('its JSON is not {"queue": {"partition": offset}} with whole numbers from -2')
    return cast("dict[str, dict[str, int]]", places)


def _are_offsets(lanes: object) -> bool:
    if not isinstance(lanes, dict):
        return False
    offsets = cast("dict[str, object]", lanes).values()
    return all(isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST for offset in offsets)


URL = Option(_text, "SKEP_DATABASE_URL", "the database, as `postgresql://…`")
SOURCE: dict[str, Option] = {
    "url": URL,
    "subscribe": Option(_names, "", "the queues to read, with commas between them"),
    "subscribePattern": Option(_text, "", "a regular expression (PostgreSQL's) for the whole name of a queue"),
    "namespace": Option(_text, "", "all queues of a namespace; together with `task`, of both"),
    "task": Option(_text, "", "all queues of a task"),
    "startingOffsets": Option(
        _offsets,
        "latest (stream), earliest (batch)",
        '`earliest`, `latest`, `group:<name>` (where that group is), or JSON `{"queue": {"partition": 42}}`, '
        "where -2 is earliest and -1 latest, and what is not named is earliest",
    ),
    "startingTimestamp": Option(_instant, "", "from this time on: `2026-01-31T12:00:00Z`, or milliseconds since 1970"),
    "endingOffsets": Option(_offsets, "latest", "batch only: `latest` or JSON; what is not named is latest"),
    "endingTimestamp": Option(_instant, "", "batch only: up to this time, without it"),
    "maxOffsetsPerTrigger": Option(_count, "", "stream only: at most so many messages in a micro-batch"),
    "minOffsetsPerTrigger": Option(_count, "", "stream only: wait until there are so many"),
    "maxTriggerDelay": Option(_duration, "15m", "but never longer than this"),
    "maxRecordsPerPartition": Option(_count, "", "at most so many messages in a task; larger runs of a lane are split"),
    "minPartitions": Option(_count, "", "at least so many tasks; runs of a lane are split to get there"),
    "failOnDataLoss": Option(_switch, "true", "fail if retention deleted what was not read; `false` goes on behind it"),
    "includeHeaders": Option(_switch, "true", "with a column `headers`"),
    "groupId": Option(_text, "", "stream only: a group whose cursors follow, so that lag and retention see the stream"),
    "archive": Option(
        _text, "",
        "where the archive is: what retention deleted is read from there, and `earliest` is the archive's beginning",
    ),
}  # fmt: skip
SINK: dict[str, Option] = {
    "url": URL,
    "queue": Option(_text, "", "the queue to write to, if there is no column `queue`"),
    "sinkId": Option(
        _text, "the id of the query", "who writes: a batch of a sink is published once, however often it is written"
    ),
}
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which queues: by name, by pattern, or by namespace and task."""

    queues: tuple[str, ...] | None = None
    pattern: str | None = None
    namespace: str | None = None
    task: str | None = None

    def arguments(self) -> dict[str, Any]:
        queues = None if self.queues is None else list(self.queues)
        return {"queues": queues, "pattern": self.pattern, "namespace": self.namespace, "task": self.task}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read; `start` and `stop` are places as `skep.place_in` takes them, or the words earliest and latest."""

    url: str
    selection: Selection
    start: "str | dict[str, Any]"
    stop: "str | dict[str, Any]" = "latest"
    max_rows: int | None = None
    min_rows: int | None = None
    max_delay: timedelta = timedelta(minutes=15)
    max_rows_per_task: int | None = None
    min_tasks: int | None = None
    fail_on_data_loss: bool = True
    headers: bool = True
    group: str | None = None
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write, and in whose name."""

    url: str
    queue: str | None = None
    sink: str | None = None


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    values = _read(given, SOURCE)
    foreign = [name for name in (BATCH_ONLY if streaming else STREAM_ONLY) if name in values]
    if foreign:
        raise ConfigError(f"option {foreign[0]} is for {'batches' if streaming else 'streams'} only")
    return SourceOptions(
        url=_url(values),
        selection=_selection(values),
        start=_start(values, "latest" if streaming else "earliest"),
        stop=_stop(values),
        max_rows=values.get("maxOffsetsPerTrigger"),
        min_rows=values.get("minOffsetsPerTrigger"),
        max_delay=values.get("maxTriggerDelay", timedelta(minutes=15)),
        max_rows_per_task=values.get("maxRecordsPerPartition"),
        min_tasks=values.get("minPartitions"),
        fail_on_data_loss=values.get("failOnDataLoss", True),
        headers=values.get("includeHeaders", True),
        group=values.get("groupId"),
        archive=values.get("archive"),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    values = _read(given, SINK)
    return SinkOptions(_url(values), values.get("queue"), values.get("sinkId"))


def include_headers(given: Mapping[str, str]) -> bool:
    """Whether there is a column for them: Spark asks for the schema before it says what it is for."""
    return bool(
        _read({name: text for name, text in given.items() if name.lower() == "includeheaders"}, SOURCE).get(
            "includeHeaders", True
        )
    )


def _read(given: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, Any]:
    by_lower = {name.lower(): name for name in known}  # Spark does not tell Cases apart
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = by_lower.get(key.lower())
        if name is not None:
            values[name] = _value(name, text, known[name])
        elif key.lower() not in IGNORED:
            raise _unknown(key, list(known))
    return values


def _value(name: str, text: str, option: Option) -> object:
    try:
        return option.read(text)
    except ValueError as error:
        raise ConfigError(f'option {name} is "{text}": {error}') from None


def _unknown(key: str, known: list[str]) -> ConfigError:
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0)
    return ConfigError(
        f'unknown option "{key}": did you mean {by_lower[near[0]]}?', hint=f"Options: {', '.join(known)}."
    )


def _url(values: Mapping[str, Any]) -> str:
    url = values.get("url") or os.environ.get("SKEP_DATABASE_URL")
    if not url:
        raise ConfigError("there is no database: set option url, or SKEP_DATABASE_URL")
    return check_database_url(url)


def _selection(values: Mapping[str, Any]) -> Selection:
    ways = [
        way
        for way in (("subscribe",), ("subscribePattern",), ("namespace", "task"))
        if any(name in values for name in way)
    ]
    if len(ways) != 1:
        said = "nothing says" if not ways else f"{' and '.join(way[0] for way in ways)} both say"
        raise ConfigError(f"{said} which queues to read: give subscribe, subscribePattern, or namespace and/or task")
    return Selection(
        values.get("subscribe"), values.get("subscribePattern"), values.get("namespace"), values.get("task")
    )


def _start(values: Mapping[str, Any], default: str) -> "str | dict[str, Any]":
    if "startingTimestamp" in values and "startingOffsets" in values:
        raise ConfigError("startingOffsets and startingTimestamp both say where to start: give one of them")
    if "startingTimestamp" in values and "archive" in values:
        raise ConfigError("startingTimestamp knows only the log: with archive, start earliest and filter by timestamp")
    if "startingTimestamp" in values:
        return {"timestamp": values["startingTimestamp"].isoformat()}
    offsets = values.get("startingOffsets", default)
    if offsets == "earliest" and "archive" in values:
        return {"archive": True}
    if isinstance(offsets, dict):
        return {"offsets": offsets, "other": EARLIEST}
    return {"group": offsets.removeprefix("group:")} if offsets.startswith("group:") else offsets


def _stop(values: Mapping[str, Any]) -> "str | dict[str, Any]":
    if "endingTimestamp" in values and "endingOffsets" in values:
        raise ConfigError("endingOffsets and endingTimestamp both say where to end: give one of them")
    if "endingTimestamp" in values:
        return {"timestamp": values["endingTimestamp"].isoformat()}
    offsets = values.get("endingOffsets", "latest")
    if isinstance(offsets, str) and offsets != "latest":
        raise ConfigError(f'option endingOffsets is "{offsets}": it is latest or JSON')
    return offsets if isinstance(offsets, str) else {"offsets": offsets, "other": LATEST}
