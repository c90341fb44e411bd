-- The first step of an install: checks the server, and creates the tables that say what is installed. It can be run
-- again.
DO $$
BEGIN
    IF current_setting('server_version_num')::int < 140000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SK009',
            MESSAGE = format('PostgreSQL %s is too old: Skep needs 14 or newer', current_setting('server_version')),
            HINT = 'use a newer PostgreSQL';
    END IF;
    IF getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SK009',
            MESSAGE = format('database "%s" has encoding %s: Skep needs UTF8', current_database(),
                             getdatabaseencoding()),
                             HINT = 'create the database with ENCODING ''UTF8'' TEMPLATE template0';
    END IF;
    -- IF NOT EXISTS would ask for CREATE on the database even where a DBA has made the schema beforehand.
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'skep') THEN
        CREATE SCHEMA skep;
    END IF;
END
$$;

CREATE TABLE IF NOT EXISTS skep.migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS skep.schema_info (
    the_only_row       boolean PRIMARY KEY DEFAULT true CHECK (the_only_row),
    version            integer NOT NULL,  -- number of the last migration
    package            text NOT NULL,     -- version of the package that installed the functions
    functions_checksum text NOT NULL,
    installed_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The start-up check runs as any user who may use the schema.
GRANT SELECT ON skep.migrations, skep.schema_info TO PUBLIC;
