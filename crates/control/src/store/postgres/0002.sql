-- Weights of shared cGPUs, and cGPUs that are user-facing: what a project may have of them and has.
-- Without a number it may have weight 1 for each cGPU; a project that has more keeps as much.
ALTER TABLE projects ADD COLUMN quota_weight BIGINT;
ALTER TABLE projects ADD COLUMN quota_user_facing BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN used_weight BIGINT NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN used_user_facing BIGINT NOT NULL DEFAULT 0;
-- Whether an instance that is not gone yet counts for its project no longer.
ALTER TABLE instances ADD COLUMN uncharged BOOLEAN NOT NULL DEFAULT false;
UPDATE projects SET
    used_weight = (SELECT coalesce(sum(weight), 0) FROM cgpus
                   WHERE project = projects.name AND to_ms IS NULL AND NOT exclusive),
    used_user_facing = (SELECT count(*) FROM cgpus JOIN instances ON instances.id = cgpus.instance
                        WHERE cgpus.project = projects.name AND to_ms IS NULL
                          AND CAST(CAST(spec AS json) ->> 'sla_us' AS bigint) > 0);
UPDATE projects SET quota_weight = used_weight WHERE used_weight > quota_cgpus;
UPDATE projects SET quota_user_facing = used_user_facing;
