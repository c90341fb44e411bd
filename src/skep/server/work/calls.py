"""Every database call of the message path that all protocols share, by name."""

from typing import LiteralString

Query = LiteralString

PUSH: Query = """
    SELECT duplicates, partition_ids, offsets, delayed FROM skep._push_messages(%(messages)s::jsonb, %(has_delays)s)
"""
POP: Query = """
    SELECT request, leases, convert_to(messages, 'UTF8'), sealed, size
    FROM skep._pop_messages(
        %(queue)s, %(group)s, %(batches)s::integer[], %(partitions)s::integer[], %(names)s::text[], %(namespace)s,
        %(task)s, %(lease_time)s, %(auto_ack)s, %(mode)s, %(start)s)
"""
RELEASE: Query = "SELECT skep.release_all(%(leases)s::uuid[])"
ACK: Query = """
    SELECT applied FROM skep.ack_many(
        %(leases)s::uuid[], %(ids)s::uuid[], %(statuses)s::text[], %(errors)s::text[],
        %(delays)s::double precision[]) ORDER BY ord
"""
EXTEND: Query = "SELECT skep.extend(%(lease)s::uuid, %(seconds)s)"
QUEUES_OF_LEASES: Query = """
    SELECT DISTINCT q.name FROM pg_catalog.unnest(%(leases)s::uuid[]) AS lease (id)
    JOIN skep.partitions p ON p.id = skep._partition_of_lease(lease.id) JOIN skep.queues q ON q.id = p.queue_id
"""
TRANSACTION: Query = "SELECT operation::text FROM skep.transaction(%(operations)s::jsonb) AS operation"
HAS_WORK: Query = "SELECT skep._has_work(%(queues)s::text[], %(groups)s::text[])"
HOLD_PUSH: Query = "SELECT skep._hold_push(%(messages)s::jsonb)"
QUEUES_OF: Query = """
    SELECT DISTINCT q.name FROM pg_catalog.unnest(%(partition_ids)s::uuid[]) AS asked (id)
    JOIN skep.partitions p ON p.id = skep.partition_of(asked.id) JOIN skep.queues q ON q.id = p.queue_id
"""
SEALED_QUEUES: Query = "SELECT name FROM skep.queues WHERE encryption_enabled"
