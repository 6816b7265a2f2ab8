"""The data model: every key there is, what it holds, how long it lives, who writes and who reads it.

Names are made here and nowhere else. Braces are literal hash tags: keys that a script touches
together share one, so each script stays in one slot of a Cluster. A key whose life is not a TTL is
listed as such, and a test fails on any other that is left without one.
"""

import re
from dataclasses import dataclass

DEFAULT_PREFIX = "dragoman"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One row of the data model."""

    name: str  # P stands for the prefix, IM for the root of chat, <x> for an id
    type: str
    life: str
    writer: str
    reader: str
    holds: str

    @property
    def expires(self) -> bool:
        return self.life.startswith("TTL")

    def pattern(self, prefix: str) -> re.Pattern[str]:
        root, colon, rest = self.name.partition(":")
        root = {"P": prefix, "IM": chat_root(prefix)}.get(root, root)
        parts = re.split(r"<[a-z]+>", f"{root}{colon}{rest}")
        # DOTALL: what a client calls its message may hold a line feed.
        return re.compile("^" + ".+".join(re.escape(part) for part in parts) + "$", re.DOTALL)


def chat_root(prefix: str) -> str:
    """`im` as others know it; under a prefix of one's own, so that two clusters can share a Redis."""
    return "im" if prefix == DEFAULT_PREFIX else f"{prefix}:im"


