"""The settings of chat and of where its messages are kept; written as `schema.py` says, which puts them in the tree."""

from typing import Annotated, Literal

from msgspec import Meta

from dragoman.config.section import NAME, NAME_IN_WORDS, Section, quota


class TwoPhaseStreams(Section, frozen=True):
    """Names of the two streams of a chat shard; the shard's tag is appended."""

    accepted: Annotated[
        str, Meta(pattern=NAME, extra={"allowed": NAME_IN_WORDS}, description="Accepted, not yet delivered.")
    ] = "im:stream:single_chat:accepted"
    to_save: Annotated[
        str,
        Meta(pattern=NAME, extra={"allowed": NAME_IN_WORDS}, description="Left by an earlier release; saved first."),
    ] = "im:stream:single_chat:to_save"


class TwoPhaseGroups(Section, frozen=True):
    """Consumer groups of earlier releases. They are not used: a shard is read by position."""

    deliver: Annotated[str, Meta(pattern=NAME, extra={"allowed": NAME_IN_WORDS}, description="Not used.")] = (
        "im:cg:single_chat:deliver"
    )
    save: Annotated[str, Meta(pattern=NAME, extra={"allowed": NAME_IN_WORDS}, description="Not used.")] = (
        "im:cg:single_chat:save"
    )


class TwoPhase(Section, frozen=True):
    """Messages confirmed twice: accepted when they are in Redis, saved when they are in the database.

    `enabled`, `deliver_before_saved`, `fail_open`, `rollout_percent`, `batch_size`, `block_ms`, `max_backlog` and
    `wait_replicas` are what a cluster begins with; `dragoman chat two-phase` changes them while it runs.
    """

    enabled: Annotated[
        bool, Meta(description="Two receipts. Off: a message is saved, confirmed and delivered while its sender waits.")
    ] = False
    deliver_before_saved: Annotated[
        bool, Meta(description="Deliver a message when it is accepted, instead of when it is saved.")
    ] = False
    fail_open: Annotated[
        bool,
        Meta(
            description="If Redis is unavailable, save the message while its sender waits. Off: answer `server_busy`."
        ),
    ] = True
    rollout_percent: Annotated[
        int, Meta(ge=0, le=100, description="Share of senders with two receipts, by a stable hash.")
    ] = 100
    shards: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Groups of senders, each handled in order by one instance at a time. Fixed by the first start.",
        ),
    ] = 8
    batch_size: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="Largest number of messages of a shard that are read, delivered and saved together.",
        ),
    ] = 256
    block_ms: Annotated[
        int, Meta(ge=10, le=60000, description="How long one read of a shard without new messages waits.")
    ] = 1000
    max_backlog: Annotated[
        int,
        quota(
            1,
            100000000,
            "Accepted but unsaved messages, all shards together; a shard has an equal share of them.",
            per="shard",
            answer="`ERROR server_busy`",
            metric="dragoman_chat_server_busy_total",
        ),
    ] = 100000
    wait_replicas: Annotated[
        int, Meta(ge=0, le=16, description="Replicas of Redis that must have a message before it counts as accepted.")
    ] = 0
    stream: TwoPhaseStreams = TwoPhaseStreams()
    group: TwoPhaseGroups = TwoPhaseGroups()


class ChatTranslate(Section, frozen=True):
    """Translations of chat messages, on request. Nodes that serve text jobs make them."""

    timeout_ms: Annotated[
        int,
        Meta(ge=100, le=600000, description="How long a user waits for a translation, before the reason says why not."),
    ] = 8000
    per_minute: Annotated[
        int,
        quota(
            1,
            1000000,
            "Translations that one user asks for, in a minute.",
            per="user and instance",
            answer="`TRANSLATION` with the reason `busy`",
            metric='dragoman_chat_translations_total{end="busy"}',
        ),
    ] = 120
    max_waiting: Annotated[
        int,
        quota(
            1,
            1000000,
            "Translations that are under way on one instance or wait there.",
            per="instance",
            answer="`TRANSLATION` with the reason `busy`",
            metric='dragoman_chat_translations_total{end="busy"}',
        ),
    ] = 1000
    max_jobs: Annotated[
        int,
        Meta(ge=1, le=10000, description="Translations that one instance asks nodes for at the same time."),
    ] = 32
    max_units: Annotated[
        int,
        quota(
            1,
            4096,
            "Length of a message that is translated, in UTF-16 units.",
            per="message",
            answer="`TRANSLATION` with the reason `too_long`",
            metric='dragoman_chat_translations_total{end="too_long"}',
        ),
    ] = 4096


