-- Schema 6: which changes of a server that stopped in the middle are in this file (stores/sqlite_redo.py).
--
-- Those in the file beside it that carry this number are not; it changes with every commit that takes some in.

CREATE TABLE redo (generation INTEGER NOT NULL) STRICT;
INSERT INTO redo VALUES (abs(random() / 2));
