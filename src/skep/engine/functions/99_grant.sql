-- Who may do what. Tables belong to the installer alone; people and programs come in through functions.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['skep_producer', 'skep_consumer', 'skep_admin'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- roles belong to the cluster: another database has them, or is making them now
        END;
    END LOOP;
END $$;

-- The functions for people. They run with the installer's rights under a fixed search_path, and with plans that do not depend on
-- statistics: a plan made while a table was small is kept by the session when the table has grown. Besides these settings, hot queries
-- join by LATERAL (… LIMIT 1), and UPDATE and DELETE by = ANY (ARRAY[x]): both leave the planner no way but the index.
CREATE FUNCTION skep.open_to(role text, names text[], as_installer boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = ANY (names) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', routine, role);
        IF as_installer THEN
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET jit = off '
                           'SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off '
                           'SET enable_mergejoin = off SET enable_material = off SET enable_memoize = off SET enable_indexonlyscan = off', routine);
        END IF;
    END LOOP;
END $$;

DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = 'skep'::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', routine);
        -- SQL functions that are inlined must stay bare.
        IF (SELECT l.lanname = 'plpgsql' FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.oid = routine) THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', routine);
        END IF;
    END LOOP;
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA skep FROM PUBLIC;
GRANT USAGE ON SCHEMA skep TO skep_producer, skep_consumer, skep_admin;

SELECT skep.open_to('skep_producer', ARRAY['push', 'push_many']);
GRANT INSERT (queue, partition, payload, headers, transaction_id, trace_id, producer) ON skep.outbox TO skep_producer;
SELECT skep.open_to('skep_consumer', ARRAY['pop', 'ack', 'ack_many', 'fail', 'dead_letter', 'release', 'extend', 'subscribe', 'lag']);
SELECT skep.open_to('skep_consumer', ARRAY['transaction'], as_installer => false);  -- pushes and acks with the caller's own rights
SELECT skep.open_to('skep_admin', ARRAY['configure_queue', 'configure_defaults', 'delete_queue', 'delete_partition', 'delete_message',
    'seek', 'delete_group', 'stale_partitions', 'resync_partition_lookup', 'check_consistency', 'prune_journal']);
SELECT skep.open_to(role, ARRAY['message_id', 'message_address', 'refuse', 'seconds', 'check_name', 'group_on', 'queue_options'], as_installer => false)
FROM unnest(ARRAY['skep_producer', 'skep_consumer', 'skep_admin']) AS role;
GRANT skep_producer, skep_consumer TO skep_admin;
GRANT SELECT ON ALL TABLES IN SCHEMA skep TO skep_admin;