class Chat(Section, frozen=True):
    """One-to-one messages on `/ws`."""

    issuer: Annotated[str, Meta(min_length=1, description="`iss` of chat tokens, made and accepted.")] = "mini-im"
    access_ttl_s: Annotated[
        float, Meta(ge=1.0, le=31536000.0, description="Lifetime of the access token from a login.")
    ] = 3600.0
    refresh_ttl_s: Annotated[
        float, Meta(ge=1.0, le=31536000.0, description="Lifetime of the refresh token from a login.")
    ] = 2592000.0
    registration: Annotated[
        Literal["auto", "open", "closed", "invite"],
        Meta(
            description="Who may create an account by logging in: anybody (`open`), nobody (`closed`), or the holder "
            "of a code from `dragoman chat invite` (`invite`). `auto`: open on loopback without a secret, else closed."
        ),
    ] = "auto"
    min_password_length: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Shortest password of a new account. Not applied on loopback without a secret.",
        ),
    ] = 10
    auth_timeout_s: Annotated[
        float,
        quota(
            0.1,
            600.0,
            "How long a connection may take to authenticate.",
            per="connection",
            answer="`ERROR auth_timeout`, close 4501",
            metric='dragoman_gateway_closed_total{code="4501"}',
        ),
    ] = 3.0
    ping_idle_s: Annotated[
        float, Meta(ge=0.1, le=3600.0, description="A client to which nothing was sent for this long is pinged.")
    ] = 60.0
    silent_s: Annotated[
        float,
        Meta(ge=0.1, le=3600.0, description="A connection on which nothing was received for this long is closed."),
    ] = 90.0
    words_file: Annotated[
        str, Meta(description="File of words, one per line, that are replaced by `***` in messages. Empty: none.")
    ] = ""
    idempotency_ttl_s: Annotated[
        float,
        Meta(
            ge=1.0,
            le=604800.0,
            description="How long Redis recognises a repeated clientMsgId; after that the database does.",
        ),
    ] = 1800.0
    accept_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=60000,
            description="If Redis takes longer than this to accept a message, it counts as unavailable.",
        ),
    ] = 500
    max_deliveries: Annotated[
        int, Meta(ge=1, le=1000, description="Attempts to save a single message before it becomes a dead letter.")
    ] = 5
    resend_after_s: Annotated[
        float,
        Meta(
            ge=0.1, le=3600.0, description="A message that was not confirmed as delivered for this long is sent again."
        ),
    ] = 10.0
    retention_days: Annotated[
        float,
        Meta(
            ge=0.0,
            le=36500.0,
            description="Messages older than this are deleted, undelivered ones too. 0: they are kept for ever.",
        ),
    ] = 0.0
    translate: ChatTranslate = ChatTranslate()
    two_phase: TwoPhase = TwoPhase()


class Archive(Section, frozen=True):
    """The database of chat messages and accounts."""

    url: Annotated[
        str,
        Meta(
            extra={"url": True},
            description="`sqlite:///path` or `postgresql://user:password@host/database`. Empty: SQLite in the data "
            "directory of the embedded engine.",
        ),
    ] = ""
    pool: Annotated[int, Meta(ge=2, le=200, description="PostgreSQL connections of one instance.")] = 8
    busy_ms: Annotated[int, Meta(ge=10, le=600000, description="How long a write to SQLite waits for the lock.")] = 5000
