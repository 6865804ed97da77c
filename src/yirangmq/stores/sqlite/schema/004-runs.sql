-- Schema 4: messages that share their fate are one row instead of one each.
--
-- A run is of messages whose numbers follow each other. Each of them stands where it came in, for anyone, in no group,
-- without an end of its time. As soon as one of them leads a life of its own it is cut out and has its row in "ready"
-- or "life". A message is in exactly one of the four.

-- Those that may be taken and never were.
CREATE TABLE fresh (
    queue INTEGER NOT NULL,
    rank  INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last  INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, first)
) STRICT, WITHOUT ROWID;

-- Those leased together for the first time, and of those the ones acknowledged together.
CREATE TABLE batch (
    first      INTEGER PRIMARY KEY,
    last       INTEGER NOT NULL,
    queue      INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    state      TEXT NOT NULL,              -- leased or done
    due_at     INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    consumer   TEXT NOT NULL,
    body       INTEGER NOT NULL,           -- 1: their content is stored
    ids        TEXT                        -- once their content is gone: {"id": bytes it had, …} in their order
) STRICT;
CREATE INDEX batch_due ON batch (due_at) WHERE due_at > 0;
CREATE INDEX batch_archive ON batch (queue, changed_at) WHERE state = 'done' AND body = 1;

DROP VIEW messages;
CREATE VIEW messages AS
SELECT q.name AS queue, m.id AS messageId, 'ready' AS state, nullif(m.rank, 9007199254740992) AS priority,
       r.attempt, datetime(m.published_at / 1000, 'unixepoch') AS publishedAt, NULL AS dueAt, NULL AS consumer,
       nullif(r.reason, '') AS reason, m.header, m.payload, m.seq
FROM ready r JOIN message m USING (seq) JOIN queue q ON q.n = r.queue
UNION ALL
SELECT q.name, m.id, 'ready', nullif(m.rank, 9007199254740992), 0,
       datetime(m.published_at / 1000, 'unixepoch'), NULL, NULL, NULL, m.header, m.payload, m.seq
FROM fresh f JOIN message m ON m.seq BETWEEN f.first AND f.last JOIN queue q ON q.n = f.queue
UNION ALL
SELECT q.name, l.id, l.state, nullif(l.rank, 9007199254740992),
       l.attempt, datetime(m.published_at / 1000, 'unixepoch'),
       CASE WHEN l.due_at > 0 THEN datetime(l.due_at / 1000, 'unixepoch') END,
       nullif(l.consumer, ''), nullif(l.reason, ''), m.header, m.payload, l.seq
FROM life l JOIN queue q ON q.n = l.queue LEFT JOIN message m USING (seq)
UNION ALL
SELECT q.name, m.id, b.state, nullif(b.rank, 9007199254740992), 1, datetime(m.published_at / 1000, 'unixepoch'),
       CASE WHEN b.due_at > 0 THEN datetime(b.due_at / 1000, 'unixepoch') END,
       nullif(b.consumer, ''), NULL, m.header, m.payload, m.seq
FROM batch b JOIN message m ON m.seq BETWEEN b.first AND b.last JOIN queue q ON q.n = b.queue WHERE b.body = 1
UNION ALL
SELECT q.name, i.key, b.state, nullif(b.rank, 9007199254740992), 1, NULL,
       CASE WHEN b.due_at > 0 THEN datetime(b.due_at / 1000, 'unixepoch') END,
       nullif(b.consumer, ''), NULL, NULL, NULL, b.first + row_number() OVER (PARTITION BY b.first ORDER BY i.id) - 1
FROM batch b JOIN json_each(b.ids) i JOIN queue q ON q.n = b.queue WHERE b.body = 0;
