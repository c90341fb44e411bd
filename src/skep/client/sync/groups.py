# Generated from src/skep/client/aio/groups.py by `make format`. Change that file.
"""Groups: their subscriptions, their lifecycle and their progress."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from skep.client import calls
from skep.client.encode import dumps
from skep.client.explain import StartExplanation
from skep.client.sync.database import Database
from skep.message import (
    DEFAULT_PARTITION,
    Defaults,
    GroupStatus,
    Lag,
    MessageGroup,
    MessageStatus,
    PendingGroup,
    SeekResult,
    Subscription,
)


class GroupCalls:
    """The client's calls for groups: on a queue, on a namespace and/or task, or on all their subscriptions."""

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
        """Create a subscription, unless it exists, and return the stored one.

        It holds the start of the group, its heartbeat options and its retry options. A retry option that is None is the
        queue's.
        """
        arguments = {
            "group": group,
            "queue": queue,
            "partition": partition,
            "namespace": namespace,
            "task": task,
            "mode": mode,
            "start_from": None if start_from is None else position_text(start_from),
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

        Options that are not given stay. None resets an option to the queue's. Return the subscriptions.
        """
        arguments = {"group": group, "queue": queue, "namespace": namespace, "task": task}
        arguments["options"] = dumps([dict(options)])[1:-1]
        return self._database.call(calls.CONFIGURE_GROUP, arguments, Subscription)

    def explain_start(self, group: str, queue: str, partition: str = DEFAULT_PARTITION) -> StartExplanation:
        """Return the subscription that determines where a group starts in a partition, and the start offset."""
        arguments = {"group": group, "queue": queue, "partition": partition}
        (explained,) = self._database.call(calls.EXPLAIN_START, arguments, StartExplanation)
        return explained

    def subscriptions(self, group: str | None = None, queue: str | None = None) -> list[Subscription]:
        return self._database.call(calls.SUBSCRIPTIONS, {"group": group, "queue": queue}, Subscription)

    def defaults(self) -> Defaults:
        """Return the defaults for new groups."""
        (defaults,) = self._database.call(calls.DEFAULTS, {}, Defaults)
        return defaults

    def configure_defaults(
        self, *, subscription_mode: str | None = None, max_poll_interval: float | None = None
    ) -> Defaults:
        """Change the defaults for new groups: the mode ("all" or "new") and the interval in seconds."""
        arguments = {"subscription_mode": subscription_mode, "max_poll_interval": max_poll_interval}
        (defaults,) = self._database.call(calls.CONFIGURE_DEFAULTS, arguments, Defaults)
        return defaults

    def pause(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Stop delivery to a group until it is resumed; its backlog stays. Return the changed subscriptions."""
        return self._change(calls.PAUSE, group, queue, namespace, task)

    def resume(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Resume a group that was paused or declared dead, at its cursor."""
        return self._change(calls.RESUME, group, queue, namespace, task)

    def cancel(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Cancel a subscription: messages no longer wait for the group, until it subscribes again."""
        return self._change(calls.CANCEL, group, queue, namespace, task)

    def heartbeat(
        self, group: str, queue: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[Subscription]:
        """Record a heartbeat. Every pop, ack and extension records one, so consumers need not call this."""
        return self._change(calls.HEARTBEAT, group, queue, namespace, task)

    def _change(
        self, query: calls.Query, group: str, queue: str | None, namespace: str | None, task: str | None
    ) -> list[Subscription]:
        arguments = {"group": group, "queue": queue, "namespace": namespace, "task": task}
        return self._database.call(query, arguments, Subscription)

    def cancel_group(self, group: str, queue: str | None = None) -> int:
        """Cancel a group as an administrator. Return how many messages no longer wait for it. Twice is a `Conflict`."""
        return self._database.value(calls.CANCEL_GROUP, {"group": group, "queue": queue})

    def delete_group(self, group: str, queue: str | None = None, *, keep_subscription: bool = False) -> int:
        """Delete the progress of a group, in one queue or in all, and its subscriptions unless `keep_subscription`."""
        arguments = {"group": group, "queue": queue, "keep_subscription": keep_subscription}
        return self._database.value(calls.DELETE_GROUP, arguments)

    def force_complete(self, group: str, queue: str, older_than: timedelta) -> int:
        """Mark older messages as completed by the group. Return how many there were."""
        arguments = {"group": group, "queue": queue, "older_than": older_than}
        return self._database.value(calls.FORCE_COMPLETE, arguments)

    def seek(
        self, group: str, queue: str | None, position: datetime | int | str, *, partition: str | None = None
    ) -> SeekResult:
        """Move a group to "beginning", "end", a time or an offset: in a queue, one partition, or (None) all its queues.

        Its leases end without an ack. The options and the status of its subscription stay.
        """
        arguments = {"group": group, "queue": queue, "partition": partition, "position": position_text(position)}
        (moved,) = self._database.call(calls.SEEK, arguments, SeekResult)
        return moved

    def groups(self, group: str | None = None, queue: str | None = None) -> list[GroupStatus]:
        """Return the status of groups: lag, missed messages, last heartbeat and more."""
        return self._database.call(calls.GROUPS, {"group": group, "queue": queue}, GroupStatus)

    def lag(self, group: str, queue: str | None = None, partition: str | None = None) -> list[Lag]:
        """Return the lag of a group in each partition."""
        return self._database.call(calls.LAG, {"group": group, "queue": queue, "partition": partition}, Lag)

    def pending_groups(self, queue: str | None = None) -> list[PendingGroup]:
        """Return each group with a backlog in a partition, and whether retention waits for it."""
        return self._database.call(calls.PENDING_GROUPS, {"queue": queue}, PendingGroup)

    def message_groups(self, message_id: UUID) -> list[MessageGroup]:
        """Return the groups of a message, and whether each has completed it."""
        return self._database.call(calls.MESSAGE_GROUPS, {"id": message_id}, MessageGroup)

    def message_status(
        self, queue: str, partition: str, first_offset: int = 0, limit: int = 100
    ) -> list[MessageStatus]:
        """Return for messages of a partition the number of groups, of completed groups, and the pending groups."""
        arguments = {"queue": queue, "partition": partition, "first_offset": first_offset, "limit": limit}
        return self._database.call(calls.MESSAGE_STATUS, arguments, MessageStatus)


def position_text(position: datetime | UUID | int | str) -> str:
    return position.isoformat() if isinstance(position, datetime) else str(position)
