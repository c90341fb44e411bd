-- Empties a database for the next test. It uses DELETE, because TRUNCATE of a dozen small tables takes ten times as
-- long.
DO $$
DECLARE
    one regclass;
BEGIN
    -- The newest table first, because a table refers to older ones only.
    FOR one IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'skep'::regnamespace AND c.relkind = 'r'
               AND c.relname NOT IN ('migrations', 'schema_info', 'settings', 'journal_floor') ORDER BY c.oid DESC LOOP
        EXECUTE format('DELETE FROM %s', one);
    END LOOP;
    DELETE FROM skep.settings;
    INSERT INTO skep.settings DEFAULT VALUES;
    INSERT INTO skep.retention_visits DEFAULT VALUES;
    UPDATE skep.journal_floor SET xid = DEFAULT;
    PERFORM setval(c.oid, 1, false) FROM pg_class c WHERE c.relnamespace = 'skep'::regnamespace AND c.relkind = 'S';
END $$
