"""The data model: every key in Redis, declared once, with its type, life, writers and readers.

A row of `Keys` is both the name that code uses (`keys.presence(instance)`) and a row of docs/reference/redis-keys.md, which
`python -m dragoman.store.keys` prints. Braces are literal hash tags: keys that one script uses share one, so that each
script stays in one slot of a Cluster. A key whose life is not a TTL has none; a test fails on any other without one.
Writers and readers are modules of `store`; a test compares them with the code.
"""

import re
from collections.abc import Callable
from typing import overload

DEFAULT_PREFIX = "dragoman"
Id = str | int


def chat_root(prefix: str) -> str:
    """`im`, as other tools know it; below any other prefix, so that two clusters can share a Redis."""
    return "im" if prefix == DEFAULT_PREFIX else f"{prefix}:im"


class Key:
    """One row. In `name`, P is the prefix, IM the root of chat, and <x> an id."""

    attribute: str

    def __init__(self, name: str, type: str, life: str, writer: str, reader: str, holds: str) -> None:
        self.name, self.type, self.life, self.holds = name, type, life, holds
        self.writer, self.reader = writer, reader

    def __set_name__(self, owner: object, attribute: str) -> None:
        self.attribute = attribute

    @property
    def expires(self) -> bool:
        return self.life.startswith("TTL")

    def parts(self, prefix: str) -> list[str]:
        """The text around the ids."""
        root, colon, rest = self.name.partition(":")
        root = {"P": prefix, "IM": chat_root(prefix)}.get(root, root)
        return re.split(r"<[a-z]+>", f"{root}{colon}{rest}")

    def pattern(self, prefix: str) -> re.Pattern[str]:
        # DOTALL: a client may put a line feed into the id of a message.
        return re.compile("^" + ".+".join(map(re.escape, self.parts(prefix))) + "$", re.DOTALL)


# The three below are descriptors that put what they made into the instance, where it is found from then on: making a
# name costs one call of a closure.


class FixedKey(Key):
    """A key without an id: `keys.audit`."""

    @overload
    def __get__(self, keys: None, owner: object) -> "FixedKey": ...
    @overload
    def __get__(self, keys: "Keys", owner: object) -> str: ...
    def __get__(self, keys: "Keys | None", owner: object) -> "FixedKey | str":
        if keys is None:
            return self
        name = keys.__dict__[self.attribute] = self.parts(keys.prefix)[0]
        return name


class KeyOf(Key):
    """A key with one id: `keys.job(job)`."""

    @overload
    def __get__(self, keys: None, owner: object) -> "KeyOf": ...
    @overload
    def __get__(self, keys: "Keys", owner: object) -> Callable[[Id], str]: ...
    def __get__(self, keys: "Keys | None", owner: object) -> "KeyOf | Callable[[Id], str]":
        if keys is None:
            return self
        head, tail = self.parts(keys.prefix)

        def named(id: Id) -> str:
            return f"{head}{id}{tail}"

        keys.__dict__[self.attribute] = named
        return named


class KeyOfSeveral(Key):
    """A key with several ids: `keys.claim(tag, user, message)`."""

    @overload
    def __get__(self, keys: None, owner: object) -> "KeyOfSeveral": ...
    @overload
    def __get__(self, keys: "Keys", owner: object) -> Callable[..., str]: ...
    def __get__(self, keys: "Keys | None", owner: object) -> "KeyOfSeveral | Callable[..., str]":
        if keys is None:
            return self
        template = "%s".join(part.replace("%", "%%") for part in self.parts(keys.prefix))

        def named(*ids: Id) -> str:
            return template % ids

        keys.__dict__[self.attribute] = named
        return named


class ConfiguredKey(Key):
    """A key whose name is a setting; the name here is the default."""


