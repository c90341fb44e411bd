-- Logical replication finds the row of an UPDATE or DELETE by its key: without one, a publication FOR ALL TABLES stops prune_lease_log().
ALTER TABLE skep.lease_log ADD id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
