-- Schema 2: one view to read everything with plain SQL (docs/sqlite.md).

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