class Keys:
    """Key names under one prefix."""

    presence = KeyOf(
        "P:schedulers:presence:<instance>",
        "string",
        "TTL presence",
        "instances",
        "instances",
        "JSON: the instance is alive, with its incarnation",
    )
    instances = FixedKey(
        "P:v1:instances:all",
        "set",
        "until the instance is taken over",
        "instances",
        "instances",
        "ids of instances that may have an inbox",
    )
    instances_gone = FixedKey(
        "P:v1:instances:gone",
        "zset",
        "TTL 10 min",
        "instances",
        "instances",
        "instances that ended, with how, by when, ms",
    )
    node_owner = KeyOf(
        "P:nodes:owner:{node:<id>}",
        "string",
        "TTL owner",
        "instances",
        "instances, nodes",
        "instance that has the connection",
    )
    node_named = KeyOf(
        "P:v1:nodes:{node:<id>}:named",
        "string",
        "TTL owner",
        "instances",
        "instances",
        "instance: a node with a token has the id",
    )
    node_epoch = KeyOf(
        "P:v1:nodes:{node:<id>}:epoch",
        "string",
        "TTL job",
        "instances",
        "instances",
        "connection epoch, only ever rising",
    )
    session_owner = KeyOf(
        "P:sessions:owner:{session:<id>}",
        "string",
        "TTL owner",
        "instances, sessions",
        "instances, sessions",
        "instance that has the session",
    )
    session_state = KeyOf(
        "P:v1:sessions:{session:<id>}:state",
        "hash",
        "TTL session",
        "sessions",
        "sessions",
        "epoch, token hash, languages, next_index, audio_seq, audio_split, window, open indexes",
    )
    session_outbox = KeyOf(
        "P:v1:sessions:{session:<id>}:outbox",
        "stream",
        "TTL session",
        "sessions",
        "sessions",
        "messages the client has not confirmed",
    )
    session_parked = KeyOf(
        "P:v1:sessions:{session:<id>}:parked",
        "list",
        "TTL session",
        "sessions",
        "sessions",
        "results that arrived while no instance owned the session",
    )
    sessions_grace = FixedKey(
        "P:v1:sessions:grace",
        "zset",
        "shrinks by score",
        "sessions",
        "sessions",
        "sessions without an owner, by the end of their grace",
    )
    inbox = KeyOf(
        "P:streams:{instance:<id>}:inbox",
        "stream",
        "until the instance is taken over",
        "inbox, instances",
        "inbox",
        "messages of other instances to this one",
    )
    dlq = KeyOf(
        "P:streams:{instance:<id>}:dlq",
        "stream",
        "until an operator drops it",
        "inbox, dead_letters",
        "dead_letters, inbox",
        "dead letters",
    )
    open = KeyOf(
        "P:streams:{instance:<id>}:open",
        "string",
        "until the instance is taken over",
        "instances",
        "inbox, instances, jobs",
        "incarnation whose reader runs",
    )
    counts = KeyOf(
        "P:streams:{instance:<id>}:counts",
        "hash",
        "until the instance is taken over",
        "inbox, instances",
        "inbox",
        "added, done, dead, bytes",
    )
    dlq_instances = FixedKey(
        "P:v1:dlq:instances",
        "set",
        "until empty",
        "inbox, dead_letters",
        "dead_letters",
        "instances with dead letters, also dead ones",
    )
    jobs_of = KeyOf(
        "P:v1:instances:{instance:<id>}:jobs",
        "zset",
        "until the instance is taken over",
        "jobs, instances",
        "jobs, instances",
        "jobs it drives, by deadline ms",
    )
    sessions_of = KeyOf(
        "P:v1:instances:{instance:<id>}:sessions",
        "set",
        "until the instance is taken over",
        "instances",
        "instances",
        "sessions it owns",
    )
    nodes_of = KeyOf(
        "P:v1:instances:{instance:<id>}:nodes",
        "set",
        "until the instance is taken over",
        "instances",
        "instances",
        "nodes it owns",
    )
    takeover = KeyOf(
        "P:v1:instances:{instance:<id>}:takeover",
        "string",
        "TTL takeover",
        "instances",
        "instances",
        "instance that is taking over",
    )
    nodes_all = FixedKey("P:v1:nodes:all", "set", "shrinks by last_seen", "nodes", "nodes", "every known node id")
    nodes_last_seen = FixedKey(
        "P:v1:nodes:last_seen", "zset", "shrinks by score", "nodes", "nodes", "node ids by last heartbeat, ms"
    )
    node_presence = KeyOf(
        "P:v1:nodes:presence:<id>", "string", "TTL node", "nodes", "nodes", "epoch: the node is online"
    )
    node_snapshot = KeyOf(
        "P:v1:nodes:snapshot:<id>", "string", "TTL node", "nodes", "nodes", "JSON: capabilities, load, epoch"
    )
    reserved = KeyOf(
        "P:v1:nodes:{node:<id>}:reserved",
        "zset",
        "TTL reservation",
        "nodes",
        "nodes",
        "jobs that have a slot, by expiry ms",
    )
    storm = KeyOf(
        "P:v1:nodes:{node:<id>}:storm", "hash", "TTL storm", "nodes", "nodes", "cool-downs and what led to them"
    )
    request_lock = KeyOf("P:v1:requests:lock:<request>", "string", "TTL 2 s", "jobs", "jobs", "creation in progress")
    request_binding = KeyOf(
        "P:v1:requests:binding:<request>", "string", "TTL job", "jobs", "jobs", "JSON: request to job"
    )
    job = KeyOf(
        "P:v1:jobs:{job:<id>}:fsm", "hash", "TTL job", "jobs", "jobs", "state, attempt, node, outcome, times, receipt"
    )
    jobs_recent = FixedKey(
        "P:v1:jobs:recent", "zset", "the last 10,000", "jobs", "jobs", "job ids by when they were recorded, ms"
    )
    audit = FixedKey("P:v1:audit", "stream", "the last 10,000", "console", "console", "changes by operators")
    revoked = FixedKey(
        "P:v1:{revoked}:entries",
        "hash",
        "until they expire or are allowed",
        "revocations",
        "revocations",
        "revoked tokens and principals: JSON with since when, until when, by whom",
    )
    revoked_expiry = FixedKey(
        "P:v1:{revoked}:expiry",
        "zset",
        "until they expire or are allowed",
        "revocations",
        "revocations",
        "revoked tokens by the end of their lives, ms",
    )
    revoked_version = FixedKey(
        "P:v1:{revoked}:version",
        "string",
        "as long as the cluster",
        "revocations",
        "revocations",
        "counts the changes of the list",
    )
    history = FixedKey(
        "P:v1:history",
        "stream",
        "TTL 30 min",
        "console",
        "console",
        "samples of the counters of each instance, of the last 30 min",
    )
    user_owner = KeyOf(
        "P:users:owner:{user:<id>}",
        "string",
        "TTL owner",
        "chat/users",
        "chat/users",
        "instance and connection of the user",
    )
    chat_switches = FixedKey(
        "P:v1:chat:switches",
        "hash",
        "as long as the cluster",
        "chat/cluster",
        "chat/cluster",
        "two-phase switches changed while running",
    )
    chat_layout = FixedKey(
        "P:v1:chat:layout",
        "string",
        "as long as the cluster",
        "chat/cluster",
        "chat/cluster",
        "JSON: shards, stream and group names",
    )
    chat_archive = FixedKey(
        "P:v1:chat:archive",
        "string",
        "as long as the cluster",
        "chat/cluster",
        "chat/cluster",
        "id of the database that all instances use",
    )
    worker = KeyOf(
        "P:v1:chat:worker:<number>",
        "string",
        "TTL worker",
        "chat/cluster",
        "chat/cluster",
        "incarnation that makes ids with this number",
    )
    chat_accepted = ConfiguredKey(
        "IM:stream:single_chat:accepted:{<tag>}",
        "stream",
        "as long as the cluster",
        "chat/shards",
        "chat/shards",
        "accepted messages of a shard",
    )
    chat_to_save = ConfiguredKey(
        "IM:stream:single_chat:to_save:{<tag>}",
        "stream",
        "as long as the cluster",
        "chat/shards",
        "chat/shards",
        "messages that an earlier release left there",
    )
    dead = KeyOf(
        "IM:stream:single_chat:dead:{<tag>}",
        "stream",
        "`limits.chat_dead_letters` of `limits.chat_dead_letter_days`",
        "chat/shards",
        "chat/shards",
        "messages that could not be saved",
    )
    shard = KeyOf(
        "IM:shard:{<tag>}",
        "hash",
        "as long as the cluster",
        "chat/shards",
        "chat/shards",
        "last_id, backlog, fence, and totals",
    )
    unsaved = KeyOf(
        "IM:unsaved:{<tag>}", "hash", "until saved", "chat/shards", "chat/shards", "unsaved messages of each sender"
    )
    lease = KeyOf(
        "IM:lease:{<tag>}",
        "string",
        "TTL presence",
        "chat/shards",
        "chat/shards",
        "instance and fence that work the shard",
    )
    claim = KeyOfSeveral(
        "IM:claim:{<tag>}:<user>:<message>",
        "hash",
        "TTL idempotency",
        "chat/shards",
        "chat/shards",
        "id, to, digest of the body, saved, repeats",
    )
    translating = KeyOfSeveral(
        "IM:translating:<message>:<lang>",
        "string",
        "TTL translation",
        "chat/users",
        "chat/users",
        "instance that translates the message",
    )
    spent = KeyOfSeveral(
        "IM:spent:{<tag>}:<user>",
        "string",
        "TTL 1 d",
        "chat/shards",
        "chat/shards",
        "bytes that the sender stored in its day",
    )
    session_version = KeyOf("IM:sv:{user:<id>}", "string", "TTL tokens", "chat/users", "chat/users", "session version")
    login_tries = KeyOf(
        "IM:logins:<try>",
        "string",
        "TTL 1 min",
        "attempts",
        "attempts",
        "ms at which a name has all its tries from an address again; a digest of both",
    )
    logins_of = KeyOf(
        "IM:logins_of:<name>",
        "string",
        "TTL attempts",
        "attempts",
        "attempts",
        "ms at which a name has all its tries from new addresses again; a digest",
    )
    login_address = KeyOf(
        "IM:login_address:<pair>",
        "string",
        "TTL 90 d",
        "attempts",
        "attempts",
        "this address has logged in as this name; a digest of both",
    )
    invite = KeyOf(
        "IM:invite:<code>",
        "string",
        "TTL of the invite",
        "attempts",
        "attempts",
        "an unused invite code; a digest",
    )
    early = KeyOf(
        "IM:early:{user:<id>}", "hash", "TTL 1 h", "chat/users", "chat/users", "receipts that came before the row"
    )
    failed = KeyOf(
        "IM:failed:{user:<id>}",
        "list",
        "TTL 7 d",
        "chat/users",
        "chat/users",
        "errors for a sender that was not connected",
    )
    room_info = KeyOf(
        "P:v1:rooms:{room:<id>}:info",
        "hash",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "code, tenant, settings, log_epoch, next seq, version of the members, times, closed",
    )
    room_members = KeyOf(
        "P:v1:rooms:{room:<id>}:members",
        "hash",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "JSON of each member, by session",
    )
    room_seniority = KeyOf(
        "P:v1:rooms:{room:<id>}:seniority",
        "zset",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "sessions in the order in which they become host",
    )
    room_counts = KeyOf(
        "P:v1:rooms:{room:<id>}:counts",
        "hash",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "members by instance, by language heard and by language wanted as voice; hosts",
    )
    room_log = KeyOf(
        "P:v1:rooms:{room:<id>}:log",
        "stream",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "entries: kind, caption, language, text, about; the id is the seq",
    )
    room_captions = KeyOf(
        "P:v1:rooms:{room:<id>}:captions",
        "hash",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "JSON of each caption: seq, language, state of each planned language",
    )
    room_recent = KeyOf(
        "P:v1:rooms:{room:<id>}:recent",
        "list",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "seq of the last 1000 captions",
    )
    room_pending = KeyOf(
        "P:v1:rooms:{room:<id>}:pending",
        "zset",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "languages of captions that wait for their translation, by deadline, ms",
    )
    room_removed = KeyOf(
        "P:v1:rooms:{room:<id>}:removed",
        "set",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "principals that stay out",
    )
    room_code = KeyOf(
        "P:v1:rooms:code:<code>",
        "string",
        "TTL room",
        "rooms/rooms",
        "rooms/rooms",
        "id of the room with this code",
    )
    room_code_tries = KeyOf(
        "P:v1:rooms:tries:<address>",
        "string",
        "TTL 1 min",
        "attempts",
        "attempts",
        "ms at which an address has all its wrong codes again; a digest",
    )
    rooms_made_persistent = KeyOf(
        "P:v1:rooms:persistent:<principal>",
        "string",
        "TTL 1 d",
        "attempts",
        "attempts",
        "ms at which a principal may make all its rooms of a day persistent again; a digest",
    )
    rooms_due = FixedKey(
        "P:v1:rooms:{due}:visits",
        "zset",
        "until the room is closed",
        "rooms/rooms",
        "rooms/rooms",
        "rooms by their next visit, ms",
    )
    rooms_announced = FixedKey(
        "P:v1:rooms:{due}:announced",
        "zset",
        "TTL announced",
        "rooms/rooms",
        "rooms/rooms",
        "rooms by the time until which something may be written that no visit has seen, ms",
    )
    session_room = KeyOf(
        "P:v1:sessions:{session:<id>}:room",
        "string",
        "TTL membership",
        "rooms/rooms",
        "rooms/rooms",
        "room that the session is in, and the epoch with which it joined",
    )
    turn = KeyOf("scheduler:turn:<turn>", "hash", "until the turn ends", "jobs", "jobs", "affinity_node_id")
    session_turn = KeyOf(
        "scheduler:session:<session>", "hash", "until the turn ends", "jobs", "jobs", "current_turn_id"
    )

    def __init__(self, prefix: str) -> None:
        self.prefix, self.im = prefix, chat_root(prefix)
        self.announcements = f"{prefix}:v1:announcements"  # a channel, not a key


