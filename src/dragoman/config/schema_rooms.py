"""The settings of rooms; written as `schema.py` says."""

from typing import Annotated

from msgspec import Meta

from dragoman.config.section import Section, quota


class Rooms(Section, frozen=True):
    """Rooms: several people, several languages."""

    translate_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600000,
            description="How long a caption may wait for a translation. Then its language ends as untranslated.",
        ),
    ] = 4000
    history: Annotated[
        int, Meta(ge=0, le=500, description="Captions that a member gets when it joins without naming a number.")
    ] = 50
    empty_grace_s: Annotated[
        float, Meta(ge=0.0, le=86400.0, description="How long a room without members stays open.")
    ] = 60.0
    idle_s: Annotated[
        float, Meta(ge=1.0, le=604800.0, description="How long a room in which nothing is said stays open.")
    ] = 1800.0
    transcript_hours: Annotated[
        float, Meta(ge=0.0, le=8760.0, description="How long the log of a room is kept after its end.")
    ] = 24.0
    persistent_days: Annotated[
        float, Meta(ge=0.01, le=3650.0, description="How long a persistent room stays open without anybody joining.")
    ] = 30.0
    join_by_code: Annotated[bool, Meta(description="Let members join by the six-digit code of a room.")] = True
    max_members: Annotated[
        int,
        quota(
            1,
            100000,
            "Members of one room.",
            per="room",
            answer="`room_error` ROOM_FULL",
            metric='dragoman_room_refused_total{reason="ROOM_FULL"}',
        ),
    ] = 5000
    max_languages: Annotated[
        int,
        quota(
            1,
            200,
            "Languages that the members of one room hear.",
            per="room",
            answer="`room_error` TOO_MANY_LANGUAGES",
            metric='dragoman_room_refused_total{reason="TOO_MANY_LANGUAGES"}',
        ),
    ] = 16
    max_entries: Annotated[
        int,
        quota(
            100,
            1000000,
            "Entries of the log of one room.",
            per="room",
            answer="the oldest entry is dropped; late readers get `complete: false`",
            metric="dragoman_room_captions_total",
        ),
    ] = 20000
    opened_per_minute: Annotated[
        int,
        quota(
            0,
            100000,
            "Rooms that a principal, or an address of clients without a token, may open per minute. 0 is any number.",
            per="principal and instance",
            answer="`room_error` LIMIT_EXCEEDED",
            metric='dragoman_room_refused_total{reason="LIMIT_EXCEEDED"}',
        ),
    ] = 30
    persistent_per_day: Annotated[
        int,
        quota(
            0,
            100000,
            "Rooms that a principal, or an address of clients without a token, may make persistent per day. Operators "
            "have no limit. 0 is any number.",
            per="principal, all instances",
            answer="`room_error` LIMIT_EXCEEDED",
            metric='dragoman_room_refused_total{reason="LIMIT_EXCEEDED"}',
        ),
    ] = 20
    captions_per_minute: Annotated[
        int,
        quota(
            0,
            100000,
            "Sentences that one member may write or say per minute. 0 is any number.",
            per="member",
            answer="`room_error` LIMIT_EXCEEDED; `error` LIMIT_EXCEEDED for an utterance",
            metric='dragoman_room_refused_total{reason="LIMIT_EXCEEDED"}',
        ),
    ] = 120
    audio_seconds_per_minute: Annotated[
        int,
        quota(
            0,
            100000,
            "Seconds of speech of one member per minute. 0 is any number.",
            per="member",
            answer="`error` LIMIT_EXCEEDED for the utterance",
            metric='dragoman_room_refused_total{reason="LIMIT_EXCEEDED"}',
        ),
    ] = 180
