"""Every call the client makes, by name; the work is done by the functions of `engine/sql`."""

from typing import LiteralString

Query = LiteralString

PING: Query = "SELECT 1"
PUSH: Query = (
    'SELECT status, id, partition_id, "offset", created_at, due_at FROM skep.push(CAST(%(messages)s AS jsonb))'
)
OUTBOX: Query = "SELECT skep.push_to_outbox(CAST(%(messages)s AS jsonb))"
NOTIFY: Query = "SELECT skep.notify(%(origin)s, %(queues)s)"
LISTEN: Query = "LISTEN skep"
WAKE_LISTENER: Query = "SELECT pg_notify('skep', %(message)s)"

POP: Query = """
    SELECT * FROM skep.pop(
        queue => %(queue)s, group_name => %(group)s, batch => %(batch)s, partitions => %(partitions)s,
        partition => %(partition)s, namespace => %(namespace)s, task => %(task)s, lease_time => %(lease_time)s,
        auto_ack => %(auto_ack)s, subscription_mode => %(subscription_mode)s,
        subscription_from => %(subscription_from)s, autocommit => true)
"""
ACK: Query = "SELECT skep.ack(CAST(%(lease)s AS uuid), CAST(%(id)s AS uuid))"
FAIL: Query = """
    SELECT skep.fail(
        CAST(%(lease)s AS uuid), %(error)s, CAST(%(id)s AS uuid), CAST(%(retry_after)s AS double precision),
        CAST(%(alone)s AS boolean))
"""
DEAD_LETTER: Query = "SELECT skep.dead_letter(CAST(%(lease)s AS uuid), %(error)s, CAST(%(id)s AS uuid))"
RELEASE: Query = "SELECT skep.release(CAST(%(lease)s AS uuid))"
EXTEND: Query = "SELECT skep.extend(CAST(%(lease)s AS uuid), %(seconds)s)"
# The same for a batch of several partitions, which has a lease for each; leases are an array in PostgreSQL's notation.
ACK_ALL: Query = "SELECT skep.ack_all(CAST(%(leases)s AS uuid[]))"
FAIL_ALL: Query = """
    SELECT skep.fail_all(CAST(%(leases)s AS uuid[]), %(error)s, CAST(%(retry_after)s AS double precision))
"""
DEAD_LETTER_ALL: Query = "SELECT skep.dead_letter_all(CAST(%(leases)s AS uuid[]), %(error)s)"
RELEASE_ALL: Query = "SELECT skep.release_all(CAST(%(leases)s AS uuid[]), CAST(%(delay)s AS double precision))"
EXTEND_ALL: Query = "SELECT skep.extend_all(CAST(%(leases)s AS uuid[]), %(seconds)s)"
ACK_MANY: Query = (
    "SELECT applied FROM skep.ack_many(%(leases)s::uuid[], %(ids)s::uuid[], %(statuses)s, %(errors)s) ORDER BY ord"
)
TRANSACTION: Query = "SELECT operation FROM skep.transaction(CAST(%(operations)s AS jsonb)) AS operation"

TRACE: Query = """
    SELECT skep._queen_trace(
        %(id)s, CAST(%(id)s AS text), %(group)s, %(event)s, CAST(%(data)s AS jsonb), %(names)s, %(worker)s)
"""

