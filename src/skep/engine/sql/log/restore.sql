-- Repair after a dump was restored into another cluster, which has its own transaction ids.

-- Sets the transaction id of every message from the future to an id that every snapshot sees, and returns the number of
-- these messages. Such ids would hide messages from readers by snapshot, and make every discovery check all partitions
-- instead of the journal, until this cluster has reached them. Everything in a dump was committed long ago, and ids
-- from the past do no harm. Saved snapshots mean nothing here, so discoveries begin again. A subscription keeps its
-- start time without its snapshot, or its start offset for the partitions that exist now. Each statement compares with
-- its own snapshot, so no new push is mistaken for an old one.
CREATE FUNCTION skep.repair_restored() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    settled bigint;
BEGIN
    IF NOT skep._is_restored() THEN
        RETURN 0;
    END IF;
    UPDATE skep.messages m SET xid = '3' WHERE m.xid >= (SELECT skep._next_xid());
    GET DIAGNOSTICS settled = ROW_COUNT;
    UPDATE skep.partition_floors f SET deleted_xid = '3' WHERE f.deleted_xid >= (SELECT skep._next_xid());
    UPDATE skep.subscriptions s SET start_snapshot = CASE s.mode WHEN 'offset' THEN skep._current_snapshot() END
    WHERE pg_snapshot_xmax(s.start_snapshot) > (SELECT skep._next_xid());
    DELETE FROM skep.journal j WHERE j.xid >= (SELECT skep._next_xid());
    DELETE FROM skep.discoveries;
    UPDATE skep.journal_floor SET xid = pg_snapshot_xmin(pg_current_snapshot());
    RETURN settled;
END $$;
COMMENT ON FUNCTION skep.repair_restored IS
    'Makes messages of a restored dump of another cluster visible to readers by snapshot, and returns their number. '
    'prune_journal() calls it.';
CALL skep._allow('skep_admin', 'repair_restored');

-- Returns a transaction id that is above every id in the current snapshot, including the caller's own.
CREATE FUNCTION skep._next_xid() RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN own >= pg_snapshot_xmax(snapshot) THEN (own::text::bigint + 1)::text::xid8
        ELSE pg_snapshot_xmax(snapshot) END
    FROM pg_current_snapshot() AS snapshot, pg_current_xact_id_if_assigned() AS own
$$;

-- Returns true if the log has transaction ids from the future.
CREATE FUNCTION skep._is_restored() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM skep.journal_floor f WHERE f.xid > next.xid)
        OR EXISTS (SELECT FROM (SELECT j.xid FROM skep.journal j ORDER BY j.xid DESC LIMIT 1) last
                   WHERE last.xid >= next.xid)
        OR EXISTS (SELECT FROM skep.subscriptions s WHERE pg_snapshot_xmax(s.start_snapshot) > next.xid)
        OR EXISTS (SELECT FROM skep.discoveries d WHERE pg_snapshot_xmax(d.snapshot) > next.xid)
    FROM skep._next_xid() AS next (xid)
$$;
