# All state is in the database: its backup has every message, cursor and dead letter, as of one moment.
pg_dumpall --roles-only --no-role-passwords --dbname "$SKEP_DATABASE_URL" --file roles.sql
pg_dump --format custom --dbname "$SKEP_DATABASE_URL" --file skep.dump