TABLE: tuple[Key, ...] = tuple(row for row in vars(Keys).values() if isinstance(row, Key))

# What a life of the table is in an operator's terms. Lives that are a condition ("until saved") explain themselves.
LIVES = {
    "TTL presence": "`scheduler.phase2.instance_presence_ttl_seconds`, renewed every third of it",
    "TTL takeover": "`scheduler.phase2.instance_presence_ttl_seconds`, renewed during the takeover",
    "TTL owner": "`scheduler.phase2.owner_ttl_seconds`, renewed every third of it",
    "TTL session": "`scheduler.phase2.owner_ttl_seconds` and `speech.resume_grace_s`, renewed while it has an owner",
    "TTL node": "`scheduler.phase2.node_snapshot.presence_ttl_seconds`, renewed by every heartbeat",
    "TTL reservation": "`speech.reservation_ttl_ms`, renewed every third of it while the job is unfinished",
    "TTL storm": "`speech.unavailable_ttl_s` after the last report or the end of a pause",
    "TTL job": "one hour after the last change",
    "TTL translation": "twice `chat.translate.timeout_ms`",
    "TTL idempotency": "`chat.idempotency_ttl_s`",
    "TTL worker": "one hour, renewed with the presence of its instance",
    "TTL 10 min": "ten minutes after the last instance ended",
    "TTL 30 min": "half an hour after the last sample",
    "TTL 1 min": "a minute at most",
    "TTL 1 d": "a day after the first message",
    "TTL 1 h": "one hour after the last receipt",
    "TTL attempts": "an hour at most",
    "TTL tokens": "`chat.refresh_ttl_s` and `chat.access_ttl_s` after the last login; ten years after an operator "
    "ended all sessions of the user",
    "TTL 90 d": "ninety days after the last login",
    "TTL of the invite": "`--lifetime` of `dragoman chat invite`",
    "TTL 7 d": "seven days after the last error",
    "TTL room": "`rooms.idle_s` and `rooms.transcript_hours`, renewed by joins, captions and visits; 30 days if it is "
    "persistent; `rooms.transcript_hours` after its end",
    "TTL announced": "one hour after the last caption",
    "TTL membership": "one hour, renewed while the session is in the room",
    "TTL 2 s": "two seconds, or until the job is recorded",
}