_SUBSCRIPTION: Query = """
    group_name, queue, partition, namespace, task, mode, start_at, start_offset, status, backfill, heartbeat_interval,
    heartbeat_timeout, miss_threshold, last_heartbeat_at, status_changed_at, created_at, retry_limit, retry_delay,
    max_retry_delay, retry_jitter
"""
_SCOPE: Query = "(%(group)s, %(queue)s, %(namespace)s, %(task)s)"
SUBSCRIBE: Query = f"""
    SELECT {_SUBSCRIPTION} FROM skep.subscribe(
        group_name => %(group)s, queue => %(queue)s, partition => %(partition)s, namespace => %(namespace)s,
        task => %(task)s, mode => %(mode)s, start_from => %(start_from)s, backfill => %(backfill)s,
        heartbeat_interval => %(heartbeat_interval)s::double precision,
        heartbeat_timeout => %(heartbeat_timeout)s::double precision,
        miss_threshold => %(miss_threshold)s::integer, retry_limit => %(retry_limit)s::integer,
        retry_delay => %(retry_delay)s::double precision, max_retry_delay => %(max_retry_delay)s::double precision,
        retry_jitter => %(retry_jitter)s::double precision)
"""
SUBSCRIPTIONS: Query = f"""
    SELECT {_SUBSCRIPTION} FROM skep.subscriptions
    WHERE group_name = coalesce(%(group)s, group_name) AND (queue = %(queue)s OR %(queue)s::text IS NULL) ORDER BY id
"""
_DEFAULTS: Query = "SELECT default_subscription_mode, max_poll_interval FROM"
DEFAULTS: Query = f"{_DEFAULTS} skep.settings"
CONFIGURE_DEFAULTS: Query = f"{_DEFAULTS} skep.configure_defaults(%(subscription_mode)s, %(max_poll_interval)s)"
CONFIGURE_GROUP: Query = f"""
    SELECT {_SUBSCRIPTION} FROM skep.configure_group(
        %(group)s, CAST(%(options)s AS jsonb), %(queue)s, %(namespace)s, %(task)s)
"""
EXPLAIN_START: Query = "SELECT * FROM skep.explain_start(%(group)s, %(queue)s, %(partition)s)"
PAUSE: Query = f"SELECT {_SUBSCRIPTION} FROM skep.pause{_SCOPE}"
RESUME: Query = f"SELECT {_SUBSCRIPTION} FROM skep.resume{_SCOPE}"
CANCEL: Query = f"SELECT {_SUBSCRIPTION} FROM skep.cancel{_SCOPE}"
HEARTBEAT: Query = f"SELECT {_SUBSCRIPTION} FROM skep.heartbeat{_SCOPE}"
REMOVE_GROUP: Query = "SELECT skep.cancel_group(%(group)s, %(queue)s)"
FORCE_COMPLETE: Query = "SELECT skep.force_complete(%(group)s, %(queue)s, %(older_than)s)"
BLOCKED: Query = "SELECT * FROM skep.pending_groups(%(queue)s) ORDER BY queue, partition, group_name"
MESSAGE_GROUPS: Query = "SELECT * FROM skep.message_groups(%(id)s) ORDER BY group_name"
MESSAGE_STATUS: Query = "SELECT * FROM skep.message_status(%(queue)s, %(partition)s, %(first_offset)s, %(limit)s)"
SEEK: Query = "SELECT * FROM skep.seek(%(group)s, %(queue)s, %(position)s, %(partition)s)"
LAG: Query = "SELECT * FROM skep.lag(%(group)s, %(queue)s, %(partition)s) ORDER BY queue, partition"
DELETE_GROUP: Query = "SELECT skep.delete_group(%(group)s, %(queue)s, %(keep_subscription)s)"

CONFIGURE_QUEUE: Query = "SELECT skep.configure_queue(%(queue)s, CAST(%(options)s AS jsonb), %(namespace)s, %(task)s)"
DELETE_QUEUE: Query = "SELECT skep.delete_queue(%(queue)s)"
DELETE_PARTITION: Query = "SELECT skep.delete_partition(%(queue)s, %(partition)s)"
CLEAR_QUEUE: Query = "SELECT skep.clear_queue(%(queue)s, %(partition)s)"
PEEK: Query = "SELECT * FROM skep.peek(%(queue)s, %(partition)s, %(first_offset)s, %(limit)s)"
FIND: Query = "SELECT * FROM skep.find_message(%(id)s)"
DELETE_MESSAGE: Query = "SELECT skep.delete_message(%(id)s)"
QUEUES: Query = "SELECT * FROM skep.queue_status(%(queue)s) ORDER BY name"
GROUPS: Query = "SELECT * FROM skep.group_status(%(group)s, %(queue)s) ORDER BY group_name, queue"
LANES: Query = "SELECT * FROM skep.partition_list WHERE queue = %(queue)s ORDER BY partition LIMIT %(limit)s"

DEAD_LETTERS: Query = """
    SELECT * FROM skep.list_dead_letters(
        %(queue)s, %(group)s, %(error)s, %(failed_after)s, %(failed_before)s, %(before)s, %(limit)s)
"""
COUNT_DEAD_LETTERS: Query = """
    SELECT * FROM skep.count_dead_letters(%(queue)s, %(group)s, %(failed_after)s, %(failed_before)s)
    ORDER BY letters DESC, queue, group_name, error
"""
REDRIVE: Query = """
    SELECT * FROM skep.redrive(
        %(queue)s, %(group)s, %(error)s, %(failed_after)s, %(failed_before)s, %(ids)s, %(to_queue)s, %(limit)s,
        %(dry_run)s, %(done_by)s, CAST(%(payload)s AS jsonb), CAST(%(headers)s AS jsonb))
    ORDER BY dead_letter_id
"""
PURGE_DEAD_LETTERS: Query = """
    SELECT skep.purge_dead_letters(
        %(queue)s, %(group)s, %(error)s, %(failed_after)s, %(failed_before)s, %(ids)s, %(limit)s,
        %(dry_run)s, %(done_by)s)
"""
DEAD_LETTER_AUDIT: Query = """
    SELECT id, action, dead_letter_id, group_name, queue, partition, "offset", error, message_id, to_queue, done_by,
        done_at
    FROM skep.dead_letter_audit ORDER BY id DESC LIMIT %(limit)s
"""

