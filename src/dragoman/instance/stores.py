"""Every store of one instance, on one Redis and one prefix."""

from dragoman.config import Config
from dragoman.domain.storm import StormSettings
from dragoman.store.audit import Audit
from dragoman.store.dead_letters import InboxDeadLetters
from dragoman.store.history import Samples
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.instances import Instances
from dragoman.store.jobs import Jobs
from dragoman.store.keys import Keys
from dragoman.store.nodes import Nodes
from dragoman.store.owners import Owners
from dragoman.store.redis import Redis
from dragoman.store.reservations import Reservations
from dragoman.store.revocations import Revocations
from dragoman.store.sessions import ResumableSessions
from dragoman.store.storm import Storm
from dragoman.store.turns import Turns


class Stores:
    def __init__(self, config: Config, redis: Redis) -> None:
        phase2, speech = config.scheduler.phase2, config.speech
        self.redis = redis
        keys = self.keys = Keys(phase2.redis.key_prefix)
        self.instances = Instances(redis, keys)
        self.inboxes = Inboxes(
            redis,
            keys,
            InboxSettings(
                phase2.stream_group,
                phase2.stream_maxlen,
                phase2.stream_max_bytes,
                phase2.dlq_maxlen,
                dead_letters=phase2.dlq_enabled,
            ),
        )
        self.letters = InboxDeadLetters(redis, keys, self.inboxes)
        self.owners = Owners(redis, keys, int(phase2.owner_ttl_seconds * 1000))
        self.nodes = Nodes(redis, keys, int(phase2.node_snapshot.presence_ttl_seconds * 1000))
        self.jobs = Jobs(redis, keys)
        self.turns = Turns(redis, keys)
        self.sessions = ResumableSessions(
            redis, keys, owner_ttl_ms=self.owners.ttl_ms, grace_ms=int(speech.resume_grace_s * 1000)
        )
        self.reservations = Reservations(redis, keys, speech.reservation_ttl_ms)
        storm = StormSettings(speech.debounce_window_s, speech.unavailable_ttl_s, first_pause_s=speech.failure_pause_s)
        self.storm = Storm(redis, keys, storm)
        self.audit = Audit(redis, keys)
        self.revocations = Revocations(redis, keys)
        self.samples = Samples(redis, keys)
