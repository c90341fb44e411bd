-- Drop every routine and view of the schema, so that nothing renamed or re-typed lingers; their files create them anew.
-- CASCADE may only reach routines, views and triggers of the schema itself: anything else (a view of the user over one of
-- ours, a CHECK that calls a function) would be lost without a word, so it is refused by name.
DO $$
DECLARE
    ours      oid := to_regnamespace('skep');
    outsiders text;
    doomed    text;
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
    INTO outsiders
    FROM pg_depend d
    JOIN code ON code.classid = d.refclassid AND code.objid = d.refobjid
    WHERE d.deptype IN ('n', 'a')
      AND NOT EXISTS (SELECT FROM code c WHERE c.classid = d.classid AND c.objid = d.objid);

    IF outsiders IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SK007',
            MESSAGE = format('the functions and views of schema skep cannot be replaced: %s would be lost', outsiders),
            HINT = 'drop what depends on them, run `skep install`, and create it again';
    END IF;

    SELECT string_agg(oid::regclass::text, ', ') INTO doomed FROM pg_class WHERE relnamespace = ours AND relkind = 'v';
    IF doomed IS NOT NULL THEN
        EXECUTE 'DROP VIEW ' || doomed || ' CASCADE';
    END IF;

    SELECT string_agg(oid::regprocedure::text, ', ') INTO doomed FROM pg_proc WHERE pronamespace = ours;
    IF doomed IS NOT NULL THEN
        EXECUTE 'DROP ROUTINE ' || doomed || ' CASCADE';
    END IF;
END
$$;
