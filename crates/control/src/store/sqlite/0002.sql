-- Which control plane this is: its vGPUs are told from those of others.
CREATE TABLE plane (id TEXT NOT NULL) STRICT;
INSERT INTO plane VALUES (lower(hex(randomblob(3))));

-- The digest of the gateway's public key, in hex: one node is not known by two names.
ALTER TABLE nodes ADD COLUMN identity TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX nodes_identity ON nodes (identity) WHERE identity <> '';

-- What is written to see whether anything can be.
CREATE TABLE written (at_ms INTEGER NOT NULL) STRICT;
INSERT INTO written VALUES (0);
