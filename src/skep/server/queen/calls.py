"""Every database call of Queen's protocol, by name: the functions of `engine/sql/queen`."""

from typing import LiteralString

Query = LiteralString

POP: Query = """
    SELECT request, lease, first_queue, first_partition, first_partition_id, partition_count,
           convert_to(messages, 'UTF8'), sealed, size
    FROM skep._queen_pop(
        %(queue)s, %(group)s, %(batches)s::integer[], %(partitions)s::integer[], %(names)s::text[], %(namespace)s,
        %(task)s, %(lease_time)s, %(auto_ack)s, %(mode)s, %(start)s, %(conflate)s)
"""
CONFLATION: Query = "SELECT skep._queen_conflation(%(queue)s, %(group)s, %(mode)s, %(start)s)"
RELEASE: Query = "SELECT skep._queen_release(%(lease)s::uuid)"
ACK: Query = """
    SELECT success, noop, error, queue, partition, released, dlq FROM skep._queen_ack(
        %(partition_ids)s::uuid[], %(transaction_ids)s::text[], %(groups)s::text[], %(leases)s::uuid[],
        %(statuses)s::text[], %(errors)s::text[])
"""
ACK_LEASE: Query = """
    SELECT queue, partition
    FROM skep._queen_ack_lease(%(partition_id)s::uuid, %(transaction_ids)s::text[], %(lease)s::uuid)
"""
TRANSACTION: Query = """
    SELECT dlq, stored_in, offsets, delayed FROM skep._queen_transaction(
        %(partition_ids)s::uuid[], %(transaction_ids)s::text[], %(groups)s::text[], %(leases)s::uuid[],
        %(statuses)s::text[], %(errors)s::text[], %(messages)s::jsonb)
"""
FIND_LEASES: Query = """
    SELECT skep._queen_find_leases(%(partition_ids)s::uuid[], %(transaction_ids)s::text[], %(groups)s::text[],
        %(leases)s::uuid[], %(required)s::uuid[])
"""
EXTEND: Query = """
    SELECT partition_count, skep._queen_time(expires_at) FROM skep._queen_extend(%(lease)s::uuid, %(seconds)s)
"""
CONFIGURE: Query = (
    "SELECT skep._queen_configure(%(queue)s, %(options)s::jsonb, %(namespace)s, %(task)s, %(replace)s)::text"
)
QUEUES_OF_LEASE: Query = "SELECT skep._queen_lease_queues(%(lease)s::uuid)"
STREAM_REGISTER: Query = """
    SELECT query_id, fresh, was_reset, stored_hash FROM skep._queen_stream_register(
        %(name)s, %(source_queue)s, %(sink_queue)s, %(config_hash)s, %(reset)s)
"""
STREAM_SOURCE: Query = "SELECT source_queue FROM skep.stream_queries WHERE name = %(name)s"
STREAM_STATE: Query = """
    SELECT skep._queen_stream_state(
        %(query_id)s::uuid, %(partition_id)s::uuid, %(keys)s::text[], %(key_prefix)s, %(ripe_at_or_before)s)
"""
STREAM_CYCLE: Query = """
    SELECT queue, acked, released, duplicates, stored_in, offsets, delayed FROM skep._queen_stream_cycle(
        %(query_id)s::uuid, %(partition_id)s::uuid, %(group)s, %(state_ops)s::jsonb, %(messages)s::jsonb,
        %(ack)s::jsonb, %(release_lease)s)
"""

