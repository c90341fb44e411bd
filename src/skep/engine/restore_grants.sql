-- Grants again what drop_code.sql has saved. A warning names each grant on a routine, view or column that no longer
-- exists.
DO $$
DECLARE
    kept  record;
    given text;
BEGIN
    FOR kept IN SELECT * FROM skep.kept_grants ORDER BY kind, object, privilege, grantee LOOP
        given := format('%s ON %s %s TO %s', kept.privilege, kept.kind, kept.object, kept.grantee);
        BEGIN
            EXECUTE 'GRANT ' || given || CASE WHEN kept.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END;
        EXCEPTION WHEN undefined_function OR undefined_object OR undefined_table OR undefined_column THEN
            RAISE WARNING 'a grant was lost, because its object no longer exists'
                USING ERRCODE = '01007', DETAIL = given;
        END;
    END LOOP;
END
$$;
DROP TABLE skep.kept_grants;
