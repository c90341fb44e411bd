"""The install as one SQL script, for databases whose schema is changed only by reviewed scripts."""

from skep.engine.install import FIRST_EDITION, LOCK, SETTINGS
from skep.engine.sources import Migration, Sources, packaged

BEGIN = """\
-- Skep {package}, schema version {version}. Installs or upgrades; it is safe to run it again. Run it with:
--     psql --set ON_ERROR_STOP=1 --file skep.sql "$SKEP_DATABASE_URL"
-- It is one transaction, which waits at most half a second for a lock, so that pushes and pops do not wait behind it.
-- If other transactions keep the tables locked, it fails and changes nothing. Run it again then.
BEGIN ISOLATION LEVEL READ COMMITTED;
DO $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock({lock}); END $$;  -- one install at a time; before the lock_timeout
{settings};
"""

REFUSE_FIRST_EDITION = """\
DO $$
BEGIN
    IF EXISTS (SELECT FROM skep.migrations WHERE name = '{first_edition}') THEN
        RAISE EXCEPTION 'this database holds the first edition of Skep, whose tables cannot be upgraded'
            USING ERRCODE = 'SK008',
                  HINT = 'drain it and use a new database, or run `skep uninstall` first, which deletes its messages';
    END IF;
END
$$;
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
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'the tables of Skep are locked by other transactions'
        USING ERRCODE = '55P03',
              HINT = 'nothing was changed; end long transactions (pg_stat_activity shows them), and run it again';
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
    """Return SQL that does the same as `install`, for psql or any driver."""
    wanted = sources or packaged()
    facts = {"version": wanted.version, "package": wanted.package, "functions_checksum": wanted.functions_checksum}
    parts = [
        BEGIN.format(lock=LOCK, settings=SETTINGS, **facts),
        wanted.bootstrap.sql,
        *_refuse_first_edition(wanted),
        REFUSE_NEWER.format(**facts),
        wanted.drop_code.sql,
        *(_guarded(migration) for migration in wanted.migrations),
        *(file.sql for file in wanted.functions),
        wanted.restore_grants.sql,
        END.format(**facts),
    ]
    return "\n".join(parts)


def _refuse_first_edition(wanted: Sources) -> list[str]:
    known = FIRST_EDITION in {migration.name for migration in wanted.migrations}
    return [] if known else [REFUSE_FIRST_EDITION.format(first_edition=FIRST_EDITION)]


def _guarded(migration: Migration) -> str:
    return MIGRATION.format(
        number=migration.number, name=migration.name, checksum=migration.checksum, sql=migration.sql.strip()
    )
