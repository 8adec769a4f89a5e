-- The first form of the store. Times are RFC 3339 text; documents are JSON text.

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
-- The highest fence ever given out.
INSERT INTO counters (name, value) VALUES ('fence', 0);

CREATE TABLE runs (
    id         TEXT PRIMARY KEY,
    by_key     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    sandbox    TEXT NOT NULL UNIQUE,
    plan       TEXT NOT NULL,
    phase      TEXT NOT NULL,
    -- How it ended; set exactly when the phase is done.
    ending     TEXT,
    facts      TEXT NOT NULL,
    -- 1 while it counts against the cap on sandboxes.
    holds      BIGINT NOT NULL,
    fence      BIGINT NOT NULL,
    last_seq   BIGINT NOT NULL,
    -- Bytes of those events that are evicted when there are too many.
    log_bytes  BIGINT NOT NULL,
    CHECK ((phase = 'done') = (ending IS NOT NULL))
);
CREATE INDEX runs_open ON runs (holds, phase);

CREATE TABLE idempotency (
    by_key TEXT NOT NULL,
    name   TEXT NOT NULL,
    digest TEXT NOT NULL,
    run    TEXT NOT NULL REFERENCES runs (id),
    PRIMARY KEY (by_key, name)
);

CREATE TABLE steps (
    run      TEXT NOT NULL REFERENCES runs (id),
    name     TEXT NOT NULL,
    position BIGINT NOT NULL,
    cursor   TEXT NOT NULL,
    -- Null while it is begun and not known to be done.
    outcome  TEXT,
    PRIMARY KEY (run, name)
);

CREATE TABLE events (
    run  TEXT NOT NULL REFERENCES runs (id),
    seq  BIGINT NOT NULL,
    at   TEXT NOT NULL,
    kind TEXT NOT NULL,
    size BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, seq)
);
CREATE INDEX events_by_kind ON events (run, kind, seq);

CREATE TABLE diffs (
    run  TEXT PRIMARY KEY REFERENCES runs (id),
    diff TEXT NOT NULL
);

CREATE TABLE hosts (
    name      TEXT PRIMARY KEY,
    account   TEXT NOT NULL,
    address   TEXT NOT NULL,
    port      BIGINT NOT NULL,
    host_key  TEXT NOT NULL,
    admission TEXT NOT NULL
);

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    scope      TEXT NOT NULL,
    -- SHA-256 of the token, hexadecimal. The token itself is nowhere.
    hash       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT,
    revoked_at TEXT
);
