-- Schedules: messages that are pushed at the times of a cron expression.
--
-- run_schedules() locks the row of a schedule, pushes its ticks and moves next_at in one transaction, and skips
-- schedules that another session has locked. So every tick is pushed once, by any number of servers, and also after an
-- outage.

CREATE FUNCTION skep._refuse_cron(cron text, what text, allowed text, got text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM skep._refuse('SK001', format('cron expression "%s": %s must be %s, got "%s"', left(cron, 80), what, allowed,
        left(got, 40)),
                        'Five fields: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, '
                        '@monthly, @yearly.');
END $$;

-- Returns the values of a field of a cron expression, in order. names: words for the numbers from `low` on.
CREATE FUNCTION skep._cron_values(cron text, field text, what text, low integer, high integer,
    names text[] DEFAULT '{}')
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    item    text;
    found   text[];
    first   integer;
    last    integer;
    step    integer;
    numbers integer[] := '{}';
BEGIN
    FOREACH item IN ARRAY string_to_array(lower(field), ',') LOOP
        found := regexp_match(item, '^(?:(\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?$');
        first := CASE WHEN found[1] IS NOT NULL THEN low WHEN found[2] ~ '^[0-9]' THEN found[2]::integer
                      ELSE array_position(names, found[2]) - 1 + low END;
        last := CASE WHEN found[1] IS NOT NULL OR found[3] IS NULL AND found[4] IS NOT NULL THEN high
            WHEN found[3] IS NULL THEN first
                     WHEN found[3] ~ '^[0-9]' THEN found[3]::integer ELSE array_position(names, found[3]) - 1 + low END;
        IF what = 'day of week' AND first > 0 AND last = 0 THEN
            last := 7;  -- fri-sun
        END IF;
        step := coalesce(found[4]::integer, 1);
        IF (found IS NOT NULL AND first >= low AND last <= high AND first <= last AND step > 0) IS NOT TRUE THEN
            PERFORM skep._refuse_cron(
                cron, what, format('numbers from %s to %s%s, ranges and steps of them, or *', low, high,
                                   ', names from ' || names[1] || ' to ' || names[cardinality(names)]), item);
        END IF;
        numbers := numbers || ARRAY(SELECT n FROM generate_series(first, last, step) AS n);
    END LOOP;
    RETURN ARRAY(SELECT DISTINCT CASE WHEN what = 'day of week' THEN n % 7 ELSE n END AS n FROM unnest(numbers) AS n
        ORDER BY n);
END $$;

-- Parses a cron expression. Days of month and of week combine as in Vixie cron.
CREATE FUNCTION skep._parse_cron(cron text) RETURNS skep.cron_rule
LANGUAGE plpgsql AS $$
DECLARE
    rule   skep.cron_rule;
    fields text[] := regexp_split_to_array(btrim(cron, E' \t\n'), '\s+');
BEGIN
    IF fields[1] LIKE '@%' THEN
        fields := string_to_array(CASE lower(fields[1]) WHEN '@hourly' THEN '0 * * * *' WHEN '@daily' THEN '0 0 * * *'
                                      WHEN '@midnight' THEN '0 0 * * *' WHEN '@weekly' THEN '0 0 * * 0' WHEN '@monthly'
                                          THEN '0 0 1 * *'
                                      WHEN '@yearly' THEN '0 0 1 1 *' WHEN '@annually' THEN '0 0 1 1 *' END, ' ');
        IF fields IS NULL THEN
            PERFORM skep._refuse_cron(cron, 'it', 'five fields, or @hourly, @daily, @weekly, @monthly or @yearly',
                cron);
        END IF;
    END IF;
    IF cron IS NULL OR cardinality(fields) <> 5 THEN
        PERFORM skep._refuse_cron(coalesce(cron, ''), 'it', 'five fields',
            format('%s fields', coalesce(cardinality(fields), 0)));
    END IF;
    rule.minutes := skep._cron_values(cron, fields[1], 'minute', 0, 59);
    rule.hours := skep._cron_values(cron, fields[2], 'hour', 0, 23);
    rule.days := skep._cron_values(cron, fields[3], 'day of month', 1, 31);
    rule.months := skep._cron_values(cron, fields[4], 'month', 1, 12,
        '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}');
    rule.weekdays := skep._cron_values(cron, fields[5], 'day of week', 0, 7, '{sun,mon,tue,wed,thu,fri,sat}');
    rule.is_either := fields[3] NOT LIKE '*%' AND fields[5] NOT LIKE '*%';
    RETURN rule;
END $$;

-- Returns the first local time at or after `start` that matches a cron expression; NULL if there is none within 40
-- years.
CREATE FUNCTION skep._next_local_time(rule skep.cron_rule, start timestamp) RETURNS timestamp
LANGUAGE plpgsql AS $$
DECLARE
    today  timestamp := date_trunc('day', start);
    month  timestamp := date_trunc('month', start);
    hour   integer := extract(hour FROM start);
    minute integer;
    day    timestamp;
BEGIN
    FOR n IN 0 .. 480 LOOP
        IF extract(month FROM month) = ANY (rule.months) THEN
            FOR day IN
                SELECT d FROM generate_series(greatest(month, today), month + interval '1 month' - interval '1 day',
                    '1 day') AS d
                WHERE CASE WHEN rule.is_either THEN extract(day FROM d) = ANY (rule.days)
                    OR extract(dow FROM d) = ANY (rule.weekdays)
                           ELSE extract(day FROM d) = ANY (rule.days) AND extract(dow FROM d) = ANY (rule.weekdays) END
                ORDER BY d
            LOOP
                IF day > today THEN
                    RETURN day + make_interval(hours => rule.hours[1], mins => rule.minutes[1]);
                END IF;
                minute := (SELECT min(m) FROM unnest(rule.minutes) AS m WHERE m >= extract(minute FROM start));
                IF hour = ANY (rule.hours) AND minute IS NOT NULL THEN
                    RETURN day + make_interval(hours => hour, mins => minute);
                ELSIF hour < rule.hours[cardinality(rule.hours)] THEN
                    RETURN day + make_interval(hours => (SELECT min(h) FROM unnest(rule.hours) AS h WHERE h > hour),
                        mins => rule.minutes[1]);
                END IF;
            END LOOP;
        END IF;
        month := month + interval '1 month';
    END LOOP;
    RETURN NULL;
END $$;

-- Returns the instant of a local time: the first one if it occurs twice, the end of the gap if it does not exist.
CREATE FUNCTION skep._instant_of(local timestamp, time_zone text) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    later   timestamptz := local AT TIME ZONE time_zone;
    day_ago timestamptz := later - interval '25 hours';
    before  interval := day_ago AT TIME ZONE time_zone - day_ago AT TIME ZONE 'UTC';
    earlier timestamptz := (local - before) AT TIME ZONE 'UTC';
    low     timestamptz;
    middle  timestamptz;
BEGIN
    IF earlier AT TIME ZONE time_zone = local THEN
        RETURN least(earlier, later);
    ELSIF later AT TIME ZONE time_zone = local THEN
        RETURN later;
    END IF;
    low := earlier - interval '25 hours';  -- before the gap; `earlier` is after it
    WHILE earlier - low > interval '1 second' LOOP
        middle := low + date_trunc('second', (earlier - low) / 2);
        IF middle AT TIME ZONE time_zone - middle AT TIME ZONE 'UTC' = before THEN
            low := middle;
        ELSE
            earlier := middle;
        END IF;
    END LOOP;
    RETURN earlier;
END $$;

-- Returns the first tick after an instant. Ticks never repeat: several local times in a gap are one instant.
CREATE FUNCTION skep._next_tick(cron text, time_zone text, after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    rule  skep.cron_rule := skep._parse_cron(cron);
    local timestamp;
    tick  timestamptz;
BEGIN
    BEGIN
        local := date_trunc('minute', after AT TIME ZONE time_zone) + interval '1 minute';
    EXCEPTION WHEN invalid_parameter_value THEN
        PERFORM skep._refuse('SK001', format('unknown time zone "%s"', left(time_zone, 80)),
                            'Use a name such as Europe/Berlin; pg_timezone_names lists all.');
    END;
    LOOP
        local := skep._next_local_time(rule, local);
        IF local IS NULL THEN
            PERFORM skep._refuse('SK001', format('cron expression "%s" matches no day', left(cron, 80)));
        END IF;
        tick := skep._instant_of(local, time_zone);
        EXIT WHEN tick > after;
        local := local + interval '1 minute';
    END LOOP;
    RETURN tick;
END $$;

-- Returns the last tick that is not after `moment`, which is not before `first`, which is a tick. It doubles its step
-- back each time, so that an outage of years costs few steps.
CREATE FUNCTION skep._last_tick(cron text, time_zone text, first timestamptz, moment timestamptz) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    tick  timestamptz := first;
    next  timestamptz := skep._next_tick(cron, time_zone, first);
    found timestamptz;
    back  interval := '1 minute';
BEGIN
    WHILE next <= moment AND moment - back > first LOOP
        found := skep._next_tick(cron, time_zone, moment - back);
        IF found <= moment THEN
            next := found;
            EXIT;
        END IF;
        back := 2 * back;
    END LOOP;
    WHILE next <= moment LOOP
        tick := next;
        next := skep._next_tick(cron, time_zone, tick);
    END LOOP;
    RETURN tick;
END $$;

-- Creates or changes a schedule. The next tick stays if the times stay, so that a deployment that repeats this call
-- skips no tick.
CREATE FUNCTION skep.create_schedule(
    name text, cron text, queue text, payload jsonb DEFAULT 'null', partition text DEFAULT 'Default',
        headers jsonb DEFAULT NULL,
    time_zone text DEFAULT 'UTC', missed text DEFAULT 'one'
) RETURNS skep.schedules LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
    zone text;
    made skep.schedules;
BEGIN
    PERFORM skep._check_name(what, given) FROM (VALUES ('schedule', create_schedule.name),
        ('queue', create_schedule.queue),
                                                       ('partition', create_schedule.partition)) AS v (what, given);
    PERFORM skep._check_item(1, create_schedule.payload, 16777216, NULL, create_schedule.headers);
    IF char_length(create_schedule.cron) > 1000 THEN  -- it is parsed again at every tick
        PERFORM skep._refuse('SK001', format('a cron expression must have at most 1000 characters, got %s',
                                             char_length(create_schedule.cron)));
    END IF;
    IF create_schedule.missed IS NULL OR create_schedule.missed NOT IN ('skip', 'one', 'all') THEN
        PERFORM skep._refuse('SK001', format('missed must be one of skip, one, all, got %s',
            coalesce(create_schedule.missed, 'NULL')));
    END IF;
    SELECT z.name INTO zone FROM pg_timezone_names z WHERE lower(z.name) = lower(create_schedule.time_zone) LIMIT 1;
    IF zone IS NULL THEN
        PERFORM skep._refuse('SK001', format('unknown time zone "%s"', left(create_schedule.time_zone, 80)),
                            'Use a name such as Europe/Berlin; pg_timezone_names lists all.');
    END IF;
    INSERT INTO skep.schedules AS s (name, cron, time_zone, queue, partition, payload, headers, missed, next_at)
    VALUES (create_schedule.name, create_schedule.cron, zone, create_schedule.queue, create_schedule.partition,
        create_schedule.payload,
            create_schedule.headers, create_schedule.missed, skep._next_tick(create_schedule.cron, zone,
                clock_timestamp()))
    ON CONFLICT ON CONSTRAINT schedules_pkey DO UPDATE
    SET cron = excluded.cron, time_zone = excluded.time_zone, queue = excluded.queue, partition = excluded.partition,
        payload = excluded.payload, headers = excluded.headers, missed = excluded.missed, error = NULL,
        next_at = CASE WHEN (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) THEN s.next_at
            ELSE skep._next_tick(excluded.cron, excluded.time_zone, greatest(clock_timestamp(), s.last_at)) END
    RETURNING s.* INTO made;
    RETURN made;
END $$;
COMMENT ON FUNCTION skep.create_schedule IS
    'Creates a schedule, or changes the one with this name: it pushes a message to the queue at the times of the cron '
    'expression. missed tells which of the ticks that were not pushed in time are pushed later: all, one (the last) or '
    'skip (none).';
CALL skep._allow('skep_admin', 'create_schedule');

CREATE FUNCTION skep._require_schedule(schedule skep.schedules, name text) RETURNS skep.schedules
LANGUAGE plpgsql AS $$
BEGIN
    IF schedule.name IS NULL THEN
        PERFORM skep._refuse('SK002', format('there is no schedule "%s"', name),
            'list_schedules() shows all schedules.');
    END IF;
    RETURN schedule;
END $$;

CREATE FUNCTION skep.pause_schedule(name text) RETURNS skep.schedules
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    changed skep.schedules;
BEGIN
    UPDATE skep.schedules s SET paused = true WHERE s.name = pause_schedule.name RETURNING s.* INTO changed;
    RETURN skep._require_schedule(changed, name);
END $$;
COMMENT ON FUNCTION skep.pause_schedule IS 'Pauses a schedule: it pushes nothing until resume_schedule().';
CALL skep._allow('skep_admin', 'pause_schedule');

CREATE FUNCTION skep.resume_schedule(name text) RETURNS skep.schedules
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    changed skep.schedules;
BEGIN
    UPDATE skep.schedules s
    SET paused = false,
        -- last_at is later than now if the clock was set back: its ticks were pushed
        next_at = skep._next_tick(s.cron, s.time_zone, greatest(clock_timestamp(), s.last_at))
    WHERE s.name = resume_schedule.name AND s.paused;
    SELECT * INTO changed FROM skep.schedules s WHERE s.name = resume_schedule.name;
    RETURN skep._require_schedule(changed, name);
END $$;
COMMENT ON FUNCTION skep.resume_schedule IS
    'Resumes a paused schedule at its next tick. Ticks during the pause do not count as missed.';
CALL skep._allow('skep_admin', 'resume_schedule');

CREATE FUNCTION skep.delete_schedule(name text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    DELETE FROM skep.schedules s WHERE s.name = delete_schedule.name;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION skep.delete_schedule IS 'Deletes a schedule. Returns false if it does not exist.';
CALL skep._allow('skep_admin', 'delete_schedule');

CREATE FUNCTION skep.list_schedules(queue text DEFAULT NULL) RETURNS SETOF skep.schedules
LANGUAGE sql STABLE AS $$ SELECT * FROM skep.schedules s WHERE $1 IS NULL OR s.queue = $1 ORDER BY s.name $$;
COMMENT ON FUNCTION skep.list_schedules IS 'Returns the schedules of one queue, or all, by name.';
CALL skep._allow('skep_admin', 'list_schedules');

-- Pushes the due ticks of a schedule, at most 1,000 and about 64 MB, and moves its next tick. The caller has locked its
-- row. A tick that is more than a minute late is a missed one.
CREATE FUNCTION skep._push_ticks(s skep.schedules) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    stamp timestamptz := clock_timestamp();
    ticks timestamptz[] := '{}';
    next  timestamptz := s.next_at;
    most  integer := greatest(1, least(1000, 67108864 / octet_length(s.payload::text)));
BEGIN
    IF s.missed = 'all' THEN
        WHILE next <= stamp AND cardinality(ticks) < most LOOP
            ticks := ticks || next;
            next := skep._next_tick(s.cron, s.time_zone, next);
        END LOOP;
    ELSE
        ticks := ARRAY[skep._last_tick(s.cron, s.time_zone, s.next_at, stamp)];
        next := skep._next_tick(s.cron, s.time_zone, ticks[1]);
        IF s.missed = 'skip' AND ticks[1] < stamp - interval '1 minute' THEN
            ticks := '{}';
        END IF;
    END IF;
    IF ticks <> '{}' THEN
        PERFORM skep.push_many(
            array_fill(s.queue, ARRAY[cardinality(ticks)]), array_fill(s.partition, ARRAY[cardinality(ticks)]),
            array_fill(s.payload, ARRAY[cardinality(ticks)]), NULL,
            ARRAY(SELECT coalesce(s.headers, '{}') || jsonb_build_object('skep-schedule', s.name, 'skep-tick',
                skep._tick_text(tick))
                  FROM unnest(ticks) WITH ORDINALITY AS t (tick, n) ORDER BY n));
    END IF;
    UPDATE skep.schedules o SET next_at = next, last_at = coalesce(ticks[cardinality(ticks)], o.last_at), error = NULL
        WHERE o.name = s.name;
    RETURN cardinality(ticks);
END $$;

CREATE FUNCTION skep._tick_text(tick timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$ SELECT to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;

-- A schedule whose partition is locked is left for the next call, so that the others do not wait for it. One whose push
-- is refused keeps its tick, with the error in its row. Neither blocks other schedules, however many there are: refused
-- ones come last, and locked ones do not count.
CREATE FUNCTION skep.run_schedules(max_schedules integer DEFAULT 100, OUT messages bigint, OUT refused bigint,
    OUT queues text[])
LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
    s      skep.schedules;
    pushed bigint;
    tried  integer := 0;
    busy   text[] := '{}';  -- partitions that another session is creating: wait only once for each
BEGIN
    PERFORM skep._require_read_committed('run_schedules');
    messages := 0;
    refused := 0;
    queues := '{}';
    FOR s IN
        SELECT o.* FROM skep.schedules o WHERE NOT o.paused AND o.next_at <= clock_timestamp()
        ORDER BY o.error IS NOT NULL, o.next_at FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN tried >= max_schedules;
        CONTINUE WHEN format('%I.%I', s.queue, s.partition) = ANY (busy);
        PERFORM FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id WHERE q.name = s.queue
            AND p.name = s.partition
        FOR NO KEY UPDATE OF p SKIP LOCKED;
        CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
                                            WHERE q.name = s.queue AND p.name = s.partition);
        tried := tried + 1;
        BEGIN
            pushed := skep._push_ticks(s);
            messages := messages + pushed;
            queues := CASE WHEN pushed > 0 AND s.queue <> ALL (queues) THEN queues || s.queue::text ELSE queues END;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE = '55P03' THEN
                busy := busy || format('%I.%I', s.queue, s.partition);
                CONTINUE;
            ELSIF skep._is_transient(SQLSTATE) THEN
                RAISE;
            END IF;
            refused := refused + 1;
            UPDATE skep.schedules o SET error = SQLERRM WHERE o.name = s.name AND o.error IS DISTINCT FROM SQLERRM;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION skep.run_schedules IS 'Pushes the ticks of schedules that are due; upkeep calls it once a second.';
CALL skep._allow('skep_admin', 'run_schedules');
