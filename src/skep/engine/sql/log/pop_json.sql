-- pop for the server: many requests by one call, and messages as JSON, so that payloads pass through Python as bytes.

-- Leases for requests that differ in nothing but their size and, if partitions are named, their partition. The usual
-- requests take the short way first; the others, and those that got nothing, take _lease().
CREATE FUNCTION skep._lease_requests(
    queue text, group_name text, batches integer[], partitions integer[], names text[], namespace text, task text,
    lease_time double precision, auto_ack boolean, subscription_mode text, subscription_from text, conflate boolean
) RETURNS skep.lease[] LANGUAGE plpgsql AS $$
DECLARE
    leases skep.lease[];
BEGIN
    IF 1 = ALL (partitions) AND NOT (auto_ack OR conflate)
       AND num_nonnulls(lease_time, subscription_mode, subscription_from) = 0
       AND int4range(1, 100001) @> ALL (batches) THEN
        IF names IS NOT NULL THEN
            leases := skep._lease_next_named(queue, group_name, names, batches);
        ELSIF cardinality(batches) = 1 THEN
            leases := skep._lease_next(queue, group_name, batches[1]);
        END IF;
    END IF;
    leases := coalesce(leases, '{}');
    IF cardinality(leases) = cardinality(batches) THEN
        RETURN leases;
    ELSIF leases <> '{}' THEN  -- the other names
        names := ARRAY(SELECT CASE WHEN served.request IS NULL THEN named.name END
                       FROM unnest(names) WITH ORDINALITY AS named (name, n)
                       LEFT JOIN (SELECT DISTINCT l.request FROM unnest(leases) l) served ON served.request = named.n
                       ORDER BY named.n);
    END IF;
    RETURN leases || skep._lease(queue, group_name, batches, partitions, names, namespace, task, lease_time, auto_ack,
                                 subscription_mode, subscription_from, conflate);
END $$;

-- Returns a time in ISO 8601, in UTC whatever the time zone of the session is.
CREATE FUNCTION skep._iso_time(instant timestamptz) RETURNS text
LANGUAGE sql STABLE STRICT PARALLEL SAFE
AS $$ SELECT to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

-- Returns the messages of a lease as JSON objects, comma-separated. Concatenating strings is twice as fast as
-- json_build_object. sealed: at least one payload is encrypted, and the server has to decrypt it.
CREATE FUNCTION skep._encode_messages(l skep.lease, partition text)
RETURNS TABLE (messages text, sealed boolean, size bigint) LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT string_agg(concat('{"id":"', skep.message_id(m.partition_id, m."offset"), '","offset":', m."offset",
                             ',"payload":', m.payload, ',"headers":', coalesce(m.headers::text, 'null'),
                             ',"transaction_id":', coalesce(to_json(m.transaction_id)::text, 'null'),
                             ',"trace_id":', coalesce(to_json(m.trace_id)::text, 'null'),
                             ',"producer":', coalesce(to_json(m.producer)::text, 'null'),
                             ',"created_at":"', skep._iso_time(m.created_at), tail.text), ',' ORDER BY m."offset"),
           coalesce(bool_or(m.headers ? 'skep-sealed'), false), count(*)
    FROM (SELECT concat('","queue":', to_json(($1).queue), ',"partition":', to_json($2), ',"attempt":', ($1).attempt,
                        ',"lease":', coalesce(to_json(($1).lease_id)::text, 'null'), ',"expires_at":"',
                        skep._iso_time(($1).expires_at), '"}') AS text OFFSET 0) tail
    CROSS JOIN LATERAL (
        SELECT * FROM skep.messages m
        WHERE m.partition_id = ($1).partition_id AND m."offset" >= ($1).first_offset AND m."offset" < ($1).leased_to
        ORDER BY m."offset") m
    WHERE m.payload IS NOT NULL AND (($1).done IS NULL OR NOT ($1).done @> m."offset")
$$;

-- pop for many requests. Returns a row for each request that got something: its leases, none with auto_ack, and its
-- messages. They are read by a statement of its own, which sees all that the leases have seen.
CREATE FUNCTION skep._pop_messages(
    queue text, group_name text, batches integer[], partitions integer[], names text[], namespace text, task text,
    lease_time double precision, auto_ack boolean, subscription_mode text, subscription_from text
) RETURNS TABLE (request integer, leases uuid[], messages text, sealed boolean, size bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    leased skep.lease[];
BEGIN
    leased := skep._lease_requests(
        _pop_messages.queue, _pop_messages.group_name, _pop_messages.batches, _pop_messages.partitions,
        _pop_messages.names, _pop_messages.namespace, _pop_messages.task, _pop_messages.lease_time, auto_ack,
        subscription_mode, subscription_from, false);
    IF leased = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT l.request, CASE WHEN auto_ack THEN '{}' ELSE array_agg(l.lease_id ORDER BY l.n) END,
           coalesce(string_agg(l.messages, ',' ORDER BY l.n), ''), bool_or(l.sealed), sum(l.size)::bigint
    FROM (SELECT l.request, l.lease_id, l.ordinality AS n, m.*
          FROM unnest(leased) WITH ORDINALITY l
          CROSS JOIN LATERAL (SELECT p.name FROM skep.partitions p WHERE p.id = l.partition_id LIMIT 1) p
          CROSS JOIN LATERAL skep._encode_messages(leased[l.ordinality], p.name) m) l
    GROUP BY l.request;
    IF auto_ack THEN
        PERFORM skep._complete_leases(leased);
    END IF;
END $$;
CALL skep._allow('skep_consumer', '_pop_messages');
