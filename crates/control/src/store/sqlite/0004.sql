-- Statements say `NOT hidden` and `NOT wanted`, and an index is taken for what says the same.
DROP INDEX instances_shown;
CREATE INDEX instances_shown ON instances (project, seq) WHERE NOT hidden;
DROP INDEX instances_unsettled;
CREATE INDEX instances_unsettled ON instances (seq)
    WHERE ended_ms IS NULL AND (NOT wanted OR ready_ms IS NULL);
