-- The day on which a project made instances last, counted since 1970, and how many then.
ALTER TABLE projects ADD COLUMN launch_day BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN launches BIGINT NOT NULL DEFAULT 0;
-- What ended long ago is found.
CREATE INDEX instances_ended ON instances (ended_ms) WHERE ended_ms IS NOT NULL;
