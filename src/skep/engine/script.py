"""The whole install as one SQL script, for those who do not let a library change their schema."""

from skep.engine.install import LOCK
from skep.engine.sources import Migration, Sources, packaged

BEGIN = """\
-- Skep {package}, schema version {version}. Installs or upgrades; harmless to run again. Use:
--     psql --set ON_ERROR_STOP=1 --file skep.sql "$SKEP_DATABASE_URL"
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = skep, pg_catalog, pg_temp;
DO $$ BEGIN PERFORM pg_advisory_xact_lock({lock}); END $$;
"""

REFUSE_NEWER = """\
DO $$
BEGIN
    IF EXISTS (SELECT FROM skep.migrations WHERE number > {version}) THEN
        RAISE EXCEPTION 'the database has a newer schema than this script (version {version})'
            USING ERRCODE = 'SK008', HINT = 'upgrade the skep package and print its script';
    END IF;
END
$$;
"""

MIGRATION = """\
DO $skep_guard$
BEGIN
    IF EXISTS (SELECT FROM skep.migrations WHERE number = {number} AND checksum <> '{checksum}') THEN
        RAISE EXCEPTION 'migration {name} in the database is not the one of this script' USING ERRCODE = 'SK008';
    END IF;
    IF EXISTS (SELECT FROM skep.migrations WHERE number = {number}) THEN
        RETURN;
    END IF;
    EXECUTE $skep_migration$
{sql}
$skep_migration$;
    INSERT INTO skep.migrations (number, name, checksum) VALUES ({number}, '{name}', '{checksum}');
END
$skep_guard$;
"""

END = """\
INSERT INTO skep.schema_info (version, package, functions_checksum)
VALUES ({version}, '{package}', '{functions_checksum}')
ON CONFLICT (the_only_row) DO UPDATE
SET version = excluded.version, package = excluded.package,
    functions_checksum = excluded.functions_checksum, installed_at = excluded.installed_at;
COMMIT;
"""


def script(sources: Sources | None = None) -> str:
    """Return SQL that does what `install` does; runs in psql or any driver by itself."""
    wanted = sources or packaged()
    facts = {"version": wanted.version, "package": wanted.package, "functions_checksum": wanted.functions_checksum}
    parts = [
        BEGIN.format(lock=LOCK, **facts),
        wanted.bootstrap.sql,
        REFUSE_NEWER.format(**facts),
        wanted.drop_code.sql,
        *(_guarded(migration) for migration in wanted.migrations),
        *(file.sql for file in wanted.functions),
        END.format(**facts),
    ]
    return "\n".join(parts)


def _guarded(migration: Migration) -> str:
    return MIGRATION.format(
        number=migration.number, name=migration.name, checksum=migration.checksum, sql=migration.sql.strip()
    )
