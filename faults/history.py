"""Histories: the calls of each client and their results, on disk before the client continues.

There is one file for each start of a process, with one JSON object per line. A call is two lines, `do` and `returned`.
A process that is killed in between leaves only the first one: the outcome of the call is then unknown. Times are those
of CLOCK_MONOTONIC, which all processes of a machine share and which does not jump.
"""

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

Location = tuple[int, int]  # partition id and offset
Outcome = Literal["ok", "failed", "refused", "unknown"]
Kind = Literal["completed", "failed", "dlq", "released", "extended"]
REDRIVEN = "skep-redriven"  # header of a redriven copy
COPY_SUFFIX = " again"  # suffix of the value of a redriven copy


class Writer:
    """Writes the history of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._calls = itertools.count(1)

    def invoke(self, do: str, **about: Any) -> int:
        call = next(self._calls)
        self._write({"call": call, "do": do, **about})
        return call

    def returned(self, call: int, outcome: str, **about: Any) -> None:
        self._write({"call": call, "returned": outcome, **about})

    def _write(self, event: dict[str, Any]) -> None:
        event["at"] = round(time.monotonic(), 6)
        os.write(self._file, json.dumps(event, separators=(",", ":")).encode() + b"\n")
        os.fdatasync(self._file)


class Content(NamedTuple):
    """A complete message: as pushed, as delivered, or as stored."""

    partition: str
    payload: dict[str, Any]
    headers: dict[str, Any] | None = None
    transaction_id: str | None = None

    @property
    def value(self) -> str:
        """The unique value that identifies the message; a redriven copy has its own."""
        return self.payload["v"] + (COPY_SUFFIX if self.headers and REDRIVEN in self.headers else "")


@dataclass(frozen=True, slots=True)
class Push:
    """A push. With `outbox` it is in one transaction with rows in a table of the producer."""

    who: str
    queue: str
    items: tuple[Content, ...]
    invoked: float
    returned: float = inf
    outcome: Outcome = "unknown"
    locations: tuple[Location, ...] = ()
    outbox: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A delivered message."""

    location: Location
    content: Content
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Pop:
    """A pop. `lease_time`: the length of its lease; `batch`: the requested number of messages."""

    who: str
    group: str
    queue: str
    invoked: float
    returned: float = inf
    outcome: Outcome = "unknown"
    lease: str = ""
    messages: tuple[Message, ...] = ()
    auto: bool = False
    lease_time: float | None = None
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """An ack of messages of a lease, of any kind, and its outcome."""

    who: str
    group: str
    lease: str
    kind: Kind
    locations: tuple[Location, ...]
    invoked: float
    returned: float = inf
    outcome: Outcome = "unknown"


@dataclass(frozen=True, slots=True)
class Run:
    """Many messages, as ranges of offsets: delivered to a consumer, or completed by it."""

    who: str
    group: str
    lease: str
    ranges: tuple[tuple[int, int, int], ...]  # partition, first offset, end
    invoked: float
    returned: float = inf
    outcome: Outcome = "unknown"


@dataclass(frozen=True, slots=True)
class Seek:
    """A seek of a group: messages that it has completed may be delivered again."""

    group: str
    queue: str
    invoked: float
    returned: float = inf


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that was injected, and its duration."""

    fault: str
    begin: float
    end: float = inf
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the state: first and last offset of partitions, cursor and number of leases of groups."""

    at: float
    heads: dict[int, tuple[int, int]]
    cursors: dict[tuple[str, int], tuple[int, int]]


@dataclass(slots=True)
class History:
    """All histories of a round."""

    pushes: list[Push] = field(default_factory=list)
    pops: list[Pop] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # delivered
    done_runs: list[Run] = field(default_factory=list)
    filled: int = 0  # messages that were pushed to the crowd
    seeks: list[Seek] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return len(self.calls)

    @property
    def calls(self) -> list[Push | Pop | Ack | Run]:
        return [*self.pushes, *self.pops, *self.acks, *self.runs, *self.done_runs]


