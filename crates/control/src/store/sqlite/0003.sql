-- Whether somebody said where the gateway is reached. If not, it is what the node says, which may
-- be another port after each start. Of nodes that are known already nobody knows it.
ALTER TABLE nodes ADD COLUMN gateway_given INTEGER NOT NULL DEFAULT 1;
