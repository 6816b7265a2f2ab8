"""A whole instance in this very process, on a real Redis, with nodes and listeners that are plain objects.

Its loops run and its inbox is read; tests reach into its services. Nodes are registered as the gateway would do it,
their socket being a list of what was sent; what they answer is decided by the test.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

import pytest

from dragoman.domain.job import Outcome, State
from dragoman.domain.job_signals import End, PlacementResult
from dragoman.domain.placement import NoNode, Turn
from dragoman.instance.instance import Instance
from dragoman.protocol import ids
from dragoman.protocol.audio import SILENCE_PACKET, encode_base64, opus_run
from dragoman.protocol.codec import decode_node, encode, raw
from dragoman.protocol.codes import ErrorCode, TextKind
from dragoman.protocol.node import (
    Capability,
    Hardware,
    InstalledService,
    JobAck,
    JobAssign,
    JobError,
    JobResult,
    JobStarted,
    LanguageCapabilities,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
    PreviewRefused,
    ResourceUsage,
)
from dragoman.protocol.session import Pipeline
from dragoman.services.speech.job_placement import JobPlacement
from dragoman.services.speech.job_request import JobRequest, TurnQueue
from dragoman.services.speech.local_nodes import LocalNode
from dragoman.services.speech.messages import needs_of
from dragoman.services.speech.text_jobs import TextRequest
from support.cluster import config
from support.redis_servers import RedisAt
from support.waiting import wait_until

OpenInstance = Callable[..., Awaitable["InProcessInstance"]]
TIMEOUT_S = 60.0
LEASE = "scheduler__phase2__instance_presence_ttl_seconds"
# A busy machine must not let it lapse. A test of lapses asks for a shorter one.
LEASE_S = 12
OUR_FEATURES = ("job_ack", "resume", "reattempt", "drain")
KINDS = ("asr", "nmt", "tts", "semantic")
SERVICES = [InstalledService(f"{kind}-service", kind) for kind in KINDS]

_numbers = count(1)


class RecordingSocket:
    """A socket that records what is sent."""

    def __init__(self, heard: Callable[[dict[str, Any]], None] = lambda message: None) -> None:
        self.id = next(_numbers)
        self.peer = ("127.0.0.1", 1)
        self.closed = False
        self.buffered = 0
        self.code: int | None = None
        self.sent: list[dict[str, Any]] = []
        self._heard = heard

    def listen(self, heard: Callable[[dict[str, Any]], None]) -> None:
        """Call it with each message from now on."""
        self._heard = heard

    def send(self, data: bytes | str) -> None:
        message = json.loads(data)
        self.sent.append(message)
        self._heard(message)

    def frame(self, data: bytes) -> bytes:
        return data

    def send_frame(self, frame: bytes) -> None:
        self.send(frame)

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None:
        self.closed, self.code = True, int(code)

    def of(self, type: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == type]


class InProcessNode:
    """A node that an in-process instance holds the socket of. It answers only if `working`, or when a test calls it."""

    def __init__(self, instance: "InProcessInstance", working: bool) -> None:
        self.instance, self.working = instance, working
        self.socket = RecordingSocket(self._heard)
        self.local: LocalNode

    @property
    def id(self) -> str:
        return self.local.id

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """What it was given, in order."""
        return self.socket.of("job_assign")

    @property
    def cancelled(self) -> list[str]:
        return [message["job_id"] for message in self.socket.of("job_cancel")]

    def ack(self, job: dict[str, Any], **fields: Any) -> None:
        self.say(JobAck(**self._about(job) | fields))

    def start(self, job: dict[str, Any], **fields: Any) -> None:
        self.say(JobStarted(**self._about(job) | fields))

    def partial(self, job: dict[str, Any], text: str = "…") -> None:
        about = self._about(job)
        del about["attempt_id"]
        self.say(NodePartial(utterance_index=job["utterance_index"], text=text, is_final=False, **about))

    def answer(self, job: dict[str, Any], **fields: Any) -> None:
        said = {"utterance_index": job["utterance_index"], "success": True, "text_asr": "heard", "text_translated": "t"}
        self.say(JobResult(**self._about(job) | said | fields))

    @property
    def previews(self) -> list[str]:
        """The previews that it was sent, in order."""
        return [message["preview_id"] for message in self.socket.of("preview_open")]

    def preview(self, preview_id: str, text: str) -> None:
        """Words of a preview."""
        about = {"preview_id": preview_id, "node_id": self.id, "session_id": "s", "trace_id": "t"}
        partial = NodePartial(utterance_index=0, text=text, is_final=False, **about)
        self.instance.services.node_previews.on_partial(self.local, partial)

    def refuse(self, preview_id: str, reason: str = "busy") -> None:
        self.instance.services.node_previews.on_refused(self.local, PreviewRefused(preview_id, reason))

    def previewed(self, preview_id: str) -> bytes:
        """The audio that it got."""
        pieces = [one["audio"] for one in self.socket.of("preview_audio") if one["preview_id"] == preview_id]
        return b"".join(map(base64.b64decode, pieces))

    def say(self, message: JobAck | JobStarted | NodePartial | JobResult) -> None:
        frame = encode(message)
        decoded = decode_node(frame)
        assert isinstance(decoded, JobAck | JobStarted | NodePartial | JobResult)
        self.instance.services.local_nodes.on_job_message(self.local, decoded, frame)

    async def beat(self, running: int = 0) -> None:
        usage = ResourceUsage(0.0, 0.0, running)
        heartbeat = NodeHeartbeat(self.id, 1, usage, installed_services=SERVICES)
        await self.instance.services.local_nodes.heartbeat(self.local, heartbeat)

    def disconnect(self) -> None:
        """Its socket is gone."""
        self.socket.closed = True
        self.instance.services.local_nodes.closed(self.local)

    def _about(self, job: dict[str, Any]) -> dict[str, Any]:
        names = ("job_id", "attempt_id", "session_id", "trace_id")
        return {name: job[name] for name in names} | {"node_id": self.id}

    def _heard(self, message: dict[str, Any]) -> None:
        if self.working and message["type"] == "job_assign":
            self.answer(message)


@dataclass
class RecordingListener:
    """A listener that records the ends of its jobs."""

    ends: dict[int, End] = field(default_factory=dict)
    order_of_ends: list[int] = field(default_factory=list)
    dispatched: list[tuple[int, str]] = field(default_factory=list)
    waits: list[NoNode] = field(default_factory=list)
    partials: list[str] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    def job_waits(self, job_request: JobRequest, why: NoNode) -> None:
        self.waits.append(why)

    def job_dispatched(self, job_request: JobRequest, node_id: str, attempt: int) -> None:
        self.dispatched.append((job_request.index, node_id))

    def job_accepted(self, job_request: JobRequest) -> None:
        self.taken.append(job_request.index)

    def job_partial(self, job_request: JobRequest, partial: NodePartial) -> None:
        self.partials.append(partial.text)

    def job_moved(self, job_request: JobRequest) -> None:
        self.moved.append(job_request.index)

    def job_ended(self, job_request: JobRequest, end: End) -> None:
        assert job_request.index not in self.ends, "notified twice"
        self.ends[job_request.index] = end
        self.order_of_ends.append(job_request.index)


class InProcessInstance:
    def __init__(self, instance: Instance) -> None:
        self.instance, self.services, self.stores = instance, instance.services, instance.stores
        self.keys, self.redis = instance.stores.keys, instance.redis

    @classmethod
    async def open(cls, redis: RedisAt, prefix: str, name: str, **flags: object) -> "InProcessInstance":
        settings = {"server__port": 0, "scheduler__phase2__instance_id": name, LEASE: LEASE_S, **flags}
        return cls(await Instance.start(config(redis, prefix, **settings)))

    async def close(self) -> None:
        await self.instance.stop()

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.instance.ports.listener.port}"

    async def node(
        self,
        id: str,
        *,
        slots: int = 4,
        languages: Iterable[str] = ("en", "es"),
        features: Iterable[str] = OUR_FEATURES,
        kinds: Iterable[str] = KINDS,
        text: Iterable[tuple[str, str]] = (),
        previews: int = 0,
        working: bool = False,
    ) -> InProcessNode:
        node = InProcessNode(self, working)
        spoken = list(languages)
        register = NodeRegister(
            version="1",
            capability_schema_version="2.0",
            platform="linux",
            hardware=Hardware(1, 1.0),
            installed_models=[],
            installed_services=SERVICES,
            capability_by_type=[Capability(kind, True) for kind in kinds],
            features_supported=encode_base64(b""),
            accept_public_jobs=True,
            node_id=id,
            advanced_features=[*features, f"slots:{slots}", *(["preview", f"previews:{previews}"] if previews else [])],
            language_capabilities=LanguageCapabilities(spoken, spoken, spoken),
            text_pairs=list(text),
        )
        node.local = await self.services.local_nodes.register(node.socket, register)
        await node.beat()
        return node

    async def text_node(self, id: str, *pairs: str, **options: Any) -> InProcessNode:
        """A node that only translates text; pairs as in `en-es`."""
        found = [(src, tgt) for src, _, tgt in (pair.partition("-") for pair in pairs)]
        features = (*OUR_FEATURES, "text_jobs")
        told = {"languages": (), "features": features, "kinds": ("nmt",), "text": found} | options
        return await self.node(id, **told)

    def knows(self, *nodes: str) -> bool:
        return all(node in self.services.view.fleet for node in nodes)

    def count(self, name: str, **labels: str) -> float:
        return self.services.metrics.registry.get_sample_value(name, labels) or 0.0

    async def job(self, id: str) -> dict[str, str]:
        return await self.stores.jobs.get(id) or {}

    async def released(self, id: str) -> dict[str, str]:
        """The job's record once its slot went back; empty before."""
        record = await self.job(id)
        return record if record.get("state") == State.RELEASED else {}

    async def reserved(self, node: str) -> int:
        return int(await self.redis.call("ZCARD", self.keys.reserved(node)))

    async def driven(self) -> int:
        return int(await self.redis.call("ZCARD", self.keys.jobs_of(self.name)))