MESSAGES: Query = """
    SELECT skep._queen_messages(%(queue)s, %(partition)s, %(namespace)s, %(task)s, %(status)s, %(since)s, %(until)s,
        %(visible)s::text[], %(limit)s, %(offset)s)::text
"""
MESSAGE: Query = "SELECT skep._queen_message(%(partition_id)s::uuid, %(transaction_id)s)::text"
DELETE_MESSAGE: Query = "SELECT skep._queen_delete_message(%(partition_id)s::uuid, %(transaction_id)s)"
DEAD_LETTER: Query = "SELECT skep._queen_dead_letter(%(partition_id)s::uuid, %(transaction_id)s, %(error)s)"
FETCH: Query = """
    SELECT fetched::text FROM skep._queen_fetch(%(queues)s::text[], %(partitions)s::text[], %(offsets)s::bigint[],
        %(sizes)s::bigint[], %(size)s, %(limit)s) AS fetched
"""
SAFE_TIME: Query = "SELECT skep._queen_safe_time()"
CHANGED: Query = "SELECT skep._queen_changed(%(queue)s, %(since)s, %(after)s, %(limit)s)::text"
DEAD_LETTERS: Query = """
    SELECT skep._queen_dead_letters(%(queue)s, %(group)s, %(partition)s, %(since)s, %(until)s, %(visible)s::text[],
        %(limit)s, %(offset)s)::text
"""
DEAD_LETTERS_OF: Query = """
    SELECT id, queue FROM skep._queen_dead_letters_of(%(id)s, %(message_id)s::uuid, %(partition_id)s::uuid,
        %(transaction_id)s, %(group)s)
"""
REDRIVE_EDITED: Query = """
    SELECT * FROM skep.redrive(ids => ARRAY[%(id)s]::bigint[], to_queue => %(to_queue)s, done_by => %(done_by)s,
        payload => %(payload)s::jsonb, headers => %(headers)s::jsonb)
"""
TRACE: Query = """
    SELECT skep._queen_trace(%(partition_id)s::uuid, %(transaction_id)s, %(group)s, %(event_type)s, %(data)s::jsonb,
        %(names)s::text[], %(worker)s)::text
"""
TRACES_OF: Query = "SELECT skep._queen_traces_of(%(partition_id)s::uuid, %(transaction_id)s)::text"
TRACES_NAMED: Query = "SELECT skep._queen_traces_named(%(name)s, %(visible)s::text[], %(limit)s, %(offset)s)::text"
TRACE_NAMES: Query = "SELECT skep._queen_trace_names(%(visible)s::text[], %(limit)s, %(offset)s)::text"
GROUPS: Query = "SELECT skep._queen_groups(%(visible)s::text[])::text"
LAGGING: Query = "SELECT skep._queen_lagging(%(seconds)s, %(visible)s::text[])::text"
GROUP: Query = "SELECT skep._queen_group(%(group)s, %(visible)s::text[])::text"
RESUBSCRIBE: Query = "SELECT skep._queen_resubscribe(%(group)s, %(start)s)"
SEEK_PARTITION: Query = """
    SELECT updated, moved_to FROM skep._queen_seek_partition(%(group)s, %(queue)s, %(partition)s, %(position)s)
"""
REFRESH: Query = "SELECT skep._queen_refresh()::text"
QUEUES: Query = """
    SELECT skep._queen_queues(%(namespace)s, %(task)s, %(visible)s::text[], %(limit)s, %(offset)s)::text
"""
QUEUE: Query = "SELECT skep._queen_queue(%(queue)s)::text"
PARTITIONS: Query = "SELECT skep._queen_partition_list(%(queue)s, %(visible)s::text[], %(limit)s, %(offset)s)::text"
DEPTH: Query = "SELECT skep._queen_depth(%(queue)s, %(group)s)::text"
NAMESPACES: Query = "SELECT skep._queen_namespaces(%(visible)s::text[])::text"
TASKS: Query = "SELECT skep._queen_tasks(%(visible)s::text[])::text"
OVERVIEW: Query = "SELECT skep._queen_overview(%(visible)s::text[])::text"
CLEAR: Query = "SELECT skep.clear_queue(%(queue)s, %(partition)s)"
STATUS: Query = """
    SELECT skep._queen_status(%(since)s, %(until)s, %(queue)s, %(namespace)s, %(task)s, %(visible)s::text[])::text
"""
QUEUE_STATUS: Query = "SELECT skep._queen_queue_status(%(queue)s)::text"
PUSHED: Query = """
    SELECT skep._queen_pushed(%(since)s, %(until)s, %(queue)s, %(namespace)s, %(task)s, %(interval)s,
        %(visible)s::text[])::text
"""
WORKER_METRICS: Query = "SELECT skep._queen_worker_metrics(%(since)s, %(until)s, %(visible)s::text[])::text"
QUEUE_LAG: Query = "SELECT skep._queen_queue_lag(%(since)s, %(until)s, %(queue)s, %(visible)s::text[])::text"
QUEUE_OPS: Query = "SELECT skep._queen_queue_ops(%(since)s, %(until)s, %(queue)s, %(visible)s::text[])::text"
RETENTION: Query = "SELECT skep._queen_retention(%(since)s, %(until)s, %(visible)s::text[])::text"
POSTGRES: Query = "SELECT skep._queen_postgres()::text"
DELETE_QUEUE: Query = "SELECT skep.delete_queue(%(queue)s)"
