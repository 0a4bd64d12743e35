CREATE TABLE projects (
    name TEXT PRIMARY KEY,
    quota_cgpus INTEGER NOT NULL, quota_memory INTEGER NOT NULL, quota_exclusive INTEGER NOT NULL,
    used_cgpus INTEGER NOT NULL DEFAULT 0, used_memory INTEGER NOT NULL DEFAULT 0,
    used_exclusive INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE tokens (
    name TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    project TEXT REFERENCES projects (name),
    role TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE nodes (
    name TEXT PRIMARY KEY,
    admin TEXT NOT NULL,
    gateway TEXT NOT NULL,
    host TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE gpus (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    node TEXT NOT NULL REFERENCES nodes (name),
    device TEXT NOT NULL,
    product TEXT NOT NULL,
    memory INTEGER NOT NULL,
    held INTEGER NOT NULL DEFAULT 0 CHECK (held BETWEEN 0 AND memory),
    cgpus INTEGER NOT NULL DEFAULT 0 CHECK (cgpus >= 0),
    exclusive INTEGER NOT NULL DEFAULT 0,
    in_service INTEGER NOT NULL DEFAULT 1,
    generation INTEGER NOT NULL DEFAULT 0,
    UNIQUE (node, device)
) STRICT;

CREATE TABLE instances (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    project TEXT NOT NULL REFERENCES projects (name),
    wanted INTEGER NOT NULL,
    marks INTEGER NOT NULL DEFAULT 0,
    spec TEXT NOT NULL,
    slot INTEGER NOT NULL,
    found TEXT NOT NULL DEFAULT '{}',
    failure TEXT,
    operation TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    ready_ms INTEGER,
    ended_ms INTEGER,
    hidden INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX instances_live ON instances (seq) WHERE ended_ms IS NULL;
CREATE UNIQUE INDEX instances_slot ON instances (slot) WHERE ended_ms IS NULL;
CREATE INDEX instances_shown ON instances (project, seq) WHERE hidden = 0;
-- What is to be done: not ready, and not gone.
CREATE INDEX instances_unsettled ON instances (seq)
    WHERE ended_ms IS NULL AND (wanted = 0 OR ready_ms IS NULL);

CREATE TABLE cgpus (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    instance TEXT NOT NULL REFERENCES instances (id),
    project TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    node TEXT NOT NULL,
    device TEXT NOT NULL,
    memory INTEGER NOT NULL,
    exclusive INTEGER NOT NULL,
    weight INTEGER NOT NULL,
    masked TEXT,
    token TEXT,
    from_ms INTEGER NOT NULL,
    to_ms INTEGER,
    used_ns INTEGER
) STRICT;
CREATE INDEX cgpus_instance ON cgpus (instance, ordinal);
CREATE INDEX cgpus_live ON cgpus (seq) WHERE to_ms IS NULL;
CREATE INDEX cgpus_project ON cgpus (project, seq);
CREATE INDEX cgpus_gpu ON cgpus (gpu) WHERE to_ms IS NULL;

CREATE TABLE operations (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    instance TEXT NOT NULL REFERENCES instances (id),
    project TEXT NOT NULL,
    state TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    failure TEXT
) STRICT;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    operation TEXT NOT NULL REFERENCES operations (id),
    at_ms INTEGER NOT NULL,
    step TEXT NOT NULL,
    kind TEXT NOT NULL,
    took_us INTEGER NOT NULL,
    detail TEXT
) STRICT;
CREATE INDEX events_operation ON events (operation, seq);

CREATE TABLE keys (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    instance TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;
CREATE INDEX keys_age ON keys (created_ms);

CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    actor TEXT NOT NULL,
    project TEXT,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    status INTEGER NOT NULL
) STRICT;
CREATE TRIGGER audit_stays BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
CREATE TRIGGER audit_is_true BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
