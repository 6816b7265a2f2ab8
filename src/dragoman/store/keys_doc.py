"""The data model as a page for people: docs/redis-keys.md, made from the table in `keys`.

`python -m dragoman.store.keys_doc` prints it; a test keeps the file equal to that. What is not in the table, the
meaning of its words for the life of a key, stands in `LIVES`.
"""

from dragoman.store.keys import TABLE, KeySpec

# What a life of the table is in an operator's terms. Lives that are a condition ("until buried") explain themselves.
LIVES = {
    "TTL presence": "`scheduler.phase2.instance_presence_ttl_seconds`, renewed every third of it",
    "TTL burial": "`scheduler.phase2.instance_presence_ttl_seconds`, renewed while the burial goes on",
    "TTL owner": "`scheduler.phase2.owner_ttl_seconds`, renewed every third of it",
    "TTL session": "`scheduler.phase2.owner_ttl_seconds` and `speech.resume_grace_s`, renewed while it has an owner",
    "TTL node": "`scheduler.phase2.node_snapshot.presence_ttl_seconds`, renewed by every heartbeat",
    "TTL reservation": "`speech.reservation_ttl_ms`, renewed every third of it while the job is unfinished",
    "TTL storm": "`speech.unavailable_ttl_s` after the last report or the end of a pause",
    "TTL job": "one hour after the last change",
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
    "TTL of the invite": "as `dragoman chat invite` was told",
    "TTL 7 d": "seven days after the last word",
    "TTL 2 s": "two seconds, or until the job is recorded",
}

_INTRODUCTION = """\
# What is in Redis

<!-- Made by `python -m dragoman.store.keys_doc`; edit the table in `src/dragoman/store/keys.py` instead. -->

Every key there is. `P` is the prefix, `scheduler.phase2.redis.key_prefix`; `<…>` stands for an id. Braces are literal:
they are hash tags, so that the keys one script touches lie in one slot of a Cluster. The names of turns and their
sessions have no prefix, because other tools read them as they are. `IM` is the root of chat: `im` under the default
prefix, `P:im` under any other, so that two clusters can share one Redis; the names of the two streams can be set.

Writers and readers are the parts of an instance, by name. A key whose life is not a TTL is meant to have none; the
tests fail on any other that is left without one. Besides the keys there are channels. What is said in
`P:v1:announcements` makes others faster, and nothing relies on it. Nothing is published to
`P:v1:announcements:<instance>`: each instance subscribes to its own, so that the console sees at once when its
connection has ended.
"""


def markdown() -> str:
    return "\n".join([_INTRODUCTION, _table(), _lives()])


def _table() -> str:
    head = ["| key | type | life | written by | read by | holds |", "|---|---|---|---|---|---|"]
    return "\n".join(["## Keys", "", *head, *map(_row, TABLE), ""])


def _row(spec: KeySpec) -> str:
    return f"| `{spec.name}` | {spec.type} | {spec.life} | {spec.writer} | {spec.reader} | {spec.holds} |"


def _lives() -> str:
    used = {spec.life for spec in TABLE}
    told = [f"| {life} | {meaning} |" for life, meaning in LIVES.items() if life in used]
    return "\n".join(["## How long a TTL is", "", "| life | how long |", "|---|---|", *told, ""])


if __name__ == "__main__":
    print(markdown(), end="")
