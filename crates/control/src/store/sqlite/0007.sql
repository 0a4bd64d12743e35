-- When a token ends, if it does; and since when a node does not have a GPU in service any longer.
ALTER TABLE tokens ADD COLUMN expires_ms INTEGER;
ALTER TABLE gpus ADD COLUMN lost_ms INTEGER;
