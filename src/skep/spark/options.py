"""The options of source and sink: names, values, defaults and help. An unknown option is an error."""

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
IGNORED = {"path", "checkpointlocation", "queryname"}  # options of Spark that it passes on
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Option(NamedTuple):
    """How the text of an option is parsed; its default and its help, as the documentation shows them."""

    parse: Callable[[str], object]
    default: str
    help: str


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("must name at least one queue")
    return names


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _switch(text: str) -> bool:
    if text.strip().lower() not in WORDS:
        raise ValueError("must be true or false")
    return WORDS[text.strip().lower()]


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip())
    if not found:
        raise ValueError("must be a duration such as 500ms, 30s, 15m or 1h")
    return timedelta(seconds=int(found[1]) * UNITS[found[2]])


def _instant(text: str) -> datetime:
    """Parse milliseconds since 1970, as Kafka's options are, or ISO 8601, in UTC if it has no time zone."""
    try:
        if re.fullmatch(r"\d+", text.strip()):
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        time = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError, OSError):
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _offsets(text: str) -> str | dict[str, dict[str, int]]:
    """Parse a word, group:<name>, or {"queue": {"partition": offset}} with -2 for earliest and -1 for latest."""
    word = text.strip()
    if word in ("earliest", "latest", "archived") or re.fullmatch(r"group:.+", word):
        return word
    try:
        queues: object = json.loads(word)
    except ValueError:
        raise ValueError(
            'must be earliest, latest, archived, group:<name>, or JSON {"queue": {"partition": offset}}'
        ) from None
    if not isinstance(queues, dict) or not all(
        _are_offsets(partitions) for partitions in cast("dict[str, object]", queues).values()
    ):
        raise ValueError('must be JSON {"queue": {"partition": offset}} with offsets of at least -2')
    return cast("dict[str, dict[str, int]]", queues)


def _are_offsets(partitions: object) -> bool:
    if not isinstance(partitions, dict):
        return False
    offsets = cast("dict[str, object]", partitions).values()
    return all(isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST for offset in offsets)


URL = Option(_text, "SKEP_DATABASE_URL", "URL of the database, such as `postgresql://…`")
SOURCE: dict[str, Option] = {
    "url": URL,
    "subscribe": Option(_names, "", "queues to read, separated by commas"),
    "subscribePattern": Option(_text, "", "read the queues whose name matches this PostgreSQL regex"),
    "namespace": Option(_text, "", "read the queues of this namespace; with `task`, only those that have both"),
    "task": Option(_text, "", "read the queues of this task"),
    "startingOffsets": Option(
        _offsets,
        "latest (stream), earliest (batch)",
        "where to start: `earliest`, `latest`, `archived` (after the archived messages), `group:<name>` (at the "
        'cursors of this group), or JSON `{"queue": {"partition": 42}}`, where -2 is earliest and -1 latest; '
        "partitions that are not named start at the earliest message",
    ),
    "startingTimestamp": Option(_instant, "", "start at this time: `2026-01-31T12:00:00Z`, or milliseconds since 1970"),
    "endingOffsets": Option(
        _offsets, "latest", "batch only: where to end: `latest` or JSON; others end at the latest",
    ),
    "endingTimestamp": Option(_instant, "", "batch only: end before this time"),
    "maxOffsetsPerTrigger": Option(_count, "", "stream only: maximum number of messages in a micro-batch"),
    "minOffsetsPerTrigger": Option(_count, "", "stream only: wait until this many messages are available"),
    "maxTriggerDelay": Option(_duration, "15m", "stream only: maximum wait for `minOffsetsPerTrigger`"),
    "maxRecordsPerPartition": Option(_count, "", "maximum number of messages in a task; larger partitions are split"),
    "minPartitions": Option(_count, "", "minimum number of tasks; partitions are split if necessary"),
    "failOnDataLoss": Option(_switch, "true", "fail if retention has deleted unread messages; `false` skips them"),
    "includeHeaders": Option(_switch, "true", "include the column `headers`"),
    "groupId": Option(_text, "", "stream only: move the cursors of this group, for lag and retention"),
    "archive": Option(
        _text, "",
        "location of the archive: deleted messages are read from there, and `earliest` is the oldest archived message",
    ),
}  # fmt: skip
SINK: dict[str, Option] = {
    "url": URL,
    "queue": Option(_text, "", "queue to write to, for rows without a column `queue`"),
    "sinkId": Option(
        _text,
        "the id of the query",
        "name of the sink: each batch of a sink is published once, even if it is written again",
    ),
}
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")


