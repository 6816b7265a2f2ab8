"""The settings of speech and of rooms: how speech is cut, given to nodes and sent back; written as `schema.py` says."""

from typing import Annotated

from msgspec import Meta

from dragoman.config.section import Section, quota


class Release(Section, frozen=True):
    """When results are sent to the client."""

    ack_timeout_ms: Annotated[
        int, Meta(ge=0, le=600000, description="How long a missing result is accepted after a later one was sent.")
    ] = 5000
    span: Annotated[
        int, Meta(ge=1, le=1048576, description="How far ahead of the oldest open utterance an index may be.")
    ] = 1024


class Vad(Section, frozen=True):
    """Voice detection for pcm16 sessions that ask for it with `"vad":"server"`."""

    silence_ms: Annotated[
        int, Meta(ge=100, le=10000, description="Silence in the audio that ends an utterance and its turn.")
    ] = 500


class Speech(Section, frozen=True):
    """From audio to a result: cutting, placing, time limits."""

    pause_ms: Annotated[
        int, Meta(ge=100, le=600000, description="Silence that ends a turn, while no speech is being played.")
    ] = 3000
    max_duration_ms: Annotated[
        int,
        Meta(ge=0, le=600000, description="Audio of this length is cut, and the turn continues; 0 is never."),
    ] = 10000
    max_buffer_bytes: Annotated[
        int, Meta(ge=1024, le=1500000, description="Audio of more bytes than this is cut, and the turn continues.")
    ] = 512000
    final_grace_ms: Annotated[
        int,
        Meta(ge=0, le=5000, description="How long an empty final waits for the chunk that clients send a moment late."),
    ] = 50
    quiet_final_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=10000,
            description="A final shorter than this in which nothing was said makes no job, unless its turn had one "
            "before; 0 is never.",
        ),
    ] = 600
    quiet_opus_bytes: Annotated[
        int,
        Meta(ge=0, le=1000, description="Nothing was said in Opus packets whose mean size is below this."),
    ] = 16
    quiet_pcm_rms: Annotated[
        int,
        Meta(ge=0, le=32768, description="Nothing was said in pcm16 whose root mean square is below this."),
    ] = 32
    tts_max_ms: Annotated[
        int, Meta(ge=100, le=3600000, description="Longest playback during which the pause timer does not run.")
    ] = 60000
    reorder_ms: Annotated[
        int, Meta(ge=0, le=10000, description="How long an utterance that arrives early waits for those before it.")
    ] = 300
    close_wait_ms: Annotated[
        int, Meta(ge=0, le=600000, description="How long a closing session waits for its last results.")
    ] = 5000
    detached_session_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86400.0,
            description="How long a session of an `api-gateway` outlives its socket. Where a secret is set, its token "
            "must say that it is one (`dragoman token client --gateway`).",
        ),
    ] = 600.0
    resume_grace_s: Annotated[
        float, Meta(ge=0.1, le=86400.0, description="How long a resumable session can be resumed.")
    ] = 30.0
    previews: Annotated[
        bool,
        Meta(
            description="Stream open utterances to nodes that can recognise them while they are spoken, for sessions "
            "that ask for it."
        ),
    ] = True
    binary_frames: Annotated[bool, Meta(description="Ask clients to send audio in binary frames.")] = False
    placement_wait_ms: Annotated[
        int, Meta(ge=0, le=600000, description="How long a job waits for a free node before it fails.")
    ] = 2000
    job_ack_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=600000,
            description="A job not acknowledged for this long goes to another node; for nodes with `job_ack`.",
        ),
    ] = 2000
    attempt_timeout_ms: Annotated[
        int, Meta(ge=10, le=600000, description="Minimal time for one attempt; a slow node gets more.")
    ] = 12000
    job_timeout_ms: Annotated[
        int, Meta(ge=10, le=1800000, description="How long a job may take, all attempts together.")
    ] = 60000
    max_attempts: Annotated[int, Meta(ge=1, le=100, description="How often a job may be tried.")] = 3
    node_grace_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600000,
            description="How long a job waits for its lost node, if that node can resend results and no other is free.",
        ),
    ] = 2000
    reservation_ttl_ms: Annotated[
        int,
        Meta(
            ge=300,
            le=600000,
            description="TTL of a reserved slot. The instance that reserved it renews it every third of this time.",
        ),
    ] = 15000
    default_slots: Annotated[int, Meta(ge=1, le=10000, description="Slots of a node that does not declare them.")] = 4
    turn_overcommit: Annotated[
        int, Meta(ge=0, le=10000, description="Jobs beyond its slots that a node gets to keep a turn on one node.")
    ] = 4
    unavailable_ttl_s: Annotated[
        float,
        Meta(ge=0.1, le=86400.0, description="How long a node gets no jobs for a service that it reported missing."),
    ] = 60.0
    debounce_window_s: Annotated[
        float, Meta(ge=0.0, le=3600.0, description="Reports of the same missing service within this time count once.")
    ] = 5.0
    failure_run: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Failures in a row, as one instance counts them, after which a node is paused; 0 is never.",
        ),
    ] = 3
    failure_pause_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86400.0,
            description="First pause of a failing node. The next are twice as long each, up to `unavailable_ttl_s`.",
        ),
    ] = 2.0
    release: Release = Release()
    vad: Vad = Vad()


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
