"""Every call the client makes, by name; the work is done by the functions of `engine/functions`."""

from typing import LiteralString

PUSH: LiteralString = (
    'SELECT status, id, partition_id, "offset", created_at FROM skep.push(CAST(%(messages)s AS jsonb))'
)
OUTBOX: LiteralString = "SELECT skep.push_to_outbox(CAST(%(messages)s AS jsonb))"
NOTIFY: LiteralString = "SELECT skep.notify(%(origin)s, %(queues)s)"
LISTEN: LiteralString = "LISTEN skep"
WAKE_LISTENER: LiteralString = "SELECT pg_notify('skep', %(message)s)"

POP: LiteralString = """
    SELECT * FROM skep.pop(
        queue => %(queue)s, group_name => %(group)s, batch => %(batch)s, partitions => %(partitions)s,
        partition => %(partition)s, namespace => %(namespace)s, task => %(task)s, lease_time => %(lease_time)s,
        auto_ack => %(auto_ack)s, subscription_mode => %(subscription_mode)s,
        subscription_from => %(subscription_from)s)
"""
ACK: LiteralString = "SELECT skep.ack(CAST(%(lease)s AS uuid), CAST(%(id)s AS uuid))"
FAIL: LiteralString = "SELECT skep.fail(CAST(%(lease)s AS uuid), %(error)s, CAST(%(id)s AS uuid))"
DEAD_LETTER: LiteralString = "SELECT skep.dead_letter(CAST(%(lease)s AS uuid), %(error)s, CAST(%(id)s AS uuid))"
RELEASE: LiteralString = "SELECT skep.release(CAST(%(lease)s AS uuid))"
EXTEND: LiteralString = "SELECT skep.extend(%(lease)s, %(seconds)s)"
ACK_MANY: LiteralString = (
    "SELECT applied FROM skep.ack_many(%(leases)s::uuid[], %(ids)s::uuid[], %(statuses)s, %(errors)s) ORDER BY ord"
)
TRANSACTION: LiteralString = "SELECT operation FROM skep.transaction(CAST(%(operations)s AS jsonb)) AS operation"

SUBSCRIBE: LiteralString = """
    SELECT group_name, queue, partition, namespace, task, mode, start_at, start_offset, created_at FROM skep.subscribe(
        group_name => %(group)s, queue => %(queue)s, partition => %(partition)s, namespace => %(namespace)s,
        task => %(task)s, mode => %(mode)s, start_from => %(start_from)s)
"""
SEEK: LiteralString = "SELECT skep.seek(%(group)s, %(queue)s, %(position)s, %(partition)s)"
LAG: LiteralString = "SELECT * FROM skep.lag(%(group)s, %(queue)s, %(partition)s) ORDER BY queue, partition"
DELETE_GROUP: LiteralString = "SELECT skep.delete_group(%(group)s, %(queue)s, %(keep_subscription)s)"

CONFIGURE_QUEUE: LiteralString = (
    "SELECT skep.configure_queue(%(queue)s, CAST(%(options)s AS jsonb), %(namespace)s, %(task)s)"
)
DELETE_QUEUE: LiteralString = "SELECT skep.delete_queue(%(queue)s)"
DELETE_PARTITION: LiteralString = "SELECT skep.delete_partition(%(queue)s, %(partition)s)"
DELETE_MESSAGE: LiteralString = "SELECT skep.delete_message(%(id)s)"
QUEUES: LiteralString = "SELECT * FROM skep.queue_status(%(queue)s) ORDER BY name"
GROUPS: LiteralString = "SELECT * FROM skep.group_status(%(group)s, %(queue)s) ORDER BY group_name, queue"
LANES: LiteralString = "SELECT * FROM skep.lanes WHERE queue = %(queue)s ORDER BY partition LIMIT %(limit)s"
DEAD_LETTERS: LiteralString = "SELECT * FROM skep.list_dead_letters(%(queue)s, %(group)s, %(before)s, %(limit)s)"