class Undriven(JobPlacement):
    """The placement of a request that has no driver."""

    def __init__(self, instance: InProcessInstance, request: JobRequest) -> None:
        super().__init__(instance.services.placer, request)

    async def find_node(self) -> PlacementResult:
        return await self.place(self)

    def is_wanted(self) -> bool:
        return True

    def waits(self, why: NoNode) -> None:
        self._request.listener.job_waits(self._request, why)

    def prepare(self) -> None: ...


async def place(instance: InProcessInstance, request: JobRequest) -> PlacementResult:
    """Find the first node of a request that has no driver."""
    return await Undriven(instance, request).find_node()


def job_request(
    session: str = "s-1",
    index: int = 0,
    *,
    tgt: str = "es",
    turn_queue: TurnQueue | None = None,
    ends_turn: bool = True,
    listener: RecordingListener | None = None,
) -> JobRequest:
    """One utterance as a session orders it."""
    turn_queue = turn_queue or TurnQueue(Turn(ids.turn_id()))
    assignment = JobAssign(
        job_id=ids.job_id(),
        attempt_id=1,
        session_id=session,
        utterance_index=index,
        src_lang="en",
        tgt_lang=tgt,
        pipeline=Pipeline(use_asr=True, use_nmt=True, use_tts=True),
        audio=encode_base64(opus_run([SILENCE_PACKET])),
        audio_format="opus",
        sample_rate=16000,
        trace_id=ids.trace_id(),
        turn_id=turn_queue.turn.id,
        is_manual_cut=ends_turn,
        is_max_duration_triggered=not ends_turn,
    )
    return JobRequest(
        job_id=assignment.job_id,
        request_id=ids.request_id(session, index, tgt),
        listener=listener or RecordingListener(),
        assignment=assignment,
        cut_at=monotonic(),
        turn_queue=turn_queue,
        position=turn_queue.join(),
        ends_turn=ends_turn,
        may_park=not ends_turn,
        needs=needs_of(assignment.pipeline),
    )


