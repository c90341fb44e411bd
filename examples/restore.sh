# Restore into an empty database of any PostgreSQL. Existing roles cause an error message and stay as they are.
psql --quiet --dbname "$NEW_DATABASE_URL" --file roles.sql
pg_restore --exit-on-error --dbname "$NEW_DATABASE_URL" skep.dump
SKEP_DATABASE_URL="$NEW_DATABASE_URL" skep upkeep --once
