"""What one client, name or address may use of what all share; written as `schema.py` says."""

from typing import Annotated

from msgspec import Meta

from dragoman.config.section import Section


class Limits(Section, frozen=True):
    """How much one client, name or address may use of what all share."""

    login_attempts_per_name_per_hour: Annotated[
        int,
        Meta(
            ge=1,
            le=1000000,
            description="Attempts to log in as one user, at all instances, from addresses that never logged in as this "
            "user.",
        ),
    ] = 100
    sessions_per_principal: Annotated[
        int,
        Meta(
            ge=0,
            le=1000000,
            description="Speech sessions of one instance that belong to one principal (tenant and subject of a token), "
            "also those that can be resumed. 0 is any.",
        ),
    ] = 1000
    sessions_per_gateway: Annotated[
        int,
        Meta(
            ge=0,
            le=1000000,
            description="The same for a principal whose token says `gateway`; its address does not count. 0 is any.",
        ),
    ] = 10000
    sessions_per_address: Annotated[
        int,
        Meta(
            ge=0,
            le=1000000,
            description="Speech sessions of one instance from one address; this machine's own do not count. 0 is any.",
        ),
    ] = 2000
    open_jobs_per_session: Annotated[
        int,
        Meta(
            ge=0,
            le=100000,
            description="Utterances of one session that wait for their results. With more its client is asked to "
            "pause; beyond twice as many an utterance fails at once. 0 is any.",
        ),
    ] = 128
    detached_share: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Share of `speech.max_sessions` that sessions without a connection keep when an instance is "
            "full; beyond it the oldest ends for each new session.",
        ),
    ] = 0.5
    chat_bytes_per_day: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Bytes of messages that one chat user may store within a day, at all instances; each message "
            "counts 256 more than its text. 0 is any.",
        ),
    ] = 64 << 20
    chat_history_per_minute: Annotated[
        int,
        Meta(
            ge=0,
            le=1000000,
            description="Requests of one chat user for messages, conversations and read states a minute, at each "
            "instance. 0 is any.",
        ),
    ] = 600
    chat_dead_letters: Annotated[
        int,
        Meta(ge=1, le=1000000, description="Messages that could not be saved, kept for each shard; the oldest go."),
    ] = 1000
    chat_dead_letter_days: Annotated[
        float, Meta(ge=0.001, le=3650.0, description="Days that such a message is kept.")
    ] = 30.0
