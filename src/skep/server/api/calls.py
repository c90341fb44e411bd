"""Every database call of Skep's own API and of the dashboard, by name."""

from typing import LiteralString

Query = LiteralString

CHANGE_OPTIONS: Query = "SELECT (skep.configure_queue(%(queue)s, %(options)s::jsonb, %(namespace)s, %(task)s)).id"
REPLACE_OPTIONS: Query = "SELECT (skep._replace_options(%(queue)s, %(options)s::jsonb, %(namespace)s, %(task)s)).id"
METRICS: Query = "SELECT * FROM skep._metrics()"

DASH_OVERVIEW: Query = "SELECT skep._dashboard_overview(%(visible)s::text[])::text"
DASH_TREND: Query = "SELECT skep._dashboard_trend(%(since)s, %(points)s, %(visible)s::text[])::text"
DASH_QUEUE_TREND: Query = "SELECT skep._dashboard_queue_trend(%(queue)s, %(group)s, %(since)s, %(points)s)::text"
DASH_QUEUES: Query = """
    SELECT skep._dashboard_queues(
        %(search)s, %(sort)s, %(descending)s, %(limit)s, %(offset)s, %(visible)s::text[])::text
"""
DASH_GROUPS: Query = """
    SELECT skep._dashboard_groups(%(search)s, %(status)s, %(sort)s, %(descending)s, %(limit)s, %(offset)s,
        %(visible)s::text[])::text
"""
DASH_PARTITIONS: Query = "SELECT skep._dashboard_partitions(%(queue)s, %(group)s, %(sort)s, %(limit)s)::text"
DASH_HOLDERS: Query = "SELECT skep._dashboard_holders(%(queue)s)::text"
DASH_LEASES: Query = "SELECT skep._dashboard_leases(%(queue)s, %(group)s, %(limit)s)::text"
DASH_SEEK: Query = "SELECT skep._dashboard_seek(%(group)s, %(queue)s, %(position)s)::text"
DASH_PIPELINES: Query = "SELECT skep._dashboard_pipelines(%(visible)s::text[])::text"
DASH_DATABASE: Query = "SELECT skep._dashboard_database()::text"
CLEAR: Query = "SELECT skep.clear_queue(%(queue)s, %(partition)s)"
