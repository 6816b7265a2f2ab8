-- The language of a message, if its sender named it, and its translations.
--
-- No foreign key: a translation is written only while its message is there and not erased, and is deleted with it.

ALTER TABLE message ADD COLUMN lang TEXT NOT NULL DEFAULT '';

CREATE TABLE message_translation (
    message_id INTEGER NOT NULL,
    lang       TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    engine     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (message_id, lang)
) WITHOUT ROWID;
