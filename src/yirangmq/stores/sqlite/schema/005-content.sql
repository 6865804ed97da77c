-- Schema 5: payloads of messages published together are one row instead of one each.
--
-- They lie in "data" one behind the other. A message whose payload lies there has a whole number in the column
-- "payload" of "message": beginning * 33554432 + length * 2 + (1 if it is JSON). A row goes when none of its messages
-- has anything in it any more; one that will stay long, such as a dead letter, takes its payload out before.

CREATE TABLE content (
    first INTEGER PRIMARY KEY,             -- messages from this number
    last  INTEGER NOT NULL,                -- to this one
    sizes BLOB NOT NULL,                   -- of each, in four bytes, the smallest first: length * 2 + (1 if it is JSON);
                                           -- 4294967295: by itself. Read only if rows of "message" were lost
    data  BLOB NOT NULL
) STRICT;

-- What was sent, as it was sent.
CREATE VIEW sent AS
SELECT seq, queue, id, rank, published_at, header,
       CASE WHEN typeof(payload) != 'integer' THEN payload
       ELSE (SELECT CASE m.payload & 1
                    WHEN 1 THEN CAST(substr(data, (m.payload >> 25) + 1, m.payload >> 1 & 16777215) AS TEXT)
                    ELSE coalesce(substr(data, (m.payload >> 25) + 1, m.payload >> 1 & 16777215), x'') END
             FROM content WHERE first <= m.seq ORDER BY first DESC LIMIT 1)
       END AS payload
FROM message m;

DROP VIEW messages;
CREATE VIEW messages AS
SELECT q.name AS queue, m.id AS messageId, 'ready' AS state, nullif(m.rank, 9007199254740992) AS priority,
       r.attempt, datetime(m.published_at / 1000, 'unixepoch') AS publishedAt, NULL AS dueAt, NULL AS consumer,
       nullif(r.reason, '') AS reason, m.header, m.payload, m.seq
FROM ready r JOIN sent m USING (seq) JOIN queue q ON q.n = r.queue
UNION ALL
SELECT q.name, m.id, 'ready', nullif(m.rank, 9007199254740992), 0,
       datetime(m.published_at / 1000, 'unixepoch'), NULL, NULL, NULL, m.header, m.payload, m.seq
FROM fresh f JOIN sent m ON m.seq BETWEEN f.first AND f.last JOIN queue q ON q.n = f.queue
UNION ALL
SELECT q.name, l.id, l.state, nullif(l.rank, 9007199254740992),
       l.attempt, datetime(m.published_at / 1000, 'unixepoch'),
       CASE WHEN l.due_at > 0 THEN datetime(l.due_at / 1000, 'unixepoch') END,
       nullif(l.consumer, ''), nullif(l.reason, ''), m.header, m.payload, l.seq
FROM life l JOIN queue q ON q.n = l.queue LEFT JOIN sent m USING (seq)
UNION ALL
SELECT q.name, m.id, b.state, nullif(b.rank, 9007199254740992), 1, datetime(m.published_at / 1000, 'unixepoch'),
       CASE WHEN b.due_at > 0 THEN datetime(b.due_at / 1000, 'unixepoch') END,
       nullif(b.consumer, ''), NULL, m.header, m.payload, m.seq
FROM batch b JOIN sent m ON m.seq BETWEEN b.first AND b.last JOIN queue q ON q.n = b.queue WHERE b.body = 1
UNION ALL
SELECT q.name, i.key, b.state, nullif(b.rank, 9007199254740992), 1, NULL,
       CASE WHEN b.due_at > 0 THEN datetime(b.due_at / 1000, 'unixepoch') END,
       nullif(b.consumer, ''), NULL, NULL, NULL, b.first + row_number() OVER (PARTITION BY b.first ORDER BY i.id) - 1
FROM batch b JOIN json_each(b.ids) i JOIN queue q ON q.n = b.queue WHERE b.body = 0;
