# Generated from src/skep/client/aio/groups.py by `make format`. Change that file.
"""Groups: where they start, how they live, how far they are."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from skep.client import calls
from skep.client.encode import dumps
from skep.client.explain import StartExplanation
from skep.client.sync.database import Database
from skep.message import (
    DEFAULT_PARTITION,
    Blocked,
    Defaults,
    GroupStatus,
    Lag,
    MessageGroup,
    MessageStatus,
    SeekResult,
    Subscription,
)


class Groups:
    """What a client can do with groups: on a queue, on a namespace and/or task, or on everything they subscribe to."""

    _database: Database

    def subscribe(
        self,
        group: str,
        queue: str | None = None,
        *,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        mode: str | None = None,
        start_from: datetime | UUID | int | str | None = None,
        backfill: bool | None = None,
        heartbeat_interval: float | None = None,
        heartbeat_timeout: float | None = None,
        miss_threshold: int | None = None,
        retry_limit: int | None = None,
        retry_delay: float | None = None,
        max_retry_delay: float | None = None,
        retry_jitter: float | None = None,
    ) -> Subscription:
        """Store where a group starts, how it lives and how it retries, if that is not stored yet; returns what is.

        Retry options that are None are those of the queue.
        """
        arguments = {
            "group": group,
            "queue": queue,
            "partition": partition,
            "namespace": namespace,
            "task": task,
            "mode": mode,
            "start_from": None if start_from is None else place(start_from),
            "backfill": backfill,
            "heartbeat_interval": heartbeat_interval,
            "heartbeat_timeout": heartbeat_timeout,
            "miss_threshold": miss_threshold,
            "retry_limit": retry_limit,
            "retry_delay": retry_delay,
            "max_retry_delay": max_retry_delay,
            "retry_jitter": retry_jitter,
        }
        (stored,) = self._database.call(calls.SUBSCRIBE, arguments, Subscription)
        return stored

    def configure_group(
        self,
        group: str,
        options: Mapping[str, float | None],
        queue: str | None = None,
        *,
        namespace: str | None = None,
        task: str | None = None,
    ) -> list[Subscription]:
        """Change the retry policy of a group: `retry_limit`, `retry_delay`, `max_retry_delay`, `retry_jitter`.

        Options that are not given stay; None is the option of the queue again. Returns the subscriptions.
        """
        arguments = {"group": group, "queue": queue, "namespace": namespace, "task": task}
        arguments["options"] = dumps([dict(options)])[1:-1]
        return self._database.call(calls.CONFIGURE_GROUP, arguments, Subscription)

    def explain_start(self, group: str, queue: str, partition: str = DEFAULT_PARTITION) -> StartExplanation:
        """Return which subscription decides where a group starts in a partition, and the offset at which it starts."""
        arguments = {"group": group, "queue": queue, "partition": partition}
        (explained,) = self._database.call(calls.EXPLAIN_START, arguments, StartExplanation)
        return explained

    def subscriptions(self, group: str | None = None, queue: str | None = None) -> list[Subscription]:
        return self._database.call(calls.SUBSCRIPTIONS, {"group": group, "queue": queue}, Subscription)

    def defaults(self) -> Defaults:
        """Return what groups get that do not say where they start."""
        (defaults,) = self._database.call(calls.DEFAULTS, {}, Defaults)
        return defaults

    def configure_defaults(
        self, *, subscription_mode: str | None = None, max_poll_interval: float | None = None
    ) -> Defaults:
        """Change what is given: the mode ("all" or "new"), and seconds. Groups keep what they began with."""
        arguments = {"subscription_mode": subscription_mode, "max_poll_interval": max_poll_interval}
        (defaults,) = self._database.call(calls.CONFIGURE_DEFAULTS, arguments, Defaults)
        return defaults

    def pause(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Deliver nothing to a group for now; what it is owed stays owed. Returns the subscriptions that changed."""
        return self._change(calls.PAUSE, group, queue, namespace, task)

    def resume(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Go on where the group was paused, or died."""
        return self._change(calls.RESUME, group, queue, namespace, task)

    def cancel(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """End a subscription: nothing is owed to it any more, until it is subscribed anew."""
        return self._change(calls.CANCEL, group, queue, namespace, task)

    def heartbeat(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Give a sign of life. Consumers do by themselves: every pop, answer and extension is one."""
        return self._change(calls.HEARTBEAT, group, queue, namespace, task)

    def _change(
        self, query: calls.Query, group: str, queue: str | None, namespace: str | None, task: str | None
    ) -> list[Subscription]:
        arguments = {"group": group, "queue": queue, "namespace": namespace, "task": task}
        return self._database.call(query, arguments, Subscription)

    def cancel_group(self, group: str, queue: str | None = None) -> int:
        """Cancel, as an administrator; returns how many messages no longer wait for the group. Twice is a conflict."""
        return self._database.value(calls.REMOVE_GROUP, {"group": group, "queue": queue})

    def delete_group(self, group: str, queue: str | None = None, *, keep_subscription: bool = False) -> int:
        """Forget what a group has done, in one queue or everywhere."""
        arguments = {"group": group, "queue": queue, "keep_subscription": keep_subscription}
        return self._database.value(calls.DELETE_GROUP, arguments)

    def force_complete(self, group: str, queue: str, older_than: timedelta) -> int:
        """Count what is older than this as done by the group; returns how many messages that were."""
        arguments = {"group": group, "queue": queue, "older_than": older_than}
        return self._database.value(calls.FORCE_COMPLETE, arguments)

    def seek(
        self, group: str, queue: str | None, position: datetime | int | str, *, partition: str | None = None
    ) -> SeekResult:
        """Move a group to "beginning", "end", a time or an offset, in a queue, one partition, or (None) everywhere.

        Its leases end without an ack. The options and the status of its subscription stay.
        """
        arguments = {"group": group, "queue": queue, "partition": partition, "position": place(position)}
        (moved,) = self._database.call(calls.SEEK, arguments, SeekResult)
        return moved

    def groups(self, group: str | None = None, queue: str | None = None) -> list[GroupStatus]:
        """Return the health of groups: status, lag, what they missed, their last sign of life."""
        return self._database.call(calls.GROUPS, {"group": group, "queue": queue}, GroupStatus)

    def lag(self, group: str, queue: str | None = None, partition: str | None = None) -> list[Lag]:
        """Return what a group has still to do, for each lane."""
        return self._database.call(calls.LAG, {"group": group, "queue": queue, "partition": partition}, Lag)

    def blocked(self, queue: str | None = None) -> list[Blocked]:
        """Return who holds back what: each group that owes something in a lane, and whether it stands on the floor."""
        return self._database.call(calls.BLOCKED, {"queue": queue}, Blocked)

    def message_groups(self, message_id: UUID) -> list[MessageGroup]:
        """Return each group that a message is for, and whether it has completed it."""
        return self._database.call(calls.MESSAGE_GROUPS, {"id": message_id}, MessageGroup)

    def message_status(
        self, queue: str, partition: str, first_offset: int = 0, limit: int = 100
    ) -> list[MessageStatus]:
        """Return for messages of a lane how many groups require each, how many have completed it, and who owes it."""
        arguments = {"queue": queue, "partition": partition, "first_offset": first_offset, "limit": limit}
        return self._database.call(calls.MESSAGE_STATUS, arguments, MessageStatus)


def place(position: datetime | UUID | int | str) -> str:
    return position.isoformat() if isinstance(position, datetime) else str(position)
