-- API keys of the server. The database stores the SHA-256 of a secret, never the secret.

CREATE FUNCTION skep.create_api_key(
    id text, name text, hash bytea, role text DEFAULT NULL, grants jsonb DEFAULT NULL,
        expires_at timestamptz DEFAULT NULL
) RETURNS skep.api_keys LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    made skep.api_keys;
    rule text;
BEGIN
    PERFORM skep._check_name('key', create_api_key.name);
    PERFORM skep._check_grants(create_api_key.grants);
    INSERT INTO skep.api_keys (id, name, hash, role, grants, expires_at)
    VALUES (create_api_key.id, create_api_key.name, create_api_key.hash, create_api_key.role, create_api_key.grants,
            create_api_key.expires_at)
    RETURNING * INTO made;
    RETURN made;
EXCEPTION
    WHEN check_violation OR not_null_violation THEN
        GET STACKED DIAGNOSTICS rule = CONSTRAINT_NAME;
        PERFORM skep._refuse('SK001', 'the key cannot be created: ' || CASE rule
            WHEN 'api_keys_id_check' THEN 'id must be 12 hex digits'
            WHEN 'api_keys_name_check' THEN 'name must not contain control characters'
            WHEN 'api_keys_hash_check' THEN 'hash must be 32 bytes'
            WHEN 'api_keys_role_check' THEN 'the role is unknown'
            WHEN 'api_keys_check' THEN 'it has neither a role nor grants'
            ELSE SQLERRM END, 'Roles: admin, read-write, read-only, write-only.');
    WHEN unique_violation THEN
        PERFORM skep._refuse('SK007', format('key "%s" already exists', create_api_key.id), 'Use another id.');
END $$;
COMMENT ON FUNCTION skep.create_api_key IS
    'Stores an API key of the server and returns it. id is 12 hex digits, hash the SHA-256 of the secret; the key '
    'needs a role, grants, or both.';
CALL skep._allow('skep_admin', 'create_api_key');

-- Refuses grants that the server would not understand. Grants are an object with lists of actions, or NULL.
CREATE FUNCTION skep._check_grants(grants jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known   text[] := ARRAY['push', 'pop', 'ack', 'seek', 'configure', 'read', 'redrive', 'admin'];
    pattern text;
BEGIN
    IF jsonb_typeof(grants) <> 'object' THEN
        PERFORM skep._refuse('SK001', format('grants must be a JSON object, got a JSON %s', jsonb_typeof(grants)),
                             'For example {"orders.*": ["push", "pop"]}.');
    END IF;
    SELECT g.key INTO pattern FROM jsonb_each(grants) g
    WHERE char_length(g.key) NOT BETWEEN 1 AND 255 OR jsonb_typeof(g.value) <> 'array'
       OR NOT g.value <@ to_jsonb(known)
       OR EXISTS (SELECT FROM jsonb_path_query(g.value, '$[*]') a WHERE jsonb_typeof(a) <> 'string')
    LIMIT 1;
    IF FOUND THEN
        PERFORM skep._refuse('SK001', format('the grant of "%s" is invalid', left(pattern, 60)),
                            'A grant is a pattern of 1 to 255 characters and a list of: '
                                || array_to_string(known, ', ') || '.');
    END IF;
END $$;

CREATE FUNCTION skep.revoke_api_key(id text) RETURNS skep.api_keys
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    revoked skep.api_keys;
BEGIN
    UPDATE skep.api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = revoke_api_key.id
    RETURNING * INTO revoked;
    IF NOT FOUND THEN
        PERFORM skep._refuse('SK002', format('there is no key "%s"', revoke_api_key.id),
                             '`skep key list` shows all keys.');
    END IF;
    RETURN revoked;
END $$;
COMMENT ON FUNCTION skep.revoke_api_key IS
    'Revokes an API key permanently and returns it. A second call changes nothing.';
CALL skep._allow('skep_admin', 'revoke_api_key');

CREATE FUNCTION skep.list_api_keys() RETURNS SETOF skep.api_keys
LANGUAGE sql STABLE AS $$ SELECT * FROM skep.api_keys ORDER BY created_at DESC, id $$;
COMMENT ON FUNCTION skep.list_api_keys IS 'Returns all API keys, newest first, including revoked and expired ones.';
CALL skep._allow('skep_admin', 'list_api_keys');

-- Returns the key with this id if it is neither revoked nor expired. The caller compares the secret; if it matches, its
-- use is recorded, once a minute.
CREATE FUNCTION skep._find_api_key(id text, hash bytea) RETURNS SETOF skep.api_keys
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT * FROM skep.api_keys k
    WHERE k.id = _find_api_key.id AND k.revoked_at IS NULL
      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
    IF FOUND THEN
        UPDATE skep.api_keys k SET last_used_at = clock_timestamp()
        WHERE k.id = _find_api_key.id AND k.hash = _find_api_key.hash
          AND (k.last_used_at IS NULL OR k.last_used_at < clock_timestamp() - interval '1 minute');
    END IF;
END $$;
CALL skep._allow('skep_admin', '_find_api_key');
