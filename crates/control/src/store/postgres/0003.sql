-- Endpoints of compute hosts, which a start names and an administrator takes out of service.
CREATE TABLE endpoints (
    host TEXT COLLATE "C" PRIMARY KEY,
    socket TEXT NOT NULL,
    in_service BOOLEAN NOT NULL DEFAULT true,
    created_ms BIGINT NOT NULL
);
