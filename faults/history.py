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
from typing import Any, Literal

Place = tuple[int, int]  # a lane (partition_id) and an offset
Outcome = Literal["ok", "failed", "refused", "unknown"]
Kind = Literal["completed", "failed", "dlq", "released", "extended"]


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


@dataclass(frozen=True, slots=True)
class Push:
    """Messages that somebody wanted stored, each (partition, value); with `outbox` together with rows of his own."""

    who: str
    queue: str
    items: tuple[tuple[str, str], ...]
    invoked: float
    told: float = inf
    outcome: Outcome = "unknown"
    places: tuple[Place, ...] = ()
    outbox: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was delivered."""

    place: Place
    value: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Pop:
    """What a consumer got; `lease_time` is how long its lease is good for, None if somebody extends it."""

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


@dataclass(frozen=True, slots=True)
class Answer:
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
    """Many messages at once, by lanes and ranges of offsets: what a consumer got, or what it said it has completed."""

    who: str
    group: str
    lease: str
    spans: tuple[tuple[int, int, int], ...]  # lane, first offset, end
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
    """What an observer saw at one moment: first and last offset of lanes, and (group, lane) -> cursor, leases."""

    at: float
    heads: dict[int, tuple[int, int]]
    cursors: dict[tuple[str, int], tuple[int, int]]


@dataclass(slots=True)
class History:
    """All histories of a round, put together."""

    pushes: list[Push] = field(default_factory=list)
    pops: list[Pop] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # delivered
    done_runs: list[Run] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return len(self.calls)

    @property
    def calls(self) -> list[Push | Pop | Answer | Run]:
        return [*self.pushes, *self.pops, *self.answers, *self.runs, *self.done_runs]


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
        case "answer":
            history.answers.extend(_answers(who, call))
        case "transact":
            history.pushes.append(_push(who, call))
            history.answers.extend(_answers(who, {**call, "kind": "completed"}))
        case "run" | "run done":
            (history.runs if call["do"] == "run" else history.done_runs).append(_run(who, call))
        case _:
            _add_of_harness(history, call)


def _add_of_harness(history: History, call: dict[str, Any]) -> None:
    match call["do"]:
        case "seek":
            history.seeks.append(Seek(call["group"], call["queue"], call["invoked"], call["told"]))
        case "harm":
            history.harms.append(Harm(call["fault"], call["invoked"], call["told"], call.get("text", "")))
        case "sample":
            heads = {lane: (first, last) for lane, first, last in call["heads"]}
            cursors = {(group, lane): (cursor, leases) for group, lane, cursor, leases in call["cursors"]}
            history.samples.append(Sample(call["invoked"], heads, cursors))
        case other:
            raise ValueError(f"nobody does {other}")


def _push(who: str, call: dict[str, Any]) -> Push:
    items = tuple((partition, value) for partition, value in call["items"])
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
        Message((lane, offset), value, attempt) for lane, offset, value, attempt in call.get("messages", ())
    )
    return Pop(
        who,
        call["group"],
        call["queue"],
        0.0 if call.get("early") else call["invoked"],
        call["told"],
        call["outcome"],
        call.get("lease", ""),
        messages,
        call.get("auto", False),
        call.get("lease_time"),
    )


def _answers(who: str, call: dict[str, Any]) -> Iterator[Answer]:
    """An answer of many messages may have several outcomes: then it is as many answers."""
    places = _places(call["places"])
    outcomes: list[Outcome] = call.get("outcomes") or [call["outcome"]] * len(places)
    for outcome in sorted(set(outcomes)):
        chosen = tuple(place for place, each in zip(places, outcomes, strict=True) if each == outcome)
        yield Answer(who, call["group"], call["lease"], call["kind"], chosen, call["invoked"], call["told"], outcome)


def _run(who: str, call: dict[str, Any]) -> Run:
    spans = tuple((lane, first, end) for lane, first, end in call.get("spans", ()))
    lease = call.get("lease", "")
    return Run(who, call["group"], lease, spans, call["invoked"], call["told"], call["outcome"])


def _places(pairs: Iterable[Iterable[int]]) -> tuple[Place, ...]:
    return tuple((lane, offset) for lane, offset in pairs)
