-- Replacing all options: an option that is not given gets the default of its column of skep.queues.

-- Returns the default options. A queue with semantics 'queue' serves many workers at once, as in configure_queue().
CREATE FUNCTION skep._default_options(semantics text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    defaults jsonb;
BEGIN
    EXECUTE (SELECT 'SELECT jsonb_build_object('
                    || string_agg(format('%L, %s', a.attname, coalesce(pg_get_expr(d.adbin, d.adrelid), 'NULL')), ', ')
                    || ')'
             FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = 'skep.queues'::regclass AND a.attname = ANY (skep._queue_options()))
    INTO defaults;
    RETURN CASE WHEN semantics = 'queue' THEN defaults || '{"concurrency": 64}' ELSE defaults END;
END $$;

CREATE FUNCTION skep._replace_options(queue text, options jsonb, namespace text DEFAULT NULL, task text DEFAULT NULL)
RETURNS skep.queues
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' THEN
        PERFORM skep._refuse('SK001', 'options must be a JSON object');
    END IF;
    RETURN skep.configure_queue(queue, skep._default_options(options ->> 'semantics') || options, namespace, task);
END $$;
CALL skep._allow('skep_admin', '_replace_options');
