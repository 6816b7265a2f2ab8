-- Which database this is: all instances on one Redis compare it, and keep messages in the same one. It goes with every
-- copy and backup.

CREATE TABLE identity (
    one smallint PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    id  text     NOT NULL
);
INSERT INTO identity (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
