"""Every setting of Dragoman: its type, range, default and the sentence that documents it.

The tree is frozen and holds no behaviour. docs/reference/configuration.md, config.example.toml, the parsing of
environment variables and the wording of errors are all read from these annotations, so a new setting is one line here
or in one of the `schema_….py` beside it.

- Names end in their unit: `_ms` are whole numbers, `_s` and `_seconds` may have a fraction, `_bytes` are bytes.
- `Meta(extra=…)` knows four words: `secret` (never shown), `url` (shown without its password), `allowed` (what a
  `pattern` means, in words) and `limit` (what a quota limits; `quota` makes it).
- What two settings must agree on is in `checks.py`; a range here concerns one value alone.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dragoman.config.schema_chat import Archive, Chat
from dragoman.config.schema_limits import Limits
from dragoman.config.schema_speech import Rooms, Speech
from dragoman.config.section import NAME, NAME_IN_WORDS, Section, quota


class Server(Section, frozen=True):
    """Addresses and ports, proxies, pings and draining."""

    host: Annotated[
        str, Meta(min_length=1, description="Address to listen on. Beyond loopback a `security.secret` is needed.")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port for clients, nodes and HTTP; 0 takes a free one.")] = (
        5010
    )
    admin_host: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address of the admin port. Beyond loopback its `/metrics` needs an operator token.",
        ),
    ] = "127.0.0.1"
    admin_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Each instance serves its own `/metrics` and `/health/*` on this port plus its number, because "
            "a shared port answers for a random worker; 0 takes a free one.",
        ),
    ] = 5110
    workers: Annotated[int, Meta(ge=1, le=64, description="Equal instances behind one port.")] = 1
    pre_session_s: Annotated[
        float,
        quota(
            0.1,
            600.0,
            "How long a connection may stay open before it opens a session or registers a node.",
            per="connection",
            answer="close 4002; a node 4005",
            metric='dragoman_gateway_closed_total{code="4002"}',
        ),
    ] = 10.0
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses and networks of proxies in front, such as `10.0.0.5` or `10.1.0.0/16`. Of their "
            "requests the client's address is read from `X-Forwarded-For` or `Forwarded`: the right-most that is not "
            "one of these. Limits for an address, and logs, use it. Each of these proxies must set one of the two "
            "headers, and remove the other."
        ),
    ] = ()
    proxy_protocol: Annotated[
        bool,
        Meta(
            description="Every connection of a trusted proxy begins with a PROXY protocol header (version 1 or 2) that "
            "names the client's address; without it the connection is refused. The admin port expects none."
        ),
    ] = False
    ping_idle_s: Annotated[
        float, Meta(ge=0.1, le=3600.0, description="A connection without data for this long is pinged.")
    ] = 30.0
    ping_reply_s: Annotated[
        float, Meta(ge=0.1, le=3600.0, description="A connection that has not answered a ping for this long is closed.")
    ] = 15.0
    drain_s: Annotated[
        float, Meta(ge=0.0, le=3600.0, description="How long a stopping instance waits for running jobs.")
    ] = 20.0
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins of web pages that may connect, such as `https://app.example.com`; `*` is any. "
            "Empty: pages from this very address and port and, on loopback without a secret, from any port of "
            "localhost, 127.0.0.1 or [::1]. What sends no Origin header (apps, nodes) is not concerned."
        ),
    ] = ()


class Redis(Section, frozen=True):
    """The shared Redis; needed when `scheduler.phase2.enabled` is true."""

    mode: Annotated[
        Literal["single", "cluster"], Meta(description="One server (or a proxy for one), or a Redis Cluster.")
    ] = "single"
    url: Annotated[
        str,
        Meta(extra={"url": True}, description="The server, for mode `single`: `redis://`, `rediss://` or `unix://`."),
    ] = ""
    cluster_urls: Annotated[
        tuple[str, ...],
        Meta(extra={"url": True}, description="Some nodes of the Cluster, for mode `cluster`; they name the others."),
    ] = ()
    password_file: Annotated[
        str,
        Meta(description="A file whose first line is the password, for URLs that hold none. Read at the start."),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="For `rediss://`: PEM certificates of the authorities that may have signed the server's. "
            "Empty: those of the system."
        ),
    ] = ""
    tls_cert_file: Annotated[
        str,
        Meta(description="For `rediss://`: PEM certificate to show to the server, where it asks for one."),
    ] = ""
    tls_key_file: Annotated[
        str,
        Meta(description="For `rediss://`: PEM key of that certificate, without a passphrase."),
    ] = ""
    key_prefix: Annotated[
        str,
        Meta(
            pattern=NAME,
            extra={"allowed": NAME_IN_WORDS},
            description="Begins every key but the `scheduler:turn:*` and `scheduler:session:*` ones; give each "
            "environment that shares a Redis its own.",
        ),
    ] = "dragoman"


class NodeSnapshot(Section, frozen=True):
    """How instances share their nodes."""

    enabled: Annotated[
        bool,
        Meta(
            description="Share nodes between instances. Off: an instance uses only nodes connected to itself, and no "
            "other instance uses them."
        ),
    ] = True
    presence_ttl_seconds: Annotated[
        float,
        Meta(
            ge=0.5,
            le=3600.0,
            description="A node counts as online this long after a heartbeat; nodes send one every 15 s.",
        ),
    ] = 45.0
    refresh_interval_ms: Annotated[
        int, Meta(ge=50, le=600000, description="How often an instance reads which nodes changed.")
    ] = 2000
    remove_stale_after_seconds: Annotated[
        float, Meta(ge=1.0, le=604800.0, description="A node not seen for this long is forgotten.")
    ] = 600.0


class Phase2(Section, frozen=True):
    """Instances that share one Redis: liveness, inboxes and dead letters."""

    enabled: Annotated[
        bool, Meta(description="Join the shared Redis of `scheduler.phase2.redis`. Off: a private Redis is started.")
    ] = False
    instance_id: Annotated[
        str,
        Meta(
            pattern=NAME,
            extra={"allowed": NAME_IN_WORDS},
            description="Name of this instance; `auto` is host-pid-random. With several workers `-1`, `-2` … follow.",
        ),
    ] = "auto"
    owner_ttl_seconds: Annotated[
        float, Meta(ge=1.0, le=86400.0, description="TTL of the keys that name the owner of a connection.")
    ] = 45.0
    instance_presence_ttl_seconds: Annotated[
        float,
        Meta(
            ge=0.3,
            le=600.0,
            description="An instance that has not renewed its presence this long is dead. Renewed every third of it.",
        ),
    ] = 6.0
    stream_group: Annotated[
        str,
        Meta(pattern=NAME, extra={"allowed": NAME_IN_WORDS}, description="Consumer group of every inbox."),
    ] = "scheduler"
    stream_block_ms: Annotated[
        int, Meta(ge=1, le=60000, description="How long one read of the inbox waits for an entry.")
    ] = 1000
    stream_count: Annotated[int, Meta(ge=1, le=10000, description="Entries per read of the inbox.")] = 64
    stream_maxlen: Annotated[
        int,
        quota(
            1,
            10000000,
            "Entries of an inbox. A full inbox refuses new entries; it is never trimmed.",
            per="instance",
            answer="the sender retries; then the utterance or message fails",
            metric='dragoman_inbox_push_total{verdict="FULL"}',
        ),
    ] = 10000
    stream_max_bytes: Annotated[
        int,
        quota(
            2097152,
            68719476736,
            "Bytes of an inbox. A full inbox refuses new entries.",
            per="instance",
            answer="the sender retries; then the utterance or message fails",
            metric='dragoman_inbox_push_total{verdict="FULL"}',
        ),
    ] = 268435456
    dlq_enabled: Annotated[
        bool,
        Meta(
            description="Move inbox entries that cannot be read, or fail again and again, to the dead letters. Off: "
            "they stay pending."
        ),
    ] = True
    dlq_maxlen: Annotated[
        int,
        quota(
            1,
            10000000,
            "Dead letters per instance.",
            per="instance",
            answer="entries stay in the inbox",
            metric="dragoman_dlq_full_total",
        ),
    ] = 10000
    dlq_max_deliveries: Annotated[
        int, Meta(ge=1, le=1000, description="An entry delivered more often than this becomes a dead letter.")
    ] = 5
    dlq_min_idle_ms: Annotated[
        int, Meta(ge=10, le=3600000, description="An entry unfinished this long is delivered again.")
    ] = 5000
    dlq_scan_interval_ms: Annotated[
        int, Meta(ge=10, le=3600000, description="How often unfinished entries are checked.")
    ] = 5000
    dlq_scan_count: Annotated[int, Meta(ge=1, le=10000, description="Entries per check.")] = 100
    redis: Redis = Redis()
    node_snapshot: NodeSnapshot = NodeSnapshot()


class Scheduler(Section, frozen=True):
    """How instances work together."""

    phase2: Phase2 = Phase2()


class Embedded(Section, frozen=True):
    """The private Redis that runs while `scheduler.phase2.enabled` is false."""

    data_dir: Annotated[
        str, Meta(min_length=1, description="Folder of its data, relative to the working directory.")
    ] = "data"
    redis_server: Annotated[
        str,
        Meta(
            description="Path of another redis-server or valkey-server, 6.2 or newer. Empty: the one installed with us."
        ),
    ] = ""
    fsync: Annotated[
        Literal["everysec", "always"],
        Meta(
            description="`everysec`: a power cut or a kill of Redis may take the last 2 s. `always`: takes nothing, "
            "and every write waits for the disk."
        ),
    ] = "everysec"


class Security(Section, frozen=True):
    """Secrets, tokens and anonymous access."""

    secret: Annotated[
        str,
        Meta(
            extra={"secret": True},
            description="Signs and checks the tokens of clients, nodes and operators (HS256); at least 32 bytes. "
            "Empty: loopback only, no tokens but for chat, where a development secret signs them.",
        ),
    ] = ""
    previous_secret: Annotated[
        str,
        Meta(
            extra={"secret": True},
            description="Tokens signed with it are still accepted: set it to the old secret while a new one spreads.",
        ),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(
            description="A file with one secret a line, instead of the two above: the first signs, both are accepted. "
            "It is read again when it changes, so secrets can be replaced while instances run."
        ),
    ] = ""
    issuer: Annotated[str, Meta(min_length=1, description="`iss` of the tokens, made and accepted.")] = "dragoman"
    leeway_s: Annotated[
        float, Meta(ge=0.0, le=600.0, description="How far clocks may differ when the expiry of a token is checked.")
    ] = 10.0
    chat_tokens_for_speech: Annotated[
        bool,
        Meta(
            description="Accept the tokens of chat for speech as well. Without a secret speech needs no token, and "
            "this has no effect."
        ),
    ] = False
    insecure_allow_anonymous: Annotated[
        bool,
        Meta(
            description="Let clients and nodes in without a token, from everywhere; where no secret is set, operators "
            "as well, and anybody as any user of chat. Only for networks where everyone is trusted."
        ),
    ] = False


class Log(Section, frozen=True):
    """Log lines on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The lowest level that is written.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"], Meta(description="`auto` is text on a terminal and JSON lines elsewhere.")
    ] = "auto"


class Config(Section, frozen=True):
    """All settings of one instance."""

    server: Server = Server()
    scheduler: Scheduler = Scheduler()
    embedded: Embedded = Embedded()
    speech: Speech = Speech()
    rooms: Rooms = Rooms()
    chat: Chat = Chat()
    archive: Archive = Archive()
    security: Security = Security()
    limits: Limits = Limits()
    log: Log = Log()

    def to_json(self) -> bytes:
        """Everything, secrets included, for another process of ours: hand it over by pipe or environment, not argv."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> "Config":
        return msgspec.json.decode(data, type=cls)
