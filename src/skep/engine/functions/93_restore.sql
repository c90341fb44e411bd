-- A dump that is restored brings the transaction ids of another cluster. Those that are still to come here would hide messages from whoever
-- reads by snapshot, and send every look past the journal to all lanes, until this cluster has counted so far. Everything in a dump was committed
-- long ago: it gets the id that everybody sees. Answers how many messages that were. Ids from the past do no harm.
CREATE FUNCTION skep.settle_restored() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    settled bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM skep.journal_floor f WHERE f.xid > pg_snapshot_xmax(pg_current_snapshot())) AND NOT EXISTS (
        SELECT FROM skep.queues q
        CROSS JOIN LATERAL (SELECT j.xid FROM skep.journal j WHERE j.queue_id = q.id ORDER BY j.xid DESC LIMIT 1) last
        WHERE last.xid >= pg_snapshot_xmax(pg_current_snapshot())) THEN
        RETURN 0;
    END IF;
    UPDATE skep.messages m SET xid = '3' WHERE m.xid >= (SELECT pg_snapshot_xmax(pg_current_snapshot()));
    GET DIAGNOSTICS settled = ROW_COUNT;
    UPDATE skep.partition_lookup l SET deleted_xid = '3' WHERE l.deleted_xid >= (SELECT pg_snapshot_xmax(pg_current_snapshot()));
    DELETE FROM skep.journal j WHERE j.xid >= (SELECT pg_snapshot_xmax(pg_current_snapshot()));
    UPDATE skep.journal_floor SET xid = pg_snapshot_xmin(pg_current_snapshot());
    RETURN settled;
END $$;
