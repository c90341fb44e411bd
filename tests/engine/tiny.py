"""A schema of one table and its code, to install and upgrade without the real one."""

from dataclasses import replace

from skep.engine.sources import Migration, SqlFile, packaged

THING = Migration("0001_create_thing", "CREATE TABLE skep.thing (id int PRIMARY KEY, seen int NOT NULL DEFAULT 0);")
COLOUR = Migration("0002_add_colour", "ALTER TABLE skep.thing ADD colour text;\nINSERT INTO skep.thing VALUES (7);")
CODE = SqlFile(
    "10_thing",
    """
    CREATE FUNCTION skep.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seen := 1; RETURN NEW; END $$;
    CREATE TRIGGER see BEFORE INSERT ON skep.thing FOR EACH ROW EXECUTE FUNCTION skep.see();
    CREATE VIEW skep.things AS SELECT id FROM skep.thing;
    CREATE FUNCTION skep.all_things() RETURNS SETOF skep.things LANGUAGE sql AS 'SELECT * FROM skep.things';
    CREATE VIEW skep.many AS SELECT count(*) FROM skep.all_things();
    CREATE FUNCTION skep.answer() RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION skep.old_name() RETURNS int LANGUAGE sql AS 'SELECT 1';
    """,
)
NEW_CODE = SqlFile(
    "10_thing",
    CODE.sql.replace("answer() RETURNS int", "answer() RETURNS bigint").replace("old_name", "new_name")
    + "CREATE PROCEDURE skep.forget(INOUT n int) LANGUAGE sql AS 'DELETE FROM skep.thing RETURNING 1';",
)
TINY = replace(packaged(), package="1.2.3", migrations=(THING,), functions=(CODE,))
UPGRADED = replace(TINY, package="1.3.0", migrations=(THING, COLOUR), functions=(NEW_CODE,))