TABLE = (
    KeySpec("P:schedulers:presence:<instance>", "string", "TTL presence", "presence", "undertaker, resumption, report",
            "JSON: the instance lives, with its incarnation"),
    KeySpec("P:v1:instances:all", "set", "until buried", "presence", "undertaker, status", "ids that may have an inbox"),
    KeySpec("P:v1:instances:gone", "zset", "TTL 10 min", "presence, undertaker", "report", "instances that ended, with how, by when, ms"),
    KeySpec("P:nodes:owner:{node:<id>}", "string", "TTL owner", "local nodes, renewer", "router", "instance that holds the socket"),
    KeySpec("P:v1:nodes:{node:<id>}:named", "string", "TTL owner", "local nodes, renewer", "local nodes", "instance: a node with a token has the id"),
    KeySpec("P:v1:nodes:{node:<id>}:epoch", "string", "TTL job", "local nodes", "local nodes", "connection epoch, only ever rising"),
    KeySpec("P:sessions:owner:{session:<id>}", "string", "TTL owner", "sessions, renewer", "router", "instance that holds the session"),
    KeySpec("P:v1:sessions:{session:<id>}:state", "hash", "TTL session", "sessions", "resume", "epoch, token hash, languages, next_index, audio_seq, window, open indexes"),
    KeySpec("P:v1:sessions:{session:<id>}:outbox", "stream", "TTL session", "sessions", "resume", "messages the client has not confirmed"),
    KeySpec("P:v1:sessions:{session:<id>}:parked", "list", "TTL session", "router", "resume", "results that came while nobody owned the session"),
    KeySpec("P:v1:sessions:grace", "zset", "shrinks by score", "sessions, undertaker", "grace sweeper", "sessions without an owner, by the end of their grace"),
    KeySpec("P:streams:{instance:<id>}:inbox", "stream", "until buried", "router", "reader", "what others hand to this instance"),
    KeySpec("P:streams:{instance:<id>}:dlq", "stream", "until a person drops it", "reclaimer", "dlq", "dead letters"),
    KeySpec("P:streams:{instance:<id>}:open", "string", "until buried", "presence, undertaker", "push, placer", "incarnation whose reader is there"),
    KeySpec("P:streams:{instance:<id>}:counts", "hash", "until buried", "push, done, dead letter", "status, tests", "added, done, dead, bytes"),
    KeySpec("P:v1:dlq:instances", "set", "until empty", "reclaimer", "dlq", "instances with dead letters, also dead ones"),
    KeySpec("P:v1:instances:{instance:<id>}:jobs", "zset", "until buried", "dispatcher", "undertaker", "jobs it drives, by deadline ms"),
    KeySpec("P:v1:instances:{instance:<id>}:sessions", "set", "until buried", "sessions", "undertaker", "sessions it owns"),
    KeySpec("P:v1:instances:{instance:<id>}:nodes", "set", "until buried", "stable", "undertaker", "nodes it owns"),
    KeySpec("P:v1:instances:{instance:<id>}:undertaker", "string", "TTL burial", "undertaker", "undertaker", "who is burying it"),
    KeySpec("P:v1:nodes:all", "set", "shrinks by last_seen", "local nodes, sweeper", "status", "every known node id"),
    KeySpec("P:v1:nodes:last_seen", "zset", "shrinks by score", "local nodes, sweeper", "fleet view, sweeper", "node ids by last heartbeat, ms"),
    KeySpec("P:v1:nodes:presence:<id>", "string", "TTL node", "local nodes", "fleet view", "epoch: the node is online"),
    KeySpec("P:v1:nodes:snapshot:<id>", "string", "TTL node", "local nodes", "fleet view", "JSON: capabilities, load, epoch"),
    KeySpec("P:v1:nodes:{node:<id>}:reserved", "zset", "TTL reservation", "dispatcher", "dispatcher, status", "jobs that hold a slot, by expiry ms"),
    KeySpec("P:v1:nodes:{node:<id>}:storm", "hash", "TTL storm", "storm guard", "storm guard", "cool-downs and what led to them"),
    KeySpec("P:v1:requests:lock:<request>", "string", "TTL 2 s", "dispatcher", "dispatcher", "creation in progress"),
    KeySpec("P:v1:requests:binding:<request>", "string", "TTL job", "dispatcher", "dispatcher", "JSON: request to job"),
    KeySpec("P:v1:jobs:{job:<id>}:fsm", "hash", "TTL job", "placer, driver, orphans", "API, orphans, resumption", "state, attempt, node, outcome, times, receipt"),
    KeySpec("P:v1:jobs:recent", "zset", "the last 10,000", "placer", "console", "job ids by when they were recorded, ms"),
    KeySpec("P:v1:audit", "stream", "the last 10,000", "API", "console", "who changed what"),
    KeySpec("P:v1:history", "stream", "TTL 30 min", "history", "console", "samples of what each instance counted, of the last 30 min"),
    KeySpec("P:users:owner:{user:<id>}", "string", "TTL owner", "chat users, renewer", "courier", "instance and connection that hold the user's socket"),
    KeySpec("P:v1:chat:switches", "hash", "as long as the cluster", "two-phase", "switchboard", "two-phase switches changed while running"),
    KeySpec("P:v1:chat:layout", "string", "as long as the cluster", "first instance", "instances at start", "JSON: shards, stream and group names"),
    KeySpec("P:v1:chat:archive", "string", "as long as the cluster", "first instance", "instances at start", "id of the database that all of them keep messages in"),
    KeySpec("P:v1:chat:worker:<number>", "string", "TTL worker", "worker numbers", "worker numbers", "incarnation that makes ids with this number"),
    KeySpec("IM:stream:single_chat:accepted:{<tag>}", "stream", "as long as the cluster", "acceptor", "deliver stage", "accepted messages of a shard"),
    KeySpec("IM:stream:single_chat:to_save:{<tag>}", "stream", "as long as the cluster", "deliver stage", "save stage", "messages on their way to the database"),
    KeySpec("IM:stream:single_chat:dead:{<tag>}", "stream", "`limits.chat_dead_letters` of `limits.chat_dead_letter_days`", "save stage", "dlq", "messages that could not be saved"),
    KeySpec("IM:shard:{<tag>}", "hash", "as long as the cluster", "acceptor, workers", "acceptor, status", "last_id, backlog, fence, and totals"),
    KeySpec("IM:unsaved:{<tag>}", "hash", "until saved", "acceptor, workers", "sending", "unsaved messages of each sender"),
    KeySpec("IM:lease:{<tag>}", "string", "TTL presence", "shard keeper", "workers", "instance and fence that work the shard"),
    KeySpec("IM:claim:{<tag>}:<user>:<message>", "hash", "TTL idempotency", "acceptor, workers", "acceptor", "id, to, digest of the body, saved, again"),
    KeySpec("IM:spent:{<tag>}:<user>", "string", "TTL 1 d", "acceptor", "acceptor", "bytes that the sender stored in its day"),
    KeySpec("IM:sv:{user:<id>}", "string", "TTL tokens", "login, API", "chat connections", "session version"),
    KeySpec("IM:logins:<try>", "string", "TTL 1 min", "login", "login", "ms at which a name has all its tries from an address again; a digest of both"),
    KeySpec("IM:logins_of:<name>", "string", "TTL attempts", "login", "login", "ms at which a name has all its tries from new addresses again; a digest"),
    KeySpec("IM:login_address:<pair>", "string", "TTL 90 d", "login", "login", "this address has logged in as this name; a digest of both"),
    KeySpec("IM:invite:<code>", "string", "TTL of the invite", "API", "login", "an unused invite code; a digest"),
    KeySpec("IM:early:{user:<id>}", "hash", "TTL 1 h", "receipts", "save stage", "receipts that came before the row"),
    KeySpec("IM:failed:{user:<id>}", "list", "TTL 7 d", "save stage", "chat connections", "errors for a sender that was away"),
    KeySpec("scheduler:turn:<turn>", "hash", "until the turn ends", "dispatcher", "dispatcher", "affinity_node_id"),
    KeySpec("scheduler:session:<session>", "hash", "until the turn ends", "dispatcher", "sessions", "current_turn_id"),
)  # fmt: skip


