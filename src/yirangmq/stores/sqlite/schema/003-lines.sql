-- Schema 3: groups, messages for one consumer, sizes.
--
-- grp and target are numbers made of names (core.names.line_of); 0 is none. size: bytes of payload and header.

ALTER TABLE queue ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;   -- of all that are not done with

ALTER TABLE message ADD COLUMN grp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE message ADD COLUMN target INTEGER NOT NULL DEFAULT 0;

ALTER TABLE life ADD COLUMN grp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE life ADD COLUMN target INTEGER NOT NULL DEFAULT 0;
ALTER TABLE life ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE life SET size = coalesce((SELECT octet_length(payload) + length(header) FROM message m WHERE m.seq = life.seq), 0);

-- Those that may be taken, in the order in which they will be: those for anyone, and those for one consumer.
DROP VIEW messages;
DROP INDEX ready_expires;
ALTER TABLE ready RENAME TO ready_2;
CREATE TABLE ready (
    queue      INTEGER NOT NULL,
    target     INTEGER NOT NULL,
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
    grp        INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    PRIMARY KEY (queue, target, rank, place)
) STRICT, WITHOUT ROWID;
INSERT INTO ready SELECT r.queue, 0, r.rank, place, seq, attempt, leases, r.expires_at, changed_at, consumer, reason, repeats,
    0, coalesce(octet_length(payload) + length(header), 0)
FROM ready_2 r LEFT JOIN message USING (seq);
DROP TABLE ready_2;
CREATE INDEX ready_expires ON ready (expires_at) WHERE expires_at > 0;

-- The messages of each group that are not done with, in order: the first one is in line or in hand, the others are held.
CREATE TABLE member (
    queue INTEGER NOT NULL,
    grp   INTEGER NOT NULL,
    place INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    PRIMARY KEY (queue, grp, place)
) STRICT, WITHOUT ROWID;

-- What somebody keeps beside the messages, in the same commits.
CREATE TABLE note (
    key  TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID;

UPDATE queue SET bytes =
    coalesce((SELECT sum(size) FROM ready WHERE queue = queue.n), 0)
    + coalesce((SELECT sum(size) FROM life WHERE queue = queue.n AND state IN ('delayed', 'claimed', 'leased')), 0);

CREATE VIEW messages AS
SELECT q.name AS queue, m.id AS messageId, 'ready' AS state, nullif(m.rank, 9007199254740992) AS priority,
       r.attempt, datetime(m.published_at / 1000, 'unixepoch') AS publishedAt, NULL AS dueAt, NULL AS consumer,
       nullif(r.reason, '') AS reason, m.header, m.payload, m.seq
FROM ready r JOIN message m USING (seq) JOIN queue q ON q.n = r.queue
UNION ALL
SELECT q.name, l.id, l.state, nullif(l.rank, 9007199254740992),
       l.attempt, datetime(m.published_at / 1000, 'unixepoch'),
       CASE WHEN l.due_at > 0 THEN datetime(l.due_at / 1000, 'unixepoch') END,
       nullif(l.consumer, ''), nullif(l.reason, ''), m.header, m.payload, l.seq
FROM life l JOIN queue q ON q.n = l.queue LEFT JOIN message m USING (seq);
