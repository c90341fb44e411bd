-- Typed errors, class SK. The table in skep/errors.py maps each to a Python class.
--   SK001 invalid argument   SK002 not found   SK003 stale lease   SK004 payload too large
--   SK006 no subscribers     SK007 conflict

-- Raises an error. An empty hint is left out, because psql would print the line.
CREATE FUNCTION skep._refuse(state text, message text, hint text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(hint, '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, HINT = hint;
END $$;
CALL skep._allow('skep_producer', '_refuse', definer => false);
CALL skep._allow('skep_consumer', '_refuse', definer => false);

CREATE FUNCTION skep._check_name(what text, name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF name IS NULL OR char_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION USING ERRCODE = 'SK001',
            MESSAGE = CASE WHEN coalesce(name, '') = '' THEN format('%s name is missing', what)
                           ELSE format('%s name is %s characters long: "%s…"', what, char_length(name),
                                       left(name, 40)) END, HINT = 'A name must have 1 to 255 characters.';
    END IF;
END $$;

-- The id of a message is its address: 60 bits of partition and 62 of offset in a version 8 UUID. It needs no column and
-- no index.
CREATE FUNCTION skep.message_id(partition_id bigint, "offset" bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (overlay(lpad(to_hex($1), 15, '0') PLACING '8' FROM 13 FOR 0) || to_hex($2 | (-9223372036854775808)))::uuid;
COMMENT ON FUNCTION skep.message_id IS 'Returns the id of the message at this offset of a partition.';
CALL skep._allow('skep_producer', 'message_id', definer => false);
CALL skep._allow('skep_consumer', 'message_id', definer => false);

CREATE FUNCTION skep.partition_of(id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x0' || substr($1::text, 1, 8) || substr($1::text, 10, 4) || substr($1::text, 16, 3))::bit(64)::bigint;
COMMENT ON FUNCTION skep.partition_of IS 'Returns the partition_id that a message id contains.';
CALL skep._allow('skep_producer', 'partition_of', definer => false);
CALL skep._allow('skep_consumer', 'partition_of', definer => false);

CREATE FUNCTION skep.offset_of(id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || substr($1::text, 20, 4) || substr($1::text, 25))::bit(64)::bigint & 4611686018427387903;
COMMENT ON FUNCTION skep.offset_of IS 'Returns the offset that a message id contains.';
CALL skep._allow('skep_producer', 'offset_of', definer => false);
CALL skep._allow('skep_consumer', 'offset_of', definer => false);

CREATE FUNCTION skep._seconds(amount double precision) RETURNS interval
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT make_interval(secs => $1) $$;