class Keys:
    """Key names under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.im = chat_root(prefix)
        self.chat_switches = f"{prefix}:v1:chat:switches"
        self.chat_layout = f"{prefix}:v1:chat:layout"
        self.chat_archive = f"{prefix}:v1:chat:archive"
        self.instances = f"{prefix}:v1:instances:all"
        self.instances_gone = f"{prefix}:v1:instances:gone"
        self.nodes_all = f"{prefix}:v1:nodes:all"
        self.nodes_last_seen = f"{prefix}:v1:nodes:last_seen"
        self.dlq_instances = f"{prefix}:v1:dlq:instances"
        self.sessions_grace = f"{prefix}:v1:sessions:grace"
        self.jobs_recent = f"{prefix}:v1:jobs:recent"
        self.history = f"{prefix}:v1:history"
        self.audit = f"{prefix}:v1:audit"
        self.announcements = f"{prefix}:v1:announcements"  # a channel, not a key

    def presence(self, instance: str) -> str:
        return f"{self.prefix}:schedulers:presence:{instance}"

    def node_owner(self, node: str) -> str:
        return f"{self.prefix}:nodes:owner:{{node:{node}}}"

    def node_epoch(self, node: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node}}}:epoch"

    def node_named(self, node: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node}}}:named"

    def session_owner(self, session: str) -> str:
        return f"{self.prefix}:sessions:owner:{{session:{session}}}"

    def session_state(self, session: str) -> str:
        return f"{self.prefix}:v1:sessions:{{session:{session}}}:state"

    def session_outbox(self, session: str) -> str:
        return f"{self.prefix}:v1:sessions:{{session:{session}}}:outbox"

    def session_parked(self, session: str) -> str:
        return f"{self.prefix}:v1:sessions:{{session:{session}}}:parked"

    def inbox(self, instance: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance}}}:inbox"

    def dlq(self, instance: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance}}}:dlq"

    def open(self, instance: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance}}}:open"

    def counts(self, instance: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance}}}:counts"

    def jobs_of(self, instance: str) -> str:
        return f"{self.prefix}:v1:instances:{{instance:{instance}}}:jobs"

    def sessions_of(self, instance: str) -> str:
        return f"{self.prefix}:v1:instances:{{instance:{instance}}}:sessions"

    def nodes_of(self, instance: str) -> str:
        return f"{self.prefix}:v1:instances:{{instance:{instance}}}:nodes"

    def undertaker(self, instance: str) -> str:
        return f"{self.prefix}:v1:instances:{{instance:{instance}}}:undertaker"

    def node_presence(self, node: str) -> str:
        return f"{self.prefix}:v1:nodes:presence:{node}"

    def node_snapshot(self, node: str) -> str:
        return f"{self.prefix}:v1:nodes:snapshot:{node}"

    def reserved(self, node: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node}}}:reserved"

    def storm(self, node: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node}}}:storm"

    def request_lock(self, request: str) -> str:
        return f"{self.prefix}:v1:requests:lock:{request}"

    def request_binding(self, request: str) -> str:
        return f"{self.prefix}:v1:requests:binding:{request}"

    def job(self, job: str) -> str:
        return f"{self.prefix}:v1:jobs:{{job:{job}}}:fsm"

    # -- chat: everything of a shard shares its tag ----------------------------------------------

    def user_owner(self, user: int) -> str:
        return f"{self.prefix}:users:owner:{{user:{user}}}"

    def worker(self, number: int) -> str:
        return f"{self.prefix}:v1:chat:worker:{number}"

    def dead(self, tag: str) -> str:
        return f"{self.im}:stream:single_chat:dead:{{{tag}}}"

    def shard(self, tag: str) -> str:
        return f"{self.im}:shard:{{{tag}}}"

    def unsaved(self, tag: str) -> str:
        return f"{self.im}:unsaved:{{{tag}}}"

    def lease(self, tag: str) -> str:
        return f"{self.im}:lease:{{{tag}}}"

    def claim(self, tag: str, user: int | str, message: str) -> str:
        return f"{self.im}:claim:{{{tag}}}:{user}:{message}"

    def spent(self, tag: str, user: int) -> str:
        return f"{self.im}:spent:{{{tag}}}:{user}"

    def session_version(self, user: int) -> str:
        return f"{self.im}:sv:{{user:{user}}}"

    def login_tries(self, who: str) -> str:
        return f"{self.im}:logins:{who}"

    def logins_of(self, name: str) -> str:
        return f"{self.im}:logins_of:{name}"

    def login_address(self, pair: str) -> str:
        return f"{self.im}:login_address:{pair}"

    def invite(self, code: str) -> str:
        return f"{self.im}:invite:{code}"

    def early(self, user: int) -> str:
        return f"{self.im}:early:{{user:{user}}}"

    def failed(self, user: int) -> str:
        return f"{self.im}:failed:{{user:{user}}}"

    # The names of turns and their sessions are literal: other tools read them, whatever the prefix.

    def turn(self, turn: str) -> str:
        return f"scheduler:turn:{turn}"

    def session_turn(self, session: str) -> str:
        return f"scheduler:session:{session}"
