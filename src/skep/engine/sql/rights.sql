-- The roles, and the procedures that grant functions to them. This file runs first: every other file calls _allow()
-- after its functions.

-- Roles belong to the cluster: another database may have created them, and another user may own them. A user without
-- CREATEROLE installs without them, and grants to a role that does not exist are skipped.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['skep_producer', 'skep_consumer', 'skep_admin'] LOOP
        CONTINUE WHEN to_regrole(role) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;  -- created by a concurrent install
            WHEN insufficient_privilege
                THEN RAISE WARNING 'role % is not created, because this user may not create roles', role;
        END;
    END LOOP;
END $$;

-- Makes a function run with the rights of its owner under a fixed search_path, and with plans that do not depend on
-- statistics: a session keeps a plan that was made while a table was small after the table has grown. Besides these
-- settings, hot queries join by LATERAL (… LIMIT 1), and UPDATE and DELETE by = ANY (ARRAY[x]): both leave the planner
-- no choice but the index.
CREATE PROCEDURE skep._pin(name text) LANGUAGE plpgsql AS $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = name LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp '
            'SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off '
            'SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off '
            'SET enable_material = off SET enable_memoize = off SET enable_indexonlyscan = off', routine);
    END LOOP;
END $$;

-- Grants a function to a role, and to skep_admin. With definer => false it keeps the rights of its caller, and needs a
-- fixed search_path all the same: another user may have put functions into a schema of the caller's search_path, such
-- as public. (A SQL function whose body follows RETURN needs none, because it is parsed at the install.) skep_admin is
-- not a member of the other roles: since PostgreSQL 16 only the user who created them could make it one.
CREATE PROCEDURE skep._allow(role text, name text, definer boolean DEFAULT true) LANGUAGE plpgsql AS $$
DECLARE
    routine regprocedure;
    grantee name;
BEGIN
    IF definer THEN
        CALL skep._pin(name);
    ELSE
        FOR routine IN SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
            WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = name AND l.lanname = 'plpgsql' LOOP
            EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', routine);
        END LOOP;
    END IF;
    FOR routine, grantee IN
        SELECT p.oid, r.rolname FROM pg_proc p JOIN pg_roles r ON r.rolname IN (role, 'skep_admin')
        WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = name
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', routine, grantee);
    END LOOP;
END $$;
