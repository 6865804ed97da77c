-- Schema 1: queues and their messages.
--
-- A message row is written once and never updated. Where the message stands is kept apart, in narrow rows:
-- in "ready" while it may be taken, in "life" in every other state. A message is in exactly one of the two.

CREATE TABLE queue (
    n         INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    policy    TEXT,                          -- the policy document as set; NULL: defaults
    draft     INTEGER NOT NULL DEFAULT 0,    -- how many in each state, kept in the same transactions
    delayed   INTEGER NOT NULL DEFAULT 0,
    ready     INTEGER NOT NULL DEFAULT 0,
    claimed   INTEGER NOT NULL DEFAULT 0,
    leased    INTEGER NOT NULL DEFAULT 0,
    dead      INTEGER NOT NULL DEFAULT 0,
    parked    INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0,    -- kept as history
    published INTEGER NOT NULL DEFAULT 0,    -- ever
    acked     INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    dropped   INTEGER NOT NULL DEFAULT 0,
    redriven  INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The last number given out, to messages and to places in line.
CREATE TABLE sequence (last INTEGER NOT NULL) STRICT;
INSERT INTO sequence VALUES (0);

-- What was sent. payload is TEXT if it is JSON, BLOB if it is other bytes.
CREATE TABLE message (
    seq          INTEGER PRIMARY KEY,
    queue        INTEGER NOT NULL,
    id           TEXT NOT NULL,
    rank         INTEGER NOT NULL,
    published_at INTEGER NOT NULL,           -- all instants: milliseconds since 1970, UTC
    available_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    dedup_key    TEXT,
    header       TEXT NOT NULL,              -- envelope members beside id, queue and payload, JSON
    payload      ANY NOT NULL
) STRICT;

-- Id to number, also of finished messages while they are remembered; place: where it last stood in line.
CREATE TABLE name (
    queue INTEGER NOT NULL,
    id    TEXT NOT NULL,
    seq   INTEGER NOT NULL,
    place INTEGER NOT NULL,
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;

-- Those that may be taken, in the order in which they will be.
CREATE TABLE ready (
    queue      INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    leases     INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    consumer   TEXT NOT NULL,
    reason     TEXT NOT NULL,
    repeats    INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX ready_expires ON ready (expires_at) WHERE expires_at > 0;

-- Those in any other state.
CREATE TABLE life (
    seq        INTEGER PRIMARY KEY,
    queue      INTEGER NOT NULL,
    id         TEXT NOT NULL,
    state      TEXT NOT NULL,
    rank       INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    leases     INTEGER NOT NULL,
    due_at     INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    consumer   TEXT NOT NULL,
    reason     TEXT NOT NULL,
    repeats    INTEGER NOT NULL,
    body       INTEGER NOT NULL
) STRICT;
CREATE INDEX life_due ON life (due_at) WHERE due_at > 0;
CREATE INDEX life_dead ON life (queue, state, changed_at) WHERE state IN ('dead', 'parked');
CREATE INDEX life_archive ON life (queue, changed_at) WHERE state = 'done' AND body = 1;

CREATE TABLE dedup (
    queue INTEGER NOT NULL,
    key   TEXT NOT NULL,
    until INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    id    TEXT NOT NULL,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_until ON dedup (until);

-- The latest failure of a message.
CREATE TABLE failure (
    seq            INTEGER PRIMARY KEY,
    reason_code    TEXT NOT NULL,
    reason_message TEXT NOT NULL,
    failed_at      INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    consumer       TEXT NOT NULL
) STRICT;
