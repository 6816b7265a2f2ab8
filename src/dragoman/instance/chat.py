"""Chat of one instance: its parts, and the list of what runs for it.

/ws ─▶ admission ─▶ outbound ─▶ one phase, or two phases   the way of a message, from its sender
shard assigner ─▶ deliver stage, save stage                on to its row
delivery ─▶ inbound ◀─ resender; receipts                  and to its receiver
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, assert_never
from uuid import uuid4

import structlog

from dragoman.archive import Archive, ArchiveAway, ArchiveError, archive_url, open_archive
from dragoman.config import Config
from dragoman.config.secrets import is_private, registration_of
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.rules import Registration, WordFilter
from dragoman.domain.chat.switches import Gate, Switches
from dragoman.domain.revocation import RevocationList
from dragoman.instance.chat_settings import chat_tokens, stream_names, word_filter
from dragoman.instance.redis_check import CannotStart
from dragoman.protocol.codes import Close
from dragoman.protocol.peer import (
    ChatKick,
    ChatNotices,
    ChatOwnerCheck,
    ChatPush,
    ChatResend,
    EarlyPushes,
    UserNotice,
)
from dragoman.services.chat.acceptance import Acceptance, EarlyPush, PushedMessages
from dragoman.services.chat.accounts import Accounts
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.delivery import Delivery, SenderNotice
from dragoman.services.chat.feature_switches import POLL_S, FeatureSwitches, PathChooser
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.chat.one_phase import OnePhase, Refusals
from dragoman.services.chat.outbound import MessageMaker, Outbound, Verify
from dragoman.services.chat.receipts import Receipts, Resender, UndeliveredLookup
from dragoman.services.chat.removal import RETENTION_S, Retention
from dragoman.services.chat.report import ChatReport, Perf
from dragoman.services.chat.save_stage import SaveStage
from dragoman.services.chat.shard_assigner import ShardAssigner
from dragoman.services.chat.translations import Translations, TranslationSettings
from dragoman.services.loops import Tasks, every
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.services.speech.text_jobs import TextJobs
from dragoman.store.attempts import Invites, Logins
from dragoman.store.chat.cluster import ChatCluster, Layout, Replicas
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.shards import DAY_MS, DeadLetterLimits, Shards
from dragoman.store.chat.users import Translating, Users
from dragoman.store.inbox import Inboxes
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis

log = structlog.get_logger(__name__)

ChatMessage = ChatPush | ChatNotices | ChatKick | ChatOwnerCheck | ChatResend | EarlyPushes
ASSIGN_S = 1.0
ARCHIVE_CHECK_S = 1.0
TIDY_S = 60.0

CLOSE_RESENDS = 3  # the first messages may still be on their way to the archive


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
        revoked: RevocationList,
        text_jobs: TextJobs,
        *,
        serves_text: Callable[[str, str], bool],
        owner_ttl_ms: int,
        connect: Callable[[], Awaitable[Redis]],
        on_switches_changed: Callable[[], None],
        on_wrong_archive: Callable[[], None],
    ) -> None:
        self.config, self.instance, self.redis, self.metrics, self.tasks = config, instance, redis, metrics, tasks
        chat, two_phase = config.chat, config.chat.two_phase
        self._instances, self._incarnation = instances, uuid4().hex
        self._worker: int | None = None
        self._archive_checked = False  # it is known to be the one of the cluster
        self._on_wrong_archive = on_wrong_archive
        self.archive: Archive = open_archive(archive_url(config), config.archive)
        self.cluster = ChatCluster(redis, keys)
        self.shards = Shards(
            redis, keys, stream_names(config), two_phase.shards, int(chat.idempotency_ttl_s * 1000),
            DeadLetterLimits(config.limits.chat_dead_letters, int(config.limits.chat_dead_letter_days * DAY_MS)),
            config.limits.chat_bytes_per_day,
        )  # fmt: skip
        self.users = Users(redis, keys, owner_ttl_ms, int((chat.refresh_ttl_s + chat.access_ttl_s + 60.0) * 1000))
        self.local = LocalUsers(metrics, tasks, chat.ping_idle_s)
        self.delivery = Delivery(instance, self.local, self.users, inboxes, metrics, tasks)
        self._pushed = PushedMessages(instance, announcer)
        self._early = EarlyPush(self.delivery, self._pushed, announcer, metrics)
        configured = Switches(**{name: getattr(two_phase, name) for name in Switches.__slots__})
        self.switches = FeatureSwitches(configured, self.cluster, announcer, tasks, on_switches_changed)
        self.receipts = Receipts(self.archive, self.users, self.delivery, metrics, tasks)
        self.replicas = Replicas(connect, chat.accept_timeout_ms)
        self._ids = IdMaker(now_ms)
        refusals = Refusals(metrics)
        self.tokens = chat_tokens(config, revoked)
        timeout_s = chat.accept_timeout_ms / 1000
        words = word_filter(config)
        self.translations = Translations(
            self.archive, Translating(redis, keys, instance, 2 * chat.translate.timeout_ms), text_jobs, serves_text,
            words, metrics, tasks, _translation_settings(config),
        )  # fmt: skip
        self.admission = Admission(
            instance, self.tokens, self.users, self.local, self.shards, UndeliveredLookup(self.archive, tasks),
            self.delivery, self.receipts, self._ids, tasks, self._outbounds(refusals, timeout_s, words),
            timeout_s=timeout_s, automatic=self.translations.automatic,
        )  # fmt: skip
        self.registration = Registration(registration_of(config), is_private(config), chat.min_password_length)
        self.accounts = self._accounts(keys)
        self.dead_letters = ChatDeadLetters(self.shards, self._ids, instance, lambda: self.switches.current)
        self.report = ChatReport(
            instance, self.shards, self.archive, self.dead_letters, self.switches, instances, metrics
        )
        self.resender = Resender(self.local, self.archive, self.receipts, tasks, chat.resend_after_s)
        self.retention = Retention(self.archive, lambda: 0 in self.assigner, metrics, chat.retention_days)
        self.assigner = ShardAssigner(
            instance, self.shards, self.archive, instances, announcer, metrics,
            SaveStage(
                self.shards, self.archive, self.delivery, self.receipts, self.switches, metrics, refusals,
                chat.max_deliveries, self._pushed,
            ),
            self._pushed,
            ttl_s=config.scheduler.phase2.instance_presence_ttl_seconds,
        )  # fmt: skip

    def _outbounds(
        self, refusals: Refusals, timeout_s: float, words: WordFilter
    ) -> Callable[[ChatUser, Verify], Outbound]:
        """Makes the part of a connection that sends."""
        gate, perf = Gate(), Perf(self.metrics, self.shards, self.tasks)
        messages = MessageMaker(self._ids, words)
        paths = PathChooser(self.switches, self.shards, gate, timeout_s)
        one_phase = OnePhase(
            self.archive, self.shards, self.delivery, self.switches, gate, self._ids, refusals, perf, self.metrics,
            self.tasks, timeout_s,
        )  # fmt: skip
        two_phase = Acceptance(
            self.instance, self.shards, self.archive, self.delivery, self.switches, gate, self._ids, self.replicas,
            refusals, perf, self.metrics, timeout_s, self._early,
        )  # fmt: skip
        return lambda user, verify: Outbound(user, messages, paths, one_phase, two_phase, self.tasks, verify)

    def _accounts(self, keys: Keys) -> Accounts:
        quotas = self.config.limits
        per_minute, per_name = quotas.login_attempts_per_minute, quotas.login_attempts_per_name_per_hour
        refused = self.metrics.chat_logins_refused
        return Accounts(
            self.archive,
            self.tokens,
            session_version=self.users.session_version,
            raise_session_version=self.users.raise_session_version,
            end_all_sessions=self.users.end_all_sessions,
            registration=self.registration,
            invites=Invites(self.redis, keys),
            limits=Logins(self.redis, keys, per_minute, per_name),
            logins_per_minute=per_minute,
            max_waiting=quotas.password_checks,
            on_refused=lambda reason: refused.labels(reason).inc(),
        )

    # -- start and end ---------------------------------------------------------------------------

    async def begin(self) -> None:
        """Check the layout of the cluster, claim a worker number, open the database; raises CannotStart."""
        names, count = self.shards.names, self.shards.count
        ours = Layout(count, names.accepted, names.to_save, names.deliver_group, names.save_group)
        theirs = await self.cluster.agree(ours)
        for name in ("shards", "accepted", "to_save", "deliver_group", "save_group"):
            if getattr(ours, name) != getattr(theirs, name):
                raise CannotStart(
                    f"this cluster was begun with chat.two_phase {name} = {getattr(theirs, name)!r}, and this instance "
                    f"is configured with {getattr(ours, name)!r}: messages would be lost between the two"
                )
        await self.switches.run_once()
        await self.keep_worker()
        try:
            await self.archive.open()
            await self._check_archive()
        except ArchiveAway as error:
            log.warning("the database is unavailable; messages wait for it", error=str(error))
        except ArchiveError as error:
            raise CannotStart(str(error)) from None

    async def _check_archive(self) -> None:
        """With a database of its own, an instance would give one user id to two users, and hide their messages."""
        if self.config.scheduler.phase2.enabled:  # a private Redis has one instance
            ours = await self.archive.identity()
            if ours != await self.cluster.agree_on_archive(ours):
                raise CannotStart(
                    "this cluster keeps its messages in another database: set archive.url to the one that all its "
                    "instances share, or, if that was replaced on purpose, stop them all and delete the key "
                    f"{self.cluster.keys.chat_archive} in Redis"
                )
        self._archive_checked = True

    async def check_archive(self) -> None:
        """A database that was unavailable at the start may be another one."""
        if self._archive_checked:
            return
        try:
            await self._check_archive()
        except ArchiveAway:
            return
        except (ArchiveError, CannotStart) as error:
            log.error("this instance ends: the database answers and cannot be used", error=str(error))
            self._archive_checked = True  # logged once
            self._on_wrong_archive()

    async def keep_worker(self) -> None:
        """Claim or renew the number that ids are made with, unique among the running instances."""
        if self._worker is None or not await self.cluster.keep_worker(self._worker, self._incarnation):
            self._worker = await self.cluster.claim_worker(self._incarnation)
            self._ids.use(self._worker)

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        phase2, chat = self.config.scheduler.phase2, self.config.chat
        presence_s = phase2.instance_presence_ttl_seconds / 3
        return {
            "chat-shards": self.assigner.run(ASSIGN_S),
            "chat-leases": every(presence_s, self.assigner.renew, name="chat-leases"),
            "chat-worker": every(presence_s, self.keep_worker, name="chat-worker"),
            "chat-archive": every(ARCHIVE_CHECK_S, self.check_archive, name="chat-archive"),
            "chat-switches": every(POLL_S, self.switches.run_once, name="chat-switches"),
            "chat-owners": every(phase2.owner_ttl_seconds / 3, self.admission.renew, name="chat-owners"),
            "chat-admission": every(1.0, self.admission.run_once, name="chat-admission"),
            "chat-pings": every(chat.ping_idle_s / 4, self.local.ping_idle, name="chat-pings"),
            "chat-resender": every(chat.resend_after_s / 4, self.resender.run_once, name="chat-resender"),
            "chat-delivery": every(1.0, self.delivery.run_once, name="chat-delivery"),
            "chat-retention": every(RETENTION_S, self.retention.run_once, name="chat-retention"),
            "chat-tidy": every(TIDY_S, self.assigner.tidy, name="chat-tidy"),
            "chat-gauges": every(5.0, self.assigner.measure, name="chat-gauges"),
        }

    async def drain(self) -> None:
        """Release the shards: other instances take them at once."""
        await self.assigner.release_all()

    async def release_worker(self) -> None:
        if self._worker is not None:
            await self.cluster.release_worker(self._worker, self._incarnation)

    async def close(self) -> None:
        await self.replicas.close()
        await self.archive.close()

    async def close_all(self) -> None:
        """Users connect elsewhere. Receivers of what was saved here while Redis was unavailable get their resend before
        that: its sender must not be able to send something newer there."""
        for user in self.local:
            user.pause_reading()
        try:
            for _ in range(CLOSE_RESENDS):
                await self.delivery.run_once()
                if not self.delivery.resends_pending:
                    break
        finally:  # a connection that is not read must not stay open
            self.local.close_all(Close.LEASE_LOST)

    # -- from other instances --------------------------------------------------------------------

    async def handle(self, message: ChatMessage) -> None:
        match message:
            case ChatPush():
                self.local.on_push(message)
            case ChatNotices():
                remote = self.local.on_notices(message)
                if remote:  # they have moved since: sent after them, once
                    await self.delivery.notify([_notice(one) for one in remote])
            case ChatKick():
                self.local.on_kick(message)
            case ChatOwnerCheck():
                await self.admission.on_owner_check(message)
            case ChatResend():
                self.local.on_resend_request(message)
            case EarlyPushes():
                self._early.on_pushes(message)
            case _:
                assert_never(message)

    async def rehome(self, message: ChatMessage) -> None:
        """From a dead instance's inbox. Messages are in the archive, or will be; notices follow their users.

        A user whose owner key names an instance without presence is not connected: in the inbox of the dead instance
        its notice would come back to us.
        """
        if isinstance(message, ChatNotices):
            owners = await self.delivery.look_up(list({one.user for one in message.notices}))
            instances = {owner.partition("|")[0] for owner in owners.values()}
            living = {name for name in instances if await self._instances.is_present(name)}
            connected = {user: owner for user, owner in owners.items() if owner.partition("|")[0] in living}
            await self.delivery.notify([_notice(one) for one in message.notices], connected)


def _translation_settings(config: Config) -> TranslationSettings:
    asked = config.chat.translate
    return TranslationSettings(
        asked.timeout_ms, asked.per_minute, asked.max_waiting, asked.max_jobs, asked.max_units
    )  # fmt: skip


def _notice(one: UserNotice) -> SenderNotice:
    return SenderNotice(one.user, bytes(one.frame), one.ended, one.keep, one.saved)
