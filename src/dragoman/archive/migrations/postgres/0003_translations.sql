-- The language of a message, if its sender named it, and its translations.
--
-- No foreign key: a translation is written only while its message is there and not erased, and is deleted with it.

ALTER TABLE message ADD COLUMN lang text NOT NULL DEFAULT '';

CREATE TABLE message_translation (
    message_id bigint NOT NULL,
    lang       text   NOT NULL,
    body       text   NOT NULL,
    engine     text   NOT NULL,
    created_ms bigint NOT NULL,
    PRIMARY KEY (message_id, lang)
);
