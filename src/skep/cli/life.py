"""`skep group`, continued: the life of a subscription, from subscribe to cancel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skep import Skep
from skep.cli.ask import confirm
from skep.cli.connect import connect
from skep.cli.queue import parse_options
from skep.cli.show import as_dict, counted, one_line, say, show_json
from skep.cli.times import parse_length
from skep.config import Config
from skep.message import Subscription

CHANGES = {"pause": Skep.pause, "resume": Skep.resume, "cancel": Skep.cancel, "heartbeat": Skep.heartbeat}


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a group is meant: a queue, a namespace and/or task, or everything."""

    group: str
    queue: str | None
    namespace: str | None
    task: str | None

    @property
    def text(self) -> str:
        if self.queue or self.namespace or self.task:
            return f"group {self.group} on {self.queue or place(self.namespace, self.task)}"
        return f"group {self.group} on all its queues"


@dataclass(frozen=True, slots=True)
class Wish:
    """How a subscription shall be; None is the default of the database."""

    partition: str | None
    mode: str | None
    start: str | None
    backfill: bool | None
    heartbeat_interval: str | None
    heartbeat_timeout: str | None
    miss_threshold: int | None
    retry_limit: int | None
    retry_delay: str | None
    max_retry_delay: str | None
    retry_jitter: float | None


def place(namespace: str | None, task: str | None) -> str:
    return f"{namespace or '*'}.{task or '*'}"


def describe(each: Subscription) -> str:
    lane = f"/{each.partition}" if each.partition is not None else ""
    where = f"{each.queue}{lane}" if each.queue is not None else place(each.namespace, each.task)
    start = next((str(at) for at in (each.start_at, each.start_offset) if at is not None), "")
    misses = "1 miss" if each.miss_threshold == 1 else f"{each.miss_threshold} misses"
    parts = (
        f"group {each.group} on {where}: {each.status}",
        f"starts at {each.mode} {start}".rstrip(),
        "with backfill" if each.backfill else "without backfill",
        f"beats every {each.heartbeat_interval:g} s",
        f"dead after {each.heartbeat_timeout:g} s and {misses}",
        *_retry_policy(each),
    )
    return one_line(", ".join(parts))


def _retry_policy(each: Subscription) -> Iterator[str]:
    """Say what the group does not take from the options of the queue."""
    if each.retry_limit is not None:
        yield f"retry limit {each.retry_limit}"
    if each.retry_delay is not None:
        yield f"retry delay {each.retry_delay:g} s"
    if each.max_retry_delay is not None:
        yield f"longest retry delay {each.max_retry_delay:g} s"
    if each.retry_jitter is not None:
        yield f"retry jitter {each.retry_jitter:g}"


def subscribe(config: Config, scope: Scope, wish: Wish, *, as_json: bool) -> None:
    with connect(config) as mq:
        stored = mq.subscribe(
            scope.group,
            scope.queue,
            partition=wish.partition,
            namespace=scope.namespace,
            task=scope.task,
            mode=wish.mode,
            start_from=wish.start,
            backfill=wish.backfill,
            heartbeat_interval=_seconds(wish.heartbeat_interval),
            heartbeat_timeout=_seconds(wish.heartbeat_timeout),
            miss_threshold=wish.miss_threshold,
            retry_limit=wish.retry_limit,
            retry_delay=_seconds(wish.retry_delay),
            max_retry_delay=_seconds(wish.max_retry_delay),
            retry_jitter=wish.retry_jitter,
        )
    if as_json:
        show_json(stored)
    else:
        say(describe(stored))


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_length(text).total_seconds()


def configure(config: Config, scope: Scope, settings: Sequence[str], *, as_json: bool) -> None:
    """Change the retry policy of a group, and show the subscriptions as they are then."""
    options = parse_options(settings)
    with connect(config) as mq:
        changed = mq.configure_group(scope.group, options, scope.queue, namespace=scope.namespace, task=scope.task)
    if as_json:
        show_json(changed)
        return
    for subscription in changed:
        say(describe(subscription))


def change(config: Config, verb: str, scope: Scope, *, yes: bool = True, as_json: bool) -> None:
    """Pause, resume, cancel, or give a sign of life."""
    if not yes:
        confirm(one_line(f"Cancel {scope.text}? Nothing is kept for it then."), "cancelled")
    with connect(config) as mq:
        changed = CHANGES[verb](mq, scope.group, scope.queue, namespace=scope.namespace, task=scope.task)
    if as_json:
        show_json(changed)
        return
    for subscription in changed:
        say(describe(subscription))
    if not changed:
        say(one_line(f"{scope.text}: nothing to {verb}"))


def remove(config: Config, scope: Scope, *, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        if not yes:
            pending = sum(group.lag for group in mq.groups(scope.group, scope.queue))
            confirm(one_line(f"Remove {scope.text}, for which {counted(pending, 'message')} wait?"), "removed")
        released = mq.cancel_group(scope.group, scope.queue)
    if as_json:
        show_json({"group": scope.group, "queue": scope.queue, "released": released})
    else:
        say(one_line(f"{scope.text} removed, {counted(released, 'message')} released"))


def force_complete(config: Config, group: str, queue: str, older_than: str, *, yes: bool, as_json: bool) -> None:
    age = parse_length(older_than)
    scope = Scope(group, queue, None, None)
    if not yes:
        confirm(one_line(f"Count what is older than {older_than} as done by {scope.text}?"), "completed")
    with connect(config) as mq:
        completed = mq.force_complete(group, queue, age)
    if as_json:
        show_json(as_dict(scope) | {"older_than": age.total_seconds(), "completed": completed})
    else:
        say(one_line(f"{scope.text}: {counted(completed, 'message')} older than {older_than} completed"))
