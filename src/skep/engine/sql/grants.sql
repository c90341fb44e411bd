-- This file runs last. Only the installer may use the tables; applications call functions.

-- Revokes the rights on functions that no file has granted. A public function runs under a fixed search_path; a private
-- one runs under that of its caller.
DO $$
DECLARE
    routine    regprocedure;
    is_public  boolean;
BEGIN
    FOR routine, is_public IN
        SELECT p.oid, l.lanname = 'plpgsql' AND p.proname NOT LIKE '\_%'
        FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace = 'skep'::regnamespace
    LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', routine);
        IF is_public THEN
            EXECUTE format('ALTER ROUTINE %s SET search_path = pg_catalog, pg_temp', routine);
        END IF;
    END LOOP;
END $$;

DO $$
DECLARE
    role text;
BEGIN
    FOR role IN SELECT rolname FROM pg_roles WHERE rolname IN ('skep_producer', 'skep_consumer', 'skep_admin') LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA skep TO %I', role);
        IF role IN ('skep_producer', 'skep_admin') THEN
            EXECUTE format('GRANT INSERT (queue, partition, payload, headers, transaction_id, trace_id, producer, '
                           'delay, deliver_at) ON skep.outbox TO %I', role);
        END IF;
        IF role = 'skep_admin' THEN
            EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA skep TO %I', role);
        END IF;
    END LOOP;
END $$;
