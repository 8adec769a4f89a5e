-- What was asked for under an idempotency key, besides runs. Names belong to the API key that asked.

CREATE TABLE named_execs (
    by_key  TEXT NOT NULL,
    run     TEXT NOT NULL REFERENCES runs (id),
    name    TEXT NOT NULL,
    digest  TEXT NOT NULL,
    exec    TEXT NOT NULL,
    -- 1 once its host is known to have started it.
    started BIGINT NOT NULL,
    PRIMARY KEY (by_key, run, name)
);

CREATE TABLE named_keys (
    by_key TEXT NOT NULL,
    name   TEXT NOT NULL,
    digest TEXT NOT NULL,
    key    TEXT NOT NULL,
    PRIMARY KEY (by_key, name)
);
