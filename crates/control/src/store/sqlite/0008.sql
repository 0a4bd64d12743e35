-- The day on which a project made instances last, counted since 1970, and how many then.
ALTER TABLE projects ADD COLUMN launch_day INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN launches INTEGER NOT NULL DEFAULT 0;
-- What ended long ago is found, and what is forgotten with it.
CREATE INDEX instances_ended ON instances (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE INDEX IF NOT EXISTS operations_instance ON operations (instance);
