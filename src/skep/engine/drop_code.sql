-- Dropping routines and views loses the grants that users made on them: restore_grants.sql grants them again on the new
-- ones. Grants to the roles of Skep are left out, because the files in sql/ make exactly those that this package needs.
-- The table is unlogged, so that a publication FOR ALL TABLES does not send its rows to a subscriber, which has no such
-- table.
CREATE UNLOGGED TABLE skep.kept_grants AS
WITH granted (kind, object, "column", acl, owner) AS (
    SELECT 'ROUTINE', oid::regprocedure::text, NULL::name, proacl, proowner
    FROM pg_proc WHERE pronamespace = to_regnamespace('skep')
    UNION ALL
    SELECT 'TABLE', oid::regclass::text, NULL, relacl, relowner
    FROM pg_class WHERE relnamespace = to_regnamespace('skep') AND relkind = 'v'
    UNION ALL
    SELECT 'TABLE', c.oid::regclass::text, a.attname, a.attacl, c.relowner
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = to_regnamespace('skep') AND c.relkind = 'v'
)
SELECT granted.kind, granted.object,
       acl.privilege_type || coalesce(' (' || quote_ident(granted."column") || ')', '') AS privilege,
       CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END AS grantee, acl.is_grantable
FROM granted CROSS JOIN LATERAL aclexplode(granted.acl) acl
WHERE acl.grantee <> granted.owner
  AND acl.grantee::regrole::text NOT IN ('skep_producer', 'skep_consumer', 'skep_admin');

-- Drops every routine and view of the schema, so that no renamed or changed one stays; their files create them again.
-- CASCADE may only reach routines, views and triggers of the schema itself. Any other object (a user's view over one of
-- ours, a CHECK that calls a function) would be lost without notice, so the install is refused and names it.
DO $$
DECLARE
    ours       oid := to_regnamespace('skep');
    dependents text;
    names      text;
BEGIN
    WITH code (classid, objid) AS (
        SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = ours
        UNION ALL
        SELECT 'pg_class'::regclass, oid FROM pg_class WHERE relnamespace = ours AND relkind = 'v'
        UNION ALL
        SELECT 'pg_type'::regclass, t.oid
        FROM pg_class c JOIN pg_type t ON t.oid = c.reltype OR t.typelem = c.reltype
        WHERE c.relnamespace = ours AND c.relkind = 'v'
        UNION ALL
        SELECT 'pg_rewrite'::regclass, r.oid
        FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
        WHERE c.relnamespace = ours AND c.relkind = 'v'
        UNION ALL
        SELECT 'pg_trigger'::regclass, g.oid
        FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
        WHERE c.relnamespace = ours
    )
    SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid), ', ')
    INTO dependents
    FROM pg_depend d
    JOIN code ON code.classid = d.refclassid AND code.objid = d.refobjid
    WHERE d.deptype IN ('n', 'a')
      AND NOT EXISTS (SELECT FROM code c WHERE c.classid = d.classid AND c.objid = d.objid);

    IF dependents IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SK007',
            MESSAGE = format('the functions and views of schema skep cannot be dropped: %s would be lost', dependents),
            HINT = 'drop the objects that depend on them, run the command again, and create them again';
    END IF;

    SELECT string_agg(oid::regclass::text, ', ') INTO names FROM pg_class WHERE relnamespace = ours AND relkind = 'v';
    IF names IS NOT NULL THEN
        EXECUTE 'DROP VIEW ' || names || ' CASCADE';
    END IF;

    SELECT string_agg(oid::regprocedure::text, ', ') INTO names FROM pg_proc WHERE pronamespace = ours;
    IF names IS NOT NULL THEN
        EXECUTE 'DROP ROUTINE ' || names || ' CASCADE';
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING
        ERRCODE = '55P03',
        MESSAGE = 'the tables of Skep are locked by other transactions',
        HINT = 'nothing was changed; end long transactions (pg_stat_activity shows them), and run it again';
END
$$;
