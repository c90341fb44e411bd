-- Roles and rights. Tables belong to the installer alone; applications call functions.

-- Roles belong to the cluster: another database may have created them, and another user may own them. A user without CREATEROLE
-- installs without them, and every grant below is skipped for a role that does not exist.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['skep_producer', 'skep_consumer', 'skep_admin'] LOOP
        CONTINUE WHEN to_regrole(role) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;  -- an install into another database was faster
            WHEN insufficient_privilege THEN RAISE WARNING 'role % is left out, because this user may not create roles', role;
        END;
    END LOOP;
END $$;

-- The functions for people run with the installer's rights under a fixed search_path, and with plans that do not depend on
-- statistics: a plan made while a table was small is kept by the session when the table has grown. Besides these settings, hot queries
-- join by LATERAL (… LIMIT 1), and UPDATE and DELETE by = ANY (ARRAY[x]): both leave the planner no way but the index.
CREATE PROCEDURE skep.pin(names text[]) LANGUAGE plpgsql AS $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = ANY (names) LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp '
                       'SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off '
                       'SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off SET enable_memoize = off '
                       'SET enable_indexonlyscan = off', routine);
    END LOOP;
END $$;

CREATE PROCEDURE skep.open_to(role text, names text[]) LANGUAGE plpgsql AS $$
DECLARE
    routine regprocedure;
BEGIN
    IF to_regrole(role) IS NULL THEN
        RETURN;
    END IF;
    FOR routine IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'skep'::regnamespace AND p.proname = ANY (names) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', routine, role);
    END LOOP;
END $$;

DO $$
DECLARE
    routine   regprocedure;
    producing text[] := ARRAY['push', 'push_many', 'push_to_outbox', 'move_committed_outbox', 'notify', 'wire_push', 'hold_push',
                              'open_sink', 'stage_piece', 'publish_batch', 'clear_sink', 'drop_sink'];
    consuming text[] := ARRAY['pop', 'ack', 'ack_all', 'fail_all', 'dead_letter_all', 'release_all', 'extend_all', 'ack_many', 'fail', 'dead_letter', 'release', 'extend', 'subscribe', 'heartbeat',
                              'lag', 'wire_pop', 'wire_ack', 'wire_lend', 'due', 'wire_extend', 'wire_release', 'wire_lease_queues', 'wire_conflation',
                              'stream_register', 'stream_state',
                              'stream_step', 'read_view', 'read_window', 'read', 'read_packed', 'lane_names', 'offsets_at', 'times_of', 'group_exists', 'follow',
                              'journal_mark', 'has_journal_mark',
                              'archived_runs', 'archived_lanes', 'span_of', 'archived_files', 'archive_status'];
    ruling    text[] := ARRAY['wire_configure', 'configure_queue', 'configure_defaults', 'delete_queue', 'delete_partition', 'delete_message', 'seek',
                              'peek', 'find', 'delete_group', 'stale_partitions', 'resync_partition_lookup', 'check_consistency', 'prune_journal', 'settle_restored',
                              'queue_status', 'group_status', 'list_dead_letters',
                              'pause', 'resume', 'cancel', 'remove_group', 'detect_dead_groups', 'message_groups', 'message_status', 'fanout_of',
                              'group_progress', 'blocked',
                              'explain_start',
                              'force_complete', 'retain', 'lanes_after', 'mark_archived', 'drop_idle_partitions', 'redrive',
                              'purge_dead_letters', 'count_dead_letters', 'sample', 'prune_samples', 'history', 'places', 'reap',
                              'open_archive', 'move_archive', 'lock_archive', 'plan_archive', 'begin_files', 'digest_of', 'store_file',
                              'unsettled_files', 'settle_files', 'archive_progress', 'find_archive', 'small_files', 'begin_compaction', 'source_files', 'swap_files',
                              'expired_files', 'forget_files',
                              'prune_sinks', 'prune_lease_log',
                              'create_api_key', 'revoke_api_key', 'list_api_keys', 'find_api_key',
                              'clear_queue', 'prune_traces', 'wire_queue_names', 'wire_messages', 'wire_message', 'wire_delete_message', 'wire_bury',
                              'wire_dead_letters', 'wire_dead_letters_of', 'wire_fetch', 'wire_safe_time', 'wire_changed', 'wire_trace',
                              'wire_traces_of', 'wire_traces_named', 'wire_trace_names', 'wire_groups', 'wire_lagging', 'wire_group', 'wire_depth',
                              'wire_resubscribe', 'wire_seek_partition', 'wire_queues', 'wire_queue', 'wire_partition_list', 'wire_queue_status',
                              'wire_namespaces', 'wire_tasks', 'wire_overview', 'wire_status', 'wire_pushed', 'wire_worker_metrics',
                              'wire_queue_lag', 'wire_queue_ops', 'wire_retention', 'wire_postgres', 'wire_refresh',
                              'maintenance', 'set_maintenance', 'outbox_status', 'drain_held_pushes', 'metrics', 'replace_options',
                              'dash_overview', 'dash_trend', 'dash_queue_trend', 'dash_queues', 'dash_groups', 'dash_lanes', 'dash_holders',
                              'dash_seek', 'dash_database', 'dash_leases', 'dash_pipelines'];
    -- They push and ack with the rights of their caller.
    composed  text[] := ARRAY['transaction', 'wire_transaction', 'stream_cycle'];
    plain     text[] := ARRAY['message_id', 'partition_of', 'offset_of', 'refuse', 'wire_time'];
BEGIN
    FOR routine IN SELECT oid FROM pg_proc WHERE pronamespace = 'skep'::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', routine);
        IF (SELECT l.lanname = 'plpgsql' AND p.proname NOT LIKE '\_%' FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
            WHERE p.oid = routine) THEN  -- others are inlined, or pinned below; private ones run under the settings of their callers
            EXECUTE format('ALTER ROUTINE %s SET search_path = pg_catalog, pg_temp', routine);
        END IF;
    END LOOP;
    CALL skep.pin(producing || consuming || ruling || ARRAY['note_outbox', 'move_outbox']);
    CALL skep.open_to('skep_producer', producing || plain);
    CALL skep.open_to('skep_consumer', consuming || composed || plain);
    -- Not as a member of the other two: from PostgreSQL 16 on only the user who created them may make it one.
    CALL skep.open_to('skep_admin', producing || consuming || composed || ruling || plain || ARRAY['_head_of']);  -- which is part of a view
END $$;

DO $$
DECLARE
    role text;
BEGIN
    FOR role IN SELECT rolname FROM pg_roles WHERE rolname IN ('skep_producer', 'skep_consumer', 'skep_admin') LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA skep TO %I', role);
        IF role IN ('skep_producer', 'skep_admin') THEN
            EXECUTE format('GRANT INSERT (queue, partition, payload, headers, transaction_id, trace_id, producer) ON skep.outbox TO %I', role);
        END IF;
        IF role = 'skep_admin' THEN
            EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA skep TO %I', role);
        END IF;
    END LOOP;
END $$;
