-- Old clients name the leases of a transaction beside its answers, not in them.

-- The lease of each answer: its own, else the one its group holds the message by now if that is among the required. None of them: a lease
-- that nobody has, so that the answer is refused as one of a stale lease is.
CREATE FUNCTION skep.wire_lend(partition_ids uuid[], transaction_ids text[], groups text[], leases uuid[], required uuid[]) RETURNS uuid[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(coalesce($4[f.ord], CASE WHEN f.lease = ANY ($5) THEN f.lease END, '00000000-0000-0000-0000-000000000000') ORDER BY f.ord)
    FROM skep.wire_find($1, $2, $3, $4) f
$$;
