"""The section `limits`: how much one client, name, address or connection may use of what all share.

Every quota of Dragoman is a setting of this section, or a setting elsewhere whose name is fixed; both carry a `Limit`,
and docs/reference/limits.md is the table of them. The decisions are in `domain/limits`, one pure object per concern.
"""

from typing import Annotated

from dragoman.config.section import Section, quota


class Limits(Section, frozen=True):
    """How much one client, name, address or connection may use. [The table](limits.md)."""

    # -- connections -------------------------------------------------------------------------------

    connections: Annotated[
        int,
        quota(
            1,
            1000000,
            "WebSockets of one instance.",
            per="instance",
            answer="HTTP 503",
            metric='dragoman_gateway_refused_total{status="503"}',
        ),
    ] = 20000
    connections_per_address: Annotated[
        int,
        quota(
            0,
            1000000,
            "WebSockets of one instance from one address; 0 is any number. Loopback does not count. Behind a proxy set "
            "`server.trusted_proxies`, or all clients have its address. With 0, an address has no share of "
            "`http_connections` and `pre_session_connections` either.",
            per="address and instance",
            answer="HTTP 429",
            metric='dragoman_gateway_refused_total{status="429"}',
        ),
    ] = 2000
    http_connections: Annotated[
        int,
        quota(
            4,
            1000000,
            "HTTP connections of one instance. One address has at most a quarter of them, and no more than "
            "`connections_per_address`. Behind a trusted proxy its requests at the same time count instead.",
            per="instance, a quarter per address",
            answer="HTTP 503; an idle connection is closed first",
            metric='dragoman_gateway_refused_total{status="503"}',
        ),
    ] = 1000
    pre_session_connections: Annotated[
        int,
        quota(
            1,
            1000000,
            "Connections of one instance that have not opened a session, registered or authenticated yet; speech and "
            "chat are counted apart. One address has at most a quarter of them. A new one closes the oldest of all.",
            per="instance, a quarter per address",
            answer="close 4003",
            metric='dragoman_gateway_closed_total{code="4003"}',
        ),
    ] = 2000
    frame_bytes: Annotated[
        int,
        quota(
            16384,
            2097151,
            "Largest WebSocket message of a client or node, its fragments together.",
            per="message",
            answer="close 4502",
            metric='dragoman_gateway_closed_total{code="4502"}',
        ),
    ] = 1048576
    chat_frame_bytes: Annotated[
        int,
        quota(
            16384,
            1048576,
            "Largest chat frame.",
            per="message",
            answer="close 4502",
            metric='dragoman_gateway_closed_total{code="4502"}',
        ),
    ] = 65536
    frames_per_s: Annotated[
        int,
        quota(
            1,
            1000000,
            "Frames per second that one client connection may send on average; twice as many at once.",
            per="connection",
            answer="close 4006",
            metric='dragoman_gateway_closed_total{code="4006"}',
        ),
    ] = 200
    node_frames_per_s: Annotated[
        int,
        quota(
            1,
            1000000,
            "Frames per second that one node connection may send on average; twice as many at once.",
            per="connection",
            answer="close 4006",
            metric='dragoman_gateway_closed_total{code="4006"}',
        ),
    ] = 5000
    chat_frames_per_s: Annotated[
        int,
        quota(
            1,
            1000000,
            "Frames per second that one chat connection may send on average; twice as many at once.",
            per="connection",
            answer="`ERROR too_many_requests`, close 4006",
            metric='dragoman_gateway_closed_total{code="4006"}',
        ),
    ] = 400
    out_queue_bytes: Annotated[
        int,
        quota(
            2097152,
            1073741824,
            "Bytes that may wait for one connection to read them. The smallest value is the largest message (2 MiB).",
            per="connection",
            answer="close 4001",
            metric='dragoman_gateway_closed_total{code="4001"}',
        ),
    ] = 8388608
    out_queue_age_s: Annotated[
        float,
        quota(
            0.1,
            600.0,
            "Age that the oldest message waiting for a connection may reach.",
            per="connection",
            answer="close 4001",
            metric='dragoman_gateway_closed_total{code="4001"}',
        ),
    ] = 15.0

    # -- speech ------------------------------------------------------------------------------------

    sessions: Annotated[
        int,
        quota(
            1,
            1000000,
            "Speech sessions of one instance, including those without a connection.",
            per="instance",
            answer="close 4003",
            metric='dragoman_session_limits_total{limit="instance"}',
        ),
    ] = 40000
    sessions_per_connection: Annotated[
        int,
        quota(
            1,
            10000,
            "Speech sessions that one connection has open.",
            per="connection",
            answer="`error` INVALID_MESSAGE; the connection stays",
            metric='dragoman_session_limits_total{limit="connection"}',
        ),
    ] = 64
    sessions_per_principal: Annotated[
        int,
        quota(
            0,
            1000000,
            "Speech sessions of one instance that belong to one principal (tenant and subject of a token), including "
            "those that can be resumed. 0 is any number.",
            per="principal and instance",
            answer="`error` LIMIT_EXCEEDED; the connection stays",
            metric='dragoman_session_limits_total{limit="principal"}',
        ),
    ] = 1000
    sessions_per_gateway: Annotated[
        int,
        quota(
            0,
            1000000,
            "The same for a principal whose token says `gateway`; its address does not count. 0 is any number.",
            per="gateway and instance",
            answer="`error` LIMIT_EXCEEDED; the connection stays",
            metric='dragoman_session_limits_total{limit="gateway"}',
        ),
    ] = 10000
    sessions_per_address: Annotated[
        int,
        quota(
            0,
            1000000,
            "Speech sessions of one instance from one address. Loopback does not count. 0 is any number.",
            per="address and instance",
            answer="`error` LIMIT_EXCEEDED; the connection stays",
            metric='dragoman_session_limits_total{limit="address"}',
        ),
    ] = 2000
    detached_share: Annotated[
        float,
        quota(
            0.0,
            1.0,
            "Share of `sessions` that sessions without a connection keep when an instance is full.",
            per="instance",
            answer="beyond it the oldest ends for each new session",
            metric='dragoman_session_limits_total{limit="detached"}',
        ),
    ] = 0.5
    utterances_per_s: Annotated[
        int,
        quota(
            0,
            1000000,
            "Utterances per second of one principal on average, through all its connections and sessions; 16 at "
            "once. Opening or resuming a session counts as an utterance; so does a command of a room, writing with "
            "half of one more for each other language that is heard there, and a WebRTC signal as a quarter. Any "
            "other message counts as a 32nd of one. Clients without a token are counted by address. 0 is any number.",
            per="principal and instance",
            answer="its next message is handled later; close 4006 if that were more than 5 s later",
            metric='dragoman_session_limits_total{limit="work"}',
        ),
    ] = 50
    gateway_utterances_per_s: Annotated[
        int,
        quota(
            0,
            1000000,
            "The same for a principal whose token says `gateway`. 0 is any number.",
            per="gateway and instance",
            answer="its next message is handled later; close 4006 if that were more than 5 s later",
            metric='dragoman_session_limits_total{limit="work"}',
        ),
    ] = 500
    open_jobs_per_session: Annotated[
        int,
        quota(
            0,
            100000,
            "Utterances of one session that wait for their results. 0 is any number.",
            per="session",
            answer="`backpressure` PAUSE; beyond twice as many the utterance fails with LIMIT_EXCEEDED",
            metric='dragoman_session_limits_total{limit="jobs"}',
        ),
    ] = 128
    open_jobs_per_principal: Annotated[
        int,
        quota(
            0,
            1000000,
            "The same for all sessions of one principal together, and with them the translations of what it says, "
            "writes or asks for in rooms. Clients without a token are counted by address, those with a token for "
            "one room by that room. 0 is any number.",
            per="principal and instance",
            answer="`backpressure` PAUSE; beyond twice as many the utterance fails with LIMIT_EXCEEDED, and so does "
            "`room_text` or `room_translate` with a `room_error`",
            metric='dragoman_session_limits_total{limit="jobs"}',
        ),
    ] = 512
    open_jobs_per_gateway: Annotated[
        int,
        quota(
            0,
            1000000,
            "The same for a principal whose token says `gateway`. 0 is any number.",
            per="gateway and instance",
            answer="`backpressure` PAUSE; beyond twice as many the utterance fails with LIMIT_EXCEEDED",
            metric='dragoman_session_limits_total{limit="jobs"}',
        ),
    ] = 5000
    waiting_jobs: Annotated[
        int,
        quota(
            1,
            1000000,
            "Jobs of one instance that wait for a node. Their principals take turns when a slot is free; chat is "
            "one of them.",
            per="instance",
            answer="`backpressure`; the utterance fails with NODE_OVERLOADED",
            metric='dragoman_jobs_total{code="NODE_OVERLOADED"}',
        ),
    ] = 5000

    # -- chat --------------------------------------------------------------------------------------

    login_attempts_per_minute: Annotated[
        int,
        quota(
            1,
            1000000,
            "Attempts to log in with one name from one address, per minute.",
            per="name and address, all instances",
            answer="42900",
            metric='dragoman_chat_logins_refused_total{reason="address"}',
        ),
    ] = 5
    login_attempts_per_name_per_hour: Annotated[
        int,
        quota(
            1,
            1000000,
            "Attempts to log in with one name, per hour, from all addresses together that have not logged in with this "
            "name within 90 days.",
            per="name, all instances",
            answer="42900",
            metric='dragoman_chat_logins_refused_total{reason="name"}',
        ),
    ] = 100
    password_checks: Annotated[
        int,
        quota(
            2,
            10000,
            "Passwords that wait to be checked. Addresses take turns; if the queue is full, the address with most "
            "entries loses its newest.",
            per="instance, shared fairly by addresses",
            answer="50000",
            metric='dragoman_chat_logins_refused_total{reason="queue"}',
        ),
    ] = 64
    chat_bytes_per_day: Annotated[
        int,
        quota(
            0,
            1 << 50,
            "Bytes of messages that one chat user may store within a day; each message counts 256 more than its text. "
            "0 is any number.",
            per="chat user, all instances",
            answer="`ERROR quota_exceeded`; the connection stays",
            metric="dragoman_chat_over_quota_total",
        ),
    ] = 64 << 20
    chat_history_per_minute: Annotated[
        int,
        quota(
            0,
            1000000,
            "Requests of one chat user for messages, conversations and read states, per minute. 0 is any number.",
            per="chat user and instance",
            answer="42900",
            metric="dragoman_chat_history_refused_total",
        ),
    ] = 600
    chat_dead_letters: Annotated[
        int,
        quota(
            1,
            1000000,
            "Dead letters of chat messages that could not be saved.",
            per="shard",
            answer="the oldest is dropped",
            metric="dragoman_chat_dead_letters_dropped",
        ),
    ] = 1000
    chat_dead_letter_days: Annotated[
        float,
        quota(
            0.001,
            3650.0,
            "Days after which such a dead letter is dropped.",
            per="shard",
            answer="older ones are dropped",
            metric="dragoman_chat_dead_letters_dropped",
        ),
    ] = 30.0
