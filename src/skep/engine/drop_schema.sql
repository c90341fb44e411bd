-- Uninstall, after drop_code.sql. DROP SCHEMA … CASCADE alone would drop objects of users (a view, a foreign key)
-- without notice; RESTRICT reports them.
DO $$
DECLARE
    ours       oid := 'skep'::regnamespace;
    tables     text;
    types      text;
    dependents text;
BEGIN
    SELECT string_agg(oid::regclass::text, ', ') INTO tables FROM pg_class
    WHERE relnamespace = ours AND relkind IN ('r', 'p');
    EXECUTE 'DROP TABLE ' || tables || ' RESTRICT';

    SELECT string_agg(oid::regtype::text, ', ') INTO types FROM pg_type
    WHERE typnamespace = ours AND typtype IN ('c', 'd', 'e', 'r');
    IF types IS NOT NULL THEN
        EXECUTE 'DROP TYPE ' || types || ' RESTRICT';
    END IF;

    DROP SCHEMA skep CASCADE;
EXCEPTION WHEN dependent_objects_still_exist THEN
    GET STACKED DIAGNOSTICS dependents = PG_EXCEPTION_DETAIL;
    RAISE EXCEPTION USING
        ERRCODE = 'SK007',
        MESSAGE = 'schema skep cannot be dropped, because objects of other schemas depend on it',
        DETAIL = dependents,
        HINT = 'drop these objects first';
END
$$;
