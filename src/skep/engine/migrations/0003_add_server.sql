-- What the HTTP server keeps: options that only Queen's protocol has, and groups that want the last value only.

ALTER TABLE skep.queues
    ADD encryption_enabled boolean NOT NULL DEFAULT false,  -- the server seals payloads before they come here
    ADD queen_options      jsonb NOT NULL DEFAULT '{}';     -- as a Queen client sent them, for the answer of configure

-- Set at the group's first contact: each delivery is the last message of its run, and the ones before it count as done.
ALTER TABLE skep.subscriptions ADD conflation boolean NOT NULL DEFAULT false;

-- Where an answer that came over the wire points; see wire_find().
CREATE TYPE skep.wire_place AS (
    ord       bigint,
    lane      bigint,
    reader    integer,
    queue     text,
    partition text,
    "offset"  bigint,
    lease     uuid,
    done      boolean
);
