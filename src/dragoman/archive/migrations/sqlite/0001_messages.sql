-- Users, conversations of two, their messages, and the fences of the shards that write them.
--
-- No foreign keys: only the archive writes here, conversation and members are made with the first message under one
-- lock, and nothing is ever deleted. Checking each message against its conversation would only cost.

CREATE TABLE "user" (
    id            INTEGER PRIMARY KEY,
    name          TEXT    NOT NULL UNIQUE,
    password_hash TEXT    NOT NULL,
    created_ms    INTEGER NOT NULL
);

CREATE TABLE conversation (
    id           INTEGER PRIMARY KEY,
    low_user_id  INTEGER NOT NULL,
    high_user_id INTEGER NOT NULL,
    next_msg_seq INTEGER NOT NULL DEFAULT 1,
    updated_ms   INTEGER NOT NULL,
    UNIQUE (low_user_id, high_user_id),
    CHECK (low_user_id < high_user_id)
);

-- Cursors: every message to this user up to and including that seq is delivered, or read.
CREATE TABLE member (
    user_id         INTEGER NOT NULL,
    conversation_id INTEGER NOT NULL,
    delivered_seq   INTEGER NOT NULL DEFAULT 0,
    read_seq        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, conversation_id)
) WITHOUT ROWID;

CREATE TABLE message (
    id              INTEGER PRIMARY KEY,
    conversation_id INTEGER NOT NULL,
    msg_seq         INTEGER NOT NULL,
    from_user_id    INTEGER NOT NULL,
    to_user_id      INTEGER NOT NULL,
    msg_type        TEXT    NOT NULL,
    body            TEXT    NOT NULL,
    client_msg_id   TEXT    NOT NULL,
    status          INTEGER NOT NULL DEFAULT 0 CHECK (status IN (0, 1, 2)),
    created_ms      INTEGER NOT NULL,
    saved_ms        INTEGER NOT NULL
);
CREATE UNIQUE INDEX message_by_client ON message (from_user_id, client_msg_id);
CREATE UNIQUE INDEX message_by_seq ON message (conversation_id, msg_seq);
-- What goes out again at the next AUTH; nearly empty while receivers are there.
CREATE INDEX message_undelivered ON message (to_user_id, id) WHERE status = 0;

CREATE TABLE shard (
    id    INTEGER PRIMARY KEY,
    fence INTEGER NOT NULL
);
