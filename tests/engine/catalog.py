"""The contents of schema skep, read from the catalog."""

import psycopg

ROUTINES = """
    SELECT replace(oid::regprocedure::text, 'skep.', '')
    FROM pg_proc WHERE pronamespace = 'skep'::regnamespace ORDER BY 1
"""
EVERYTHING = """
    SELECT 'routine', pg_get_functiondef(oid) || coalesce(proacl::text, '')
    FROM pg_proc WHERE pronamespace = 'skep'::regnamespace AND prokind IN ('f', 'p')
    UNION ALL
    SELECT 'relation', format('%s %s', relkind, relname) || coalesce(relacl::text, '') || coalesce(reloptions::text, '')
    FROM pg_class WHERE relnamespace = 'skep'::regnamespace
    UNION ALL
    SELECT 'column', format('%s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                            pg_get_expr(d.adbin, d.adrelid))
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'skep'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'view', viewname || definition FROM pg_views WHERE schemaname = 'skep'
    UNION ALL
    SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'skep'
    UNION ALL
    SELECT 'trigger', pg_get_triggerdef(g.oid)
    FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
    WHERE c.relnamespace = 'skep'::regnamespace AND NOT tgisinternal
    UNION ALL
    SELECT 'constraint', conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'skep'::regnamespace
    UNION ALL
    SELECT 'migration', format('%s %s %s', number, name, checksum) FROM skep.migrations
    UNION ALL
    SELECT 'info', format('%s %s %s', version, package, functions_checksum) FROM skep.schema_info
    ORDER BY 1, 2
"""


def routines(connection: psycopg.Connection) -> list[str]:
    return [name for (name,) in connection.execute(ROUTINES)]


def everything(connection: psycopg.Connection) -> list[tuple[str, str]]:
    return connection.execute(EVERYTHING).fetchall()
