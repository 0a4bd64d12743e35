CREATE TABLE plane (id TEXT NOT NULL);
INSERT INTO plane VALUES (substr(md5(gen_random_uuid()::text), 1, 6));

-- One row: which replica writes. Whoever takes it over counts it up, and every transaction that
-- writes locks it and compares. The clock is the database's.
CREATE TABLE lease (
    generation BIGINT NOT NULL,
    holder TEXT NOT NULL,
    address TEXT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);
INSERT INTO lease VALUES (0, '', '', '-infinity');

CREATE TABLE projects (
    name TEXT COLLATE "C" PRIMARY KEY,
    quota_cgpus BIGINT NOT NULL, quota_memory BIGINT NOT NULL, quota_exclusive BIGINT NOT NULL,
    used_cgpus BIGINT NOT NULL DEFAULT 0, used_memory BIGINT NOT NULL DEFAULT 0,
    used_exclusive BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE tokens (
    name TEXT COLLATE "C" PRIMARY KEY,
    digest BYTEA NOT NULL UNIQUE,
    project TEXT COLLATE "C" REFERENCES projects (name),
    role TEXT NOT NULL,
    created_ms BIGINT NOT NULL
);

CREATE TABLE nodes (
    name TEXT COLLATE "C" PRIMARY KEY,
    admin TEXT NOT NULL,
    gateway TEXT NOT NULL,
    gateway_given BOOLEAN NOT NULL,
    host TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    -- The digest of the gateway's public key, in hex: one node is not known by two names.
    identity TEXT NOT NULL
);
CREATE UNIQUE INDEX nodes_identity ON nodes (identity) WHERE identity <> '';

CREATE TABLE gpus (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes (name),
    device TEXT NOT NULL,
    product TEXT NOT NULL,
    memory BIGINT NOT NULL,
    held BIGINT NOT NULL DEFAULT 0 CHECK (held BETWEEN 0 AND memory),
    cgpus BIGINT NOT NULL DEFAULT 0 CHECK (cgpus >= 0),
    exclusive BOOLEAN NOT NULL DEFAULT false,
    in_service BOOLEAN NOT NULL DEFAULT true,
    generation BIGINT NOT NULL DEFAULT 0,
    UNIQUE (node, device)
);

CREATE TABLE instances (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    project TEXT COLLATE "C" NOT NULL REFERENCES projects (name),
    wanted BOOLEAN NOT NULL,
    marks BIGINT NOT NULL DEFAULT 0,
    spec TEXT NOT NULL,
    slot BIGINT NOT NULL,
    found TEXT NOT NULL DEFAULT '{}',
    failure TEXT,
    operation TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    ready_ms BIGINT,
    ended_ms BIGINT,
    hidden BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX instances_live ON instances (seq) WHERE ended_ms IS NULL;
CREATE UNIQUE INDEX instances_slot ON instances (slot) WHERE ended_ms IS NULL;
CREATE INDEX instances_shown ON instances (project, seq) WHERE NOT hidden;
-- What is to be done: not ready, and not gone.
CREATE INDEX instances_unsettled ON instances (seq)
    WHERE ended_ms IS NULL AND (NOT wanted OR ready_ms IS NULL);

CREATE TABLE cgpus (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    instance TEXT NOT NULL REFERENCES instances (id),
    project TEXT COLLATE "C" NOT NULL,
    ordinal BIGINT NOT NULL,
    gpu BIGINT NOT NULL,
    node TEXT NOT NULL,
    device TEXT NOT NULL,
    memory BIGINT NOT NULL,
    exclusive BOOLEAN NOT NULL,
    weight BIGINT NOT NULL,
    masked TEXT,
    token TEXT,
    from_ms BIGINT NOT NULL,
    to_ms BIGINT,
    used_ns BIGINT
);
CREATE INDEX cgpus_instance ON cgpus (instance, ordinal);
CREATE INDEX cgpus_live ON cgpus (seq) WHERE to_ms IS NULL;
CREATE INDEX cgpus_project ON cgpus (project, seq);

CREATE TABLE operations (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    instance TEXT NOT NULL REFERENCES instances (id),
    project TEXT NOT NULL,
    state TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    failure TEXT
);
CREATE INDEX operations_instance ON operations (instance);

CREATE TABLE events (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation TEXT NOT NULL REFERENCES operations (id),
    at_ms BIGINT NOT NULL,
    step TEXT NOT NULL,
    kind TEXT NOT NULL,
    took_us BIGINT NOT NULL,
    detail TEXT
);
CREATE INDEX events_operation ON events (operation, seq);

CREATE TABLE keys (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BYTEA NOT NULL,
    instance TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX keys_age ON keys (created_ms);

CREATE TABLE audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    actor TEXT NOT NULL,
    project TEXT,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    status BIGINT NOT NULL
);
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit is only added to'; END $$;
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_is_whole BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- What is written to see whether anything can be.
CREATE TABLE written (at_ms BIGINT NOT NULL);
INSERT INTO written VALUES (0);
