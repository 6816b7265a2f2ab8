"""Chat of one instance, put together, and the list of what runs for it.

/ws ─▶ admission ─▶ outbound (accept or save)       the way of a message, from its sender
shard keeper ─▶ deliver stage, save stage           on to its row
courier ─▶ inbound ◀─ resender; receipts            and to its receiver
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import uuid4

import msgspec
import structlog

from dragoman.archive import Archive, ArchiveAway, ArchiveError, archive_url, open_archive
from dragoman.config import Config
from dragoman.config.secrets import is_private, registration_of
from dragoman.domain.chat.gate import Gate
from dragoman.domain.chat.registration import Registration
from dragoman.domain.chat.switches import Switches
from dragoman.domain.chat.words import WordFilter
from dragoman.instance.chat_tokens import chat_tokens
from dragoman.instance.redis_check import CannotStart
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import ChatCatchUp, ChatKick, ChatPush, ChatTell, OneTell
from dragoman.services.chat.accounts import Accounts
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.courier import Courier, Tell
from dragoman.services.chat.dead_letters import ChatLetters
from dragoman.services.chat.deliver import DeliverStage
from dragoman.services.chat.desk import Desk, IdMaker, Repeats
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.mailroom import Mailroom
from dragoman.services.chat.perf import Perf
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.replicas import Replicas
from dragoman.services.chat.resender import Resender
from dragoman.services.chat.save import SaveStage, SaveTools
from dragoman.services.chat.shard_keeper import ShardKeeper
from dragoman.services.chat.switchboard import LOOK_S, Switchboard
from dragoman.services.chat.whereabouts import Whereabouts
from dragoman.services.chat.word_list import BadWordList, load_words
from dragoman.services.loops import Tasks, every
from dragoman.services.metrics import Metrics
from dragoman.services.upkeep.announcer import Announcer
from dragoman.store.chat.cluster import ChatCluster, Layout
from dragoman.store.chat.logins import Invites, Logins
from dragoman.store.chat.shards import Keep, Names, Shards, Tally
from dragoman.store.chat.users import Users
from dragoman.store.inbox import Inboxes
from dragoman.store.instances import Instances
from dragoman.store.keys import DEFAULT_PREFIX, Keys
from dragoman.store.redis import Redis

log = structlog.get_logger(__name__)

ChatMessage = ChatPush | ChatTell | ChatKick | ChatCatchUp
KEEPER_S = 1.0
MEET_S = 1.0
TIDY_S = 60.0
DAY_MS = 86_400_000
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

PARTING_REMINDERS = 3  # the first messages may still be on their way to the archive


class Chat:
    def __init__(
        self,
        config: Config,
        instance: str,
        redis: Redis,
        keys: Keys,
        instances: Instances,
        inboxes: Inboxes,
        announcer: Announcer,
        metrics: Metrics,
        tasks: Tasks,
        *,
        owner_ttl_ms: int,
        connect: Callable[[], Awaitable[Redis]],
    ) -> None:
        self.config, self.instance, self.redis, self.metrics, self.tasks = config, instance, redis, metrics, tasks
        self._instances = instances
        chat, two_phase = config.chat, config.chat.two_phase
        self._incarnation = uuid4().hex
        self._worker: int | None = None
        self._archive_met = False  # it is known to be the one of the cluster
        self.on_wrong_archive: Callable[[], None] = lambda: None
        self.archive: Archive = open_archive(archive_url(config), config.archive)
        self.cluster = ChatCluster(redis, keys)
        self.shards = Shards(
            redis, keys, _names(config), two_phase.shards, int(chat.idempotency_ttl_s * 1000),
            Keep(config.limits.chat_dead_letters, int(config.limits.chat_dead_letter_days * DAY_MS)),
            config.limits.chat_bytes_per_day,
        )  # fmt: skip
        self.users = Users(redis, keys, owner_ttl_ms, int((chat.refresh_ttl_s + chat.access_ttl_s + 60.0) * 1000))
        self.here = LocalUsers(metrics, chat.ping_idle_s)
        self.courier = Courier(instance, self.here, self.users, inboxes, metrics)
        configured = Switches(**{name: getattr(two_phase, name) for name in Switches.__slots__})
        self.switchboard = Switchboard(configured, self.cluster, announcer, tasks)
        self.receipts = Receipts(self.archive, self.users, self.courier, metrics, tasks)
        self.replicas = Replicas(connect, chat.accept_timeout_ms)
        self.desk = Desk(
            instance, self.shards, self.archive, self.courier, self.switchboard, _words(config), metrics, tasks, Gate(),
            IdMaker(), chat.accept_timeout_ms / 1000, self.replicas, Repeats(metrics),
            Perf(metrics, self.shards, tasks),
        )  # fmt: skip
        self.tokens = chat_tokens(config)
        self.admission = Admission(
            instance, self.tokens, self.users, self.here, self.shards, Mailroom(self.archive, tasks),
            self.courier, self.receipts, self.desk, tasks,
        )  # fmt: skip
        self.registration = Registration(registration_of(config), is_private(config), chat.min_password_length)
        self.accounts = self._accounts(keys)
        self.whereabouts = Whereabouts(self.shards, self.archive)
        self.letters = ChatLetters(self.shards, self.desk.ids, instance, lambda: self.switchboard.current)
        self.resender = Resender(self.here, self.archive, self.receipts, tasks, chat.resend_after_s)
        tools = SaveTools(
            self.shards, self.archive, self.courier, self.receipts, self.switchboard, metrics,
            chat.max_deliveries, self.desk.repeats,
        )  # fmt: skip
        self.keeper = ShardKeeper(
            instance, self.shards, self.archive, instances, announcer, metrics,
            DeliverStage(self.shards, self.courier, self.switchboard, metrics), SaveStage(tools),
            ttl_s=config.scheduler.phase2.instance_presence_ttl_seconds,
        )  # fmt: skip

    def _accounts(self, keys: Keys) -> Accounts:
        chat = self.config.chat
        per_name = self.config.limits.login_attempts_per_name_per_hour
        refused = self.metrics.chat_logins_refused
        return Accounts(
            self.archive,
            self.tokens,
            session_version=self.users.session_version,
            raise_session_version=self.users.raise_session_version,
            end_all_sessions=self.users.end_all_sessions,
            registration=self.registration,
            invites=Invites(self.redis, keys),
            limits=Logins(self.redis, keys, chat.logins_per_minute, per_name),
            logins_per_minute=chat.logins_per_minute,
            on_refused=lambda reason: refused.labels(reason).inc(),
        )

    # -- beginning and ending --------------------------------------------------------------------

    async def begin(self) -> None:
        """Agree with the others, take a worker number, open the database; raises CannotStart."""
        names, count = self.shards.names, self.shards.count
        ours = Layout(count, names.accepted, names.to_save, names.deliver_group, names.save_group)
        theirs = await self.cluster.agree(ours)
        for name in ("shards", "accepted", "to_save", "deliver_group", "save_group"):
            if getattr(ours, name) != getattr(theirs, name):
                raise CannotStart(
                    f"this cluster was begun with chat.two_phase {name} = {getattr(theirs, name)!r}, and this instance "
                    f"is configured with {getattr(ours, name)!r}: messages would be lost between the two"
                )
        await self.switchboard.run_once()
        await self.keep_worker()
        try:
            await self.archive.open()
            await self._meet_archive()
        except ArchiveAway as error:
            log.warning("the database is away; messages wait for it", error=str(error))
        except ArchiveError as error:
            raise CannotStart(str(error)) from None

    async def _meet_archive(self) -> None:
        """A database of our own would make one user id two people, and save messages where nobody looks for them."""
        if self.config.scheduler.phase2.enabled:  # nobody else is on a private Redis
            ours = await self.archive.identity()
            if ours != await self.cluster.agree_on_archive(ours):
                raise CannotStart(
                    "this cluster keeps its messages in another database: set archive.url to the one that all its "
                    "instances share, or, if that was replaced on purpose, stop them all and delete the key "
                    f"{self.cluster.keys.chat_archive} in Redis"
                )
        self._archive_met = True

    async def meet_archive(self) -> None:
        """A database that was away when we began may turn out to be another one."""
        if self._archive_met:
            return
        try:
            await self._meet_archive()
        except ArchiveAway:
            return
        except (ArchiveError, CannotStart) as error:
            log.error("the database is there and cannot be used; this instance ends", error=str(error))
            self._archive_met = True  # said once
            self.on_wrong_archive()

    async def keep_worker(self) -> None:
        """The number we make ids with, unique among the living."""
        if self._worker is None or not await self.cluster.keep_worker(self._worker, self._incarnation):
            self._worker = await self.cluster.claim_worker(self._incarnation)
            self.desk.ids.use(self._worker)

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        phase2, chat = self.config.scheduler.phase2, self.config.chat
        presence_s = phase2.instance_presence_ttl_seconds / 3
        return {
            "chat-shards": self.keeper.run(KEEPER_S),
            "chat-leases": every(presence_s, self.keeper.renew, name="chat-leases"),
            "chat-worker": every(presence_s, self.keep_worker, name="chat-worker"),
            "chat-archive": every(MEET_S, self.meet_archive, name="chat-archive"),
            "chat-switchboard": every(LOOK_S, self.switchboard.run_once, name="chat-switchboard"),
            "chat-owners": every(phase2.owner_ttl_seconds / 3, self.admission.renew, name="chat-owners"),
            "chat-admission": every(1.0, self.admission.run_once, name="chat-admission"),
            "chat-pulse": every(chat.ping_idle_s / 4, self.here.check_pulse, name="chat-pulse"),
            "chat-resender": every(chat.resend_after_s / 4, self.resender.run_once, name="chat-resender"),
            "chat-courier": every(1.0, self.courier.remind, name="chat-courier"),
            "chat-tidy": every(TIDY_S, self.keeper.tidy, name="chat-tidy"),
            "chat-gauges": every(5.0, self.keeper.measure, name="chat-gauges"),
        }

    async def drain(self) -> None:
        """Shards go to others at once."""
        await self.keeper.leave()

    async def leave(self) -> None:
        if self._worker is not None:
            await self.cluster.leave_worker(self._worker, self._incarnation)

    async def close(self) -> None:
        await self.replicas.close()
        await self.archive.close()

    async def drop_all(self) -> None:
        """Everybody goes on elsewhere. What we saved for somebody while Redis was away is looked for before that: its
        sender must not be able to send something newer there."""
        for user in self.here:
            user.stop_reading()
        for _ in range(PARTING_REMINDERS):
            await self.courier.remind()
            if not self.courier.owes_anybody:
                break
        self.here.drop_all(Close.LEASE_LOST)

    # -- from other instances --------------------------------------------------------------------

    async def handle(self, message: ChatMessage) -> None:
        match message:
            case ChatPush():
                self.here.pushed(message)
            case ChatTell():
                missed = self.here.told(message)
                if missed:  # they have moved on since: after them, once
                    await self.courier.tell([_again(one) for one in missed])
            case ChatKick():
                self.here.kicked(message)
            case ChatCatchUp():
                self.here.catch_up(message)

    async def rehome(self, message: ChatMessage) -> None:
        """From a dead instance's inbox. Messages are in the archive, or will be; words are for whoever is there now."""
        if isinstance(message, ChatTell):
            await self.courier.tell([_again(one) for one in message.tells])

    # -- what can be seen ------------------------------------------------------------------------

    async def _save_lag(self) -> dict[str, float | None]:
        """Quantiles of all living instances together: each says its buckets in its presence."""
        present = await self._instances.all()
        others = [one.save_lag for name, one in present.items() if one is not None and name != self.instance]
        lag = self.metrics.chat_save_lag.merged(others)
        return {name: lag.quantile(share) for name, share in QUANTILES.items()}

    async def status(self) -> dict[str, Any]:
        """Switches, shards and their backlog, as any instance sees them."""
        tallies = await asyncio.gather(*(self.shards.tally(shard) for shard in range(self.shards.count)))
        return {
            "switches": msgspec.to_builtins(self.switchboard.current),
            "backlog": sum(tally.backlog for tally in tallies),
            "save_lag_ms": await self._save_lag(),
            "dead_letters": self._dead_letters(tallies),
            "shards": [{"shard": shard, **msgspec.to_builtins(tally)} for shard, tally in enumerate(tallies)],
        }

    def _dead_letters(self, tallies: list[Tally]) -> dict[str, Any]:
        limits = self.config.limits
        return {
            "kept": sum(tally.dead_len for tally in tallies),
            "dropped": sum(tally.dropped for tally in tallies),
            "most_per_shard": limits.chat_dead_letters,
            "days": limits.chat_dead_letter_days,
        }


def _again(one: OneTell) -> Tell:
    return Tell(one.user, bytes(one.frame), one.ended, one.keep, one.saved)


def _names(config: Config) -> Names:
    """As configured. The given names are for the default prefix: under another they would belong to two clusters."""
    two_phase, prefix = config.chat.two_phase, config.scheduler.phase2.redis.key_prefix
    root = "" if prefix == DEFAULT_PREFIX else f"{prefix}:"
    return Names(
        root + two_phase.stream.accepted,
        root + two_phase.stream.to_save,
        two_phase.group.deliver,
        two_phase.group.save,
    )


def _words(config: Config) -> WordFilter:
    if not config.chat.words_file:
        return WordFilter([])
    try:
        return WordFilter(load_words(config.chat.words_file))
    except BadWordList as error:
        raise CannotStart(str(error)) from None
