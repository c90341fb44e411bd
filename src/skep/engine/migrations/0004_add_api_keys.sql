-- API keys of the server. The secret itself is never in the database: what is random and 256 bits long is not guessed, so a fast hash will do.
CREATE TABLE skep.api_keys (
    id           text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[0-9a-f]{12}$'),
    name         text COLLATE "C" NOT NULL CHECK (char_length(name) BETWEEN 1 AND 255 AND name !~ '[[:cntrl:]]'),
    hash         bytea NOT NULL CHECK (octet_length(hash) = 32),                                     -- SHA-256 of the secret
    role         text CHECK (role IN ('admin', 'read-write', 'read-only', 'write-only')),            -- NULL: the grants alone
    grants       jsonb CHECK (jsonb_typeof(grants) = 'object'),                                      -- {"orders.*": ["push", "pop"]}
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,                                                                        -- set once, never taken back
    last_used_at timestamptz,                                                                        -- to the minute
    CHECK (role IS NOT NULL OR grants IS NOT NULL)
);
