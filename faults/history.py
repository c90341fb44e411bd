"""Histories: what each client invoked and what it was told, on disk before it goes on.

One file for each life of a process, one JSON object a line. A call is two lines, `do` and `told`. A process that is
killed in between leaves the first one only: nobody knows what became of the call. Times are those of CLOCK_MONOTONIC,
which all processes of a machine share and no clock jump moves.
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

Place = tuple[int, int]  # the id of a partition, and an offset
Outcome = Literal["ok", "failed", "refused", "unknown"]
Kind = Literal["completed", "failed", "dlq", "released", "extended"]
REDRIVEN = "skep-redriven"  # the header of a copy that a redrive made
AGAIN = " again"  # ends the value of such a copy


class Writer:
    """Writes the history of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._calls = itertools.count(1)

    def invoke(self, do: str, **about: Any) -> int:
        call = next(self._calls)
        self._write({"call": call, "do": do, **about})
        return call

    def told(self, call: int, outcome: str, **about: Any) -> None:
        self._write({"call": call, "told": outcome, **about})

    def _write(self, event: dict[str, Any]) -> None:
        event["at"] = round(time.monotonic(), 6)
        os.write(self._file, json.dumps(event, separators=(",", ":")).encode() + b"\n")
        os.fdatasync(self._file)


class Content(NamedTuple):
    """A whole message: as its producer gave it, as a consumer got it, or as it is stored."""

    partition: str
    payload: dict[str, Any]
    headers: dict[str, Any] | None = None
    transaction_id: str | None = None

    @property
    def value(self) -> str:
        """What the message is known by. No two messages have the same; a copy that a redrive made has its own."""
        return self.payload["v"] + (AGAIN if self.headers and REDRIVEN in self.headers else "")


@dataclass(frozen=True, slots=True)
class Push:
    """Messages that a producer wants stored; with `outbox` together with rows in a table of its own."""

    who: str
    queue: str
    items: tuple[Content, ...]
    invoked: float
    told: float = inf
    outcome: Outcome = "unknown"
    places: tuple[Place, ...] = ()
    outbox: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was delivered."""

    place: Place
    content: Content
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Pop:
    """What a consumer got. `lease_time`: how long its lease is good for; `batch`: how many messages it asked for."""

    who: str
    group: str
    queue: str
    invoked: float
    told: float = inf
    outcome: Outcome = "unknown"
    lease: str = ""
    messages: tuple[Message, ...] = ()
    auto: bool = False
    lease_time: float | None = None
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """What a consumer said of messages under a lease, and what became of it."""

    who: str
    group: str
    lease: str
    kind: Kind
    places: tuple[Place, ...]
    invoked: float
    told: float = inf
    outcome: Outcome = "unknown"


@dataclass(frozen=True, slots=True)
class Run:
    """Many messages at once, by ranges of offsets: what a consumer got, or what it said it has completed."""

    who: str
    group: str
    lease: str
    spans: tuple[tuple[int, int, int], ...]  # partition, first offset, end
    invoked: float
    told: float = inf
    outcome: Outcome = "unknown"


@dataclass(frozen=True, slots=True)
class Seek:
    """A group was moved: what it had done may come again."""

    group: str
    queue: str
    invoked: float
    told: float = inf


@dataclass(frozen=True, slots=True)
class Harm:
    """A fault, and how long it lasted."""

    fault: str
    begin: float
    end: float = inf
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What an observer saw at one moment: first and last offset of partitions, cursor and leases of groups in them."""

    at: float
    heads: dict[int, tuple[int, int]]
    cursors: dict[tuple[str, int], tuple[int, int]]


@dataclass(slots=True)
class History:
    """All histories of a round, put together."""

    pushes: list[Push] = field(default_factory=list)
    pops: list[Pop] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # delivered
    done_runs: list[Run] = field(default_factory=list)
    filled: int = 0  # messages that were pushed to the crowd
    seeks: list[Seek] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
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
    history.pops.sort(key=lambda pop: pop.told)
    return history


def _calls(path: Path) -> Iterator[dict[str, Any]]:
    """Put the two lines of each call together; the last line of a killed process may be a torn one."""
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
            yield {**begun, **event, "told": event["at"], "outcome": event["told"]}
    yield from ({**begun, "told": inf, "outcome": "unknown"} for begun in open_calls.values())


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
            history.seeks.append(Seek(call["group"], call["queue"], call["invoked"], call["told"]))
        case "harm":
            history.harms.append(Harm(call["fault"], call["invoked"], call["told"], call.get("text", "")))
        case "sample":
            heads = {partition: (first, last) for partition, first, last in call["heads"]}
            cursors = {(group, partition): (cursor, leases) for group, partition, cursor, leases in call["cursors"]}
            history.samples.append(Sample(call["invoked"], heads, cursors))
        case other:
            raise ValueError(f"nobody does {other}")


def _push(who: str, call: dict[str, Any]) -> Push:
    items = tuple(Content(*item) for item in call["items"])
    places = _places(call.get("stored", ()))
    return Push(
        who,
        call["queue"],
        items,
        call["invoked"],
        call["told"],
        "failed" if call["outcome"] == "refused" else call["outcome"],
        places,
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
        call["told"],
        call["outcome"],
        call.get("lease", ""),
        messages,
        call.get("auto", False),
        call.get("lease_time"),
        call.get("batch", 0),
    )


def _acks(who: str, call: dict[str, Any]) -> Iterator[Ack]:
    """An ack of many messages may have several outcomes: then it is as many acks."""
    places = _places(call["places"])
    outcomes: list[Outcome] = call.get("outcomes") or [call["outcome"]] * len(places)
    for outcome in sorted(set(outcomes)):
        chosen = tuple(place for place, each in zip(places, outcomes, strict=True) if each == outcome)
        yield Ack(who, call["group"], call["lease"], call["kind"], chosen, call["invoked"], call["told"], outcome)


def _run(who: str, call: dict[str, Any]) -> Run:
    spans = tuple((partition, first, end) for partition, first, end in call.get("spans", ()))
    lease = call.get("lease", "")
    return Run(who, call["group"], lease, spans, call["invoked"], call["told"], call["outcome"])


def _places(pairs: Iterable[Iterable[int]]) -> tuple[Place, ...]:
    return tuple((partition, offset) for partition, offset in pairs)