OLD: tuple[str, ...] = ()
ACKING = ("job_ack",)
# Short enough to be waited for, long enough for a busy machine to answer in.
QUICK = {"speech__job_ack_timeout_ms": 300, "speech__attempt_timeout_ms": 1500, "speech__job_timeout_ms": 5000}

# Whoever is to be taken for dead must not say just then that it lives.
SELDOM_RENEWED = {
    LEASE: 300,
    "scheduler__phase2__owner_ttl_seconds": 600,
    "speech__reservation_ttl_ms": 600_000,
}


def out_of_time(ms: int) -> dict[str, int]:
    """Every time-out of a job at once."""
    names = ("job_ack_timeout_ms", "attempt_timeout_ms", "job_timeout_ms")
    return {f"speech__{name}": ms for name in names} | {"speech__placement_wait_ms": ms - 1}


@dataclass
class TextAsker:
    """What asked for text jobs, and the ends of its jobs by request."""

    ends: dict[str, End] = field(default_factory=dict)

    def ask(self, instance: InProcessInstance, **changed: Any) -> str:
        """The id of the job."""
        usual: dict[str, Any] = {
            "request_id": ids.trace_id(), "asker": "room-1", "kind": TextKind.ROOM, "text": "Good morning.",
            "src_lang": "en", "tgt_lang": "es", "timeout_ms": 600_000,
        }  # fmt: skip
        return instance.services.text_jobs.translate(TextRequest(**usual | changed), self._ended)

    async def end(self, number: int = 1) -> End:
        await wait_until(lambda: len(self.ends) >= number, TIMEOUT_S)
        return list(self.ends.values())[number - 1]

    def _ended(self, request: TextRequest, end: End) -> None:
        assert request.request_id not in self.ends, "notified twice"
        self.ends[request.request_id] = end


