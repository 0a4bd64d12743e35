-- Endpoints of compute hosts, which a start names and an administrator takes out of service.
CREATE TABLE endpoints (
    host TEXT PRIMARY KEY,
    socket TEXT NOT NULL,
    in_service INTEGER NOT NULL DEFAULT 1,
    created_ms INTEGER NOT NULL
) STRICT;