_INTRODUCTION = """\
# Redis keys

<!-- Made by `python -m dragoman.store.keys`; edit the table in `src/dragoman/store/keys.py` instead. -->

Every key. `P` is the prefix, `scheduler.phase2.redis.key_prefix`; `<…>` stands for an id. Braces are literal hash tags,
so that the keys of one script are in one slot of a Cluster. The keys of turns and their sessions have no prefix, because
other tools read them. `IM` is the root of chat: `im` under the default prefix, `P:im` under any other, so that two
clusters can share one Redis. The names of the two streams of a shard are settings.

Writers and readers are modules of `src/dragoman/store`. A key whose life is not a TTL has none; tests fail on any other
key without one. There are also channels. Instances publish hints in `P:v1:announcements` that make others faster;
nothing relies on them. Each instance subscribes to `P:v1:announcements:<instance>`, in which nothing is published: the
subscription shows at once that a connection has ended.
"""


def markdown() -> str:
    return "\n".join([_INTRODUCTION, _table(), _lives()])


def _table() -> str:
    head = ["| key | type | life | written by | read by | holds |", "|---|---|---|---|---|---|"]
    return "\n".join(["## Keys", "", *head, *map(_row, TABLE), ""])


def _row(spec: Key) -> str:
    return f"| `{spec.name}` | {spec.type} | {spec.life} | {spec.writer} | {spec.reader} | {spec.holds} |"


def _lives() -> str:
    used = {spec.life for spec in TABLE}
    rows = [f"| {life} | {meaning} |" for life, meaning in LIVES.items() if life in used]
    return "\n".join(["## Lifetimes", "", "| life | duration |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    print(markdown(), end="")