async def given(node: InProcessNode, number: int = 1) -> dict[str, object]:
    """The job a node was given last, once it has had `number` of them."""
    await wait_until(lambda: len(node.jobs) >= number, TIMEOUT_S)
    return node.jobs[number - 1]


async def end_of(listener: RecordingListener, index: int = 0) -> Outcome:
    await wait_until(lambda: index in listener.ends, TIMEOUT_S)
    return listener.ends[index].outcome


async def in_state(instance: InProcessInstance, job: JobRequest, state: State) -> bool:
    return (await instance.job(job.job_id))["state"] == state


def missing_model(service: str = "nmt-service") -> JobError:
    details = {"service_id": service, "service_version": "1", "reason": "not_loaded"}
    return JobError(ErrorCode.MODEL_NOT_AVAILABLE, "The model is not loaded.", raw(details))


async def start(
    instance: InProcessInstance, first: InProcessNode, **about: object
) -> tuple[JobRequest, RecordingListener]:
    """A job that is on `first`, which is alone in the fleet until then."""
    listener = RecordingListener()
    mine = job_request(listener=listener, **about)  # type: ignore[arg-type]  # keywords of `order`
    instance.services.dispatcher.take(mine)
    await given(first)
    return mine, listener


@pytest.fixture
def open_instance(runner: asyncio.Runner, redis_at: RedisAt, prefix: str) -> Iterator[OpenInstance]:
    """Starts instances in this process under the prefix of the test, and closes them afterwards; for a conftest."""
    opened: list[InProcessInstance] = []

    async def open_one(name: str = "a", **flags: object) -> InProcessInstance:
        one = await InProcessInstance.open(redis_at, prefix, name, **flags)
        opened.append(one)
        return one

    async def close_all() -> None:
        for one in reversed(opened):
            await one.close()

    yield open_one
    runner.run(close_all())