def read(directory: Path) -> History:
    history = History()
    for path in sorted(directory.glob("*.jsonl")):
        for call in _calls(path):
            _add(history, path.name.split(".")[0], call)
    history.pops.sort(key=lambda pop: pop.returned)
    return history


def _calls(path: Path) -> Iterator[dict[str, Any]]:
    """Join the two lines of each call. The last line of a killed process may be incomplete."""
    open_calls: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if "do" in event:
            open_calls[event["call"]] = {**event, "invoked": event["at"]}
        else:
            begun = open_calls.pop(event["call"])
            yield {**begun, **event, "returned": event["at"], "outcome": event["returned"]}
    yield from ({**begun, "returned": inf, "outcome": "unknown"} for begun in open_calls.values())


def _add(history: History, who: str, call: dict[str, Any]) -> None:
    match call["do"]:
        case "push":
            history.pushes.append(_push(who, call))
        case "pop":
            history.pops.append(_pop(who, call))
        case "ack":
            history.acks.extend(_acks(who, call))
        case "transact":
            history.pushes.append(_push(who, call))
            history.acks.extend(_acks(who, {**call, "kind": "completed"}))
        case "run" | "run done":
            (history.runs if call["do"] == "run" else history.done_runs).append(_run(who, call))
        case _:
            _add_of_harness(history, call)


def _add_of_harness(history: History, call: dict[str, Any]) -> None:
    match call["do"]:
        case "fill":
            history.filled += call["messages"] if call["outcome"] == "ok" else 0
        case "seek":
            history.seeks.append(Seek(call["group"], call["queue"], call["invoked"], call["returned"]))
        case "injection":
            history.injections.append(Injection(call["fault"], call["invoked"], call["returned"], call.get("text", "")))
        case "sample":
            heads = {partition: (first, last) for partition, first, last in call["heads"]}
            cursors = {(group, partition): (cursor, leases) for group, partition, cursor, leases in call["cursors"]}
            history.samples.append(Sample(call["invoked"], heads, cursors))
        case other:
            raise ValueError(f"unknown call {other}")


def _push(who: str, call: dict[str, Any]) -> Push:
    items = tuple(Content(*item) for item in call["items"])
    locations = _locations(call.get("stored", ()))
    return Push(
        who,
        call["queue"],
        items,
        call["invoked"],
        call["returned"],
        "failed" if call["outcome"] == "refused" else call["outcome"],
        locations,
        call.get("outbox", False),
    )


def _pop(who: str, call: dict[str, Any]) -> Pop:
    messages = tuple(
        Message((partition, offset), Content(*content), attempt)
        for partition, offset, attempt, *content in call.get("messages", ())
    )
    return Pop(
        who,
        call["group"],
        call["queue"],
        call["invoked"],
        call["returned"],
        call["outcome"],
        call.get("lease", ""),
        messages,
        call.get("auto", False),
        call.get("lease_time"),
        call.get("batch", 0),
    )


def _acks(who: str, call: dict[str, Any]) -> Iterator[Ack]:
    """Yield an ack for each outcome: the messages of one call may have different ones."""
    locations = _locations(call["locations"])
    outcomes: list[Outcome] = call.get("outcomes") or [call["outcome"]] * len(locations)
    for outcome in sorted(set(outcomes)):
        chosen = tuple(location for location, each in zip(locations, outcomes, strict=True) if each == outcome)
        yield Ack(who, call["group"], call["lease"], call["kind"], chosen, call["invoked"], call["returned"], outcome)


def _run(who: str, call: dict[str, Any]) -> Run:
    ranges = tuple((partition, first, end) for partition, first, end in call.get("ranges", ()))
    lease = call.get("lease", "")
    return Run(who, call["group"], lease, ranges, call["invoked"], call["returned"], call["outcome"])


def _locations(pairs: Iterable[Iterable[int]]) -> tuple[Location, ...]:
    return tuple((partition, offset) for partition, offset in pairs)