@dataclass(frozen=True, slots=True)
class QueueScope:
    """The queues that a source or a job is about: by name, by pattern, or by namespace and task. Default: all."""

    queues: tuple[str, ...] | None = None
    pattern: str | None = None
    namespace: str | None = None
    task: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `skep._read_snapshot`."""
        queues = None if self.queues is None else list(self.queues)
        return {"queues": queues, "pattern": self.pattern, "namespace": self.namespace, "task": self.task}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read. `start` and `stop` are arguments of `skep._offset_of_start`, or "earliest" or "latest"."""

    url: str
    scope: QueueScope
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
    """The queue to write to, and the name of the sink."""

    url: str
    queue: str | None = None
    sink: str | None = None


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a source."""
    values = _parse(given, SOURCE)
    foreign = [name for name in (BATCH_ONLY if streaming else STREAM_ONLY) if name in values]
    if foreign:
        raise ConfigError(f"option {foreign[0]} is only for {'batches' if streaming else 'streams'}")
    return SourceOptions(
        url=_url(values),
        scope=_scope(values),
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
    """Parse the options of a sink."""
    values = _parse(given, SINK)
    return SinkOptions(_url(values), values.get("queue"), values.get("sinkId"))


def include_headers(given: Mapping[str, str]) -> bool:
    """Return the option includeHeaders. Spark asks for the schema before it asks for a reader or a writer."""
    own = {name: text for name, text in given.items() if name.lower() == "includeheaders"}
    return bool(_parse(own, SOURCE).get("includeHeaders", True))


def _parse(given: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, Any]:
    by_lower = {name.lower(): name for name in known}  # names of Spark options are not case-sensitive
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
        return option.parse(text)
    except ValueError as error:
        raise ConfigError(f'option {name} {error}, got "{text}"') from None


def _unknown(key: str, known: list[str]) -> ConfigError:
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0)
    return ConfigError(
        f'unknown option "{key}": did you mean {by_lower[near[0]]}?', hint=f"Options: {', '.join(known)}."
    )


def _url(values: Mapping[str, Any]) -> str:
    url = values.get("url") or os.environ.get("SKEP_DATABASE_URL")
    if not url:
        raise ConfigError("no database is given: set option url, or SKEP_DATABASE_URL")
    return check_database_url(url)


def _scope(values: Mapping[str, Any]) -> QueueScope:
    ways = [
        way
        for way in (("subscribe",), ("subscribePattern",), ("namespace", "task"))
        if any(name in values for name in way)
    ]
    if len(ways) != 1:
        wrong = f"{' and '.join(way[0] for way in ways)} cannot be combined" if ways else "no queues to read are given"
        raise ConfigError(f"{wrong}: set one of subscribe, subscribePattern, or namespace and/or task")
    return QueueScope(
        values.get("subscribe"), values.get("subscribePattern"), values.get("namespace"), values.get("task")
    )


def _start(values: Mapping[str, Any], default: str) -> "str | dict[str, Any]":
    offsets = values.get("startingOffsets", default)
    time = {"timestamp": values["startingTimestamp"].isoformat()} if "startingTimestamp" in values else {}
    if offsets == "archived":
        return {"archived": True, **time}
    if time and "startingOffsets" in values:
        raise ConfigError("startingOffsets and startingTimestamp cannot be combined: set one of them")
    if time and "archive" in values:
        raise ConfigError(
            "startingTimestamp cannot be combined with archive: start at earliest, and filter by the column timestamp"
        )
    if time:
        return time
    if offsets == "earliest" and "archive" in values:
        return {"archive": True}
    if isinstance(offsets, dict):
        return {"offsets": offsets, "other": EARLIEST}
    return {"group": offsets.removeprefix("group:")} if offsets.startswith("group:") else offsets


def _stop(values: Mapping[str, Any]) -> "str | dict[str, Any]":
    if "endingTimestamp" in values and "endingOffsets" in values:
        raise ConfigError("endingOffsets and endingTimestamp cannot be combined: set one of them")
    if "endingTimestamp" in values:
        return {"timestamp": values["endingTimestamp"].isoformat()}
    offsets = values.get("endingOffsets", "latest")
    if isinstance(offsets, str) and offsets != "latest":
        raise ConfigError(f'option endingOffsets must be latest or JSON, got "{offsets}"')
    return offsets if isinstance(offsets, str) else {"offsets": offsets, "other": LATEST}
