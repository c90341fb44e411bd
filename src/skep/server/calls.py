"""Every call of the message plane, by name; the work is done by the functions of `engine/sql`."""

from typing import LiteralString

Query = LiteralString

PUSH: Query = """
    SELECT duplicates, partition_ids, offsets, delayed FROM skep._push_messages(%(messages)s::jsonb, %(has_delays)s)
"""
POP: Query = """
    SELECT request, lease, first_queue, first_partition, first_partition_id, partition_count,
           convert_to(messages, 'UTF8'), sealed, size
    FROM skep._queen_pop(
        %(queue)s, %(group)s, %(batches)s::integer[], %(partitions)s::integer[], %(names)s::text[], %(namespace)s,
        %(task)s, %(lease_time)s, %(auto_ack)s, %(mode)s, %(start)s, %(conflate)s)
"""
CONFLATION: Query = "SELECT skep._queen_conflation(%(queue)s, %(group)s, %(mode)s, %(start)s)"
RELEASE: Query = "SELECT skep._queen_release(%(lease)s::uuid)"
DUE: Query = "SELECT skep._has_work(%(queues)s::text[], %(groups)s::text[])"
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
LEND: Query = """
    SELECT skep._queen_find_leases(%(partition_ids)s::uuid[], %(transaction_ids)s::text[], %(groups)s::text[],
        %(leases)s::uuid[], %(required)s::uuid[])
"""
EXTEND: Query = """
    SELECT partition_count, skep._queen_time(expires_at) FROM skep._queen_extend(%(lease)s::uuid, %(seconds)s)
"""
CONFIGURE: Query = (
    "SELECT skep._queen_configure(%(queue)s, %(options)s::jsonb, %(namespace)s, %(task)s, %(replace)s)::text"
)
QUEUES_OF: Query = """
    SELECT DISTINCT q.name FROM pg_catalog.unnest(%(partition_ids)s::uuid[]) AS asked (id)
    JOIN skep.partitions p ON p.id = skep.partition_of(asked.id) JOIN skep.queues q ON q.id = p.queue_id
"""
QUEUES_OF_LEASE: Query = "SELECT skep._queen_lease_queues(%(lease)s::uuid)"
SEALED_QUEUES: Query = "SELECT name FROM skep.queues WHERE encryption_enabled"
DELETE_QUEUE: Query = "SELECT skep.delete_queue(%(queue)s)"
CHANGE_OPTIONS: Query = "SELECT (skep.configure_queue(%(queue)s, %(options)s::jsonb, %(namespace)s, %(task)s)).id"
REPLACE_OPTIONS: Query = "SELECT (skep._replace_options(%(queue)s, %(options)s::jsonb, %(namespace)s, %(task)s)).id"
METRICS: Query = "SELECT * FROM skep._metrics()"
HOLD_PUSH: Query = "SELECT skep._hold_push(%(messages)s::jsonb)"

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
