-- Schema 7: where in the file of changes those begin that are not in this file (stores/sqlite_redo.py).
--
-- A commit that takes some in says how many records of this generation it has, and where the next one may lie.

ALTER TABLE redo ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
ALTER TABLE redo ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