LANES_AFTER: Query = "SELECT skep._partitions_to_retain(%(lane)s, %(limit)s)"
RETAIN: Query = "SELECT * FROM skep.retain(%(lanes)s, %(max_messages)s, %(dry_run)s)"
PARTITIONS_DUE: Query = "SELECT due, idle FROM skep._partitions_due()"
DROP_IDLE_PARTITIONS: Query = "SELECT skep.drop_idle_partitions(partition_ids => %(partitions)s)"
MARK_ARCHIVED: Query = "SELECT skep._mark_archived(%(partition_id)s, %(end_offset)s)"
REAP: Query = "SELECT skep.expire_leases()"
DETECT_DEAD_GROUPS: Query = "SELECT * FROM skep.detect_dead_groups()"
PRUNE_JOURNAL: Query = "SELECT skep.prune_journal(%(older_than)s)"
SAMPLE: Query = "SELECT skep.sample()"
PRUNE_SAMPLES: Query = "SELECT skep._prune_samples(%(keep)s)"
PRUNE_TRACES: Query = "SELECT skep._prune_traces(%(keep)s)"
PRUNE_LEASE_LOG: Query = "SELECT skep._prune_lease_log(%(max_rows)s)"
PRUNE_SINKS: Query = "SELECT skep._prune_sinks(%(older_than)s)"
PLACES: Query = "SELECT * FROM skep._current_progress(%(trends)s, %(not_within)s) ORDER BY lag DESC, queue, group_name"
OLDEST_TRANSACTION: Query = """
    SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::double precision FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
HISTORY: Query = "SELECT * FROM skep.history(%(queue)s, %(group)s, %(since)s)"

MAINTENANCE: Query = "SELECT push, pop, held, refused, is_pending FROM skep.maintenance_mode()"
SET_MAINTENANCE: Query = "SELECT skep.set_maintenance_mode(%(push)s, %(pop)s)"
DRAIN_HELD_PUSHES: Query = "SELECT messages, refused, queues FROM skep._drain_held_pushes(retry_refused => %(again)s)"

MOVE_COMMITTED_OUTBOX: Query = "SELECT messages, refused, queues FROM skep.move_committed_outbox(%(max_rows)s)"
APPEND_DELAYED: Query = "SELECT messages, queues FROM skep.append_delayed(%(max_rows)s, %(queue)s)"
LIST_DELAYED: Query = "SELECT * FROM skep.list_delayed(%(queue)s, %(partition)s, %(limit)s)"
CANCEL_DELAYED: Query = "SELECT skep.cancel_delayed(%(id)s)"
CREATE_SCHEDULE: Query = """
    SELECT * FROM skep.create_schedule(
        %(name)s, %(cron)s, %(queue)s, CAST(%(payload)s AS jsonb), %(partition)s, CAST(%(headers)s AS jsonb),
        %(time_zone)s, %(missed)s)
"""
LIST_SCHEDULES: Query = "SELECT * FROM skep.list_schedules(%(queue)s)"
PAUSE_SCHEDULE: Query = "SELECT * FROM skep.pause_schedule(%(name)s)"
RESUME_SCHEDULE: Query = "SELECT * FROM skep.resume_schedule(%(name)s)"
DELETE_SCHEDULE: Query = "SELECT skep.delete_schedule(%(name)s)"
RUN_SCHEDULES: Query = "SELECT messages, refused, queues FROM skep.run_schedules()"
OUTBOX_STATUS: Query = "SELECT transactions, oldest_seconds, waiting FROM skep.outbox_status()"

CREATE_API_KEY: Query = """
    SELECT * FROM skep.create_api_key(
        %(id)s, %(name)s, %(hash)s, %(role)s, CAST(%(grants)s AS jsonb), CAST(%(expires_at)s AS timestamptz))
"""
LIST_API_KEYS: Query = "SELECT * FROM skep.list_api_keys()"
REVOKE_API_KEY: Query = "SELECT * FROM skep.revoke_api_key(%(id)s)"
FIND_API_KEY: Query = "SELECT * FROM skep._find_api_key(%(id)s, %(hash)s)"
