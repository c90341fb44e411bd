-- The first step of an install: checks the server, and creates the tables that record what is installed. It can be run
-- again.
DO $$
DECLARE
    owner name := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'skep');
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
    -- IF NOT EXISTS would need CREATE on the database even if an administrator has created the schema beforehand.
    IF owner IS NULL THEN
        CREATE SCHEMA skep;
    -- Functions run with the rights of the user who installs them. A superuser must not install into the schema of
    -- another user, who could use these rights by a trigger on a table.
    ELSIF owner <> current_user AND has_schema_privilege('skep', 'CREATE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('schema skep belongs to "%s", not to "%s"', owner, current_user),
            HINT = format('install as "%s": with SET ROLE, or options=-crole%%3D%s in the URL', owner, owner);
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
