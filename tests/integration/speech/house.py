"""A whole instance in this very process, on a real Redis, with nodes and listeners that are plain objects.

Its loops run and its inbox is read; tests reach into its services. Nodes are registered as the gateway would do it,
their socket being a list of what was sent; what they answer is decided by the test.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

from dragoman.domain.job import State
from dragoman.domain.placement import Assign, NoNode, Wait
from dragoman.domain.turn import Turn
from dragoman.instance.instance import Instance
from dragoman.protocol import ids
from dragoman.protocol.audio import SILENCE_PACKET, encode_base64, opus_run
from dragoman.protocol.codec import decode_node, encode
from dragoman.protocol.node import (
    Capability,
    Hardware,
    InstalledService,
    JobAck,
    JobAssign,
    JobResult,
    JobStarted,
    LanguageCapabilities,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
    ResourceUsage,
)
from dragoman.protocol.session import Pipeline
from dragoman.services.speech.local_nodes import LocalNode
from dragoman.services.speech.messages import needs_of
from dragoman.services.speech.order import End, Order, TurnLine
from dragoman.services.speech.placing import Ended, Exists, Placing, RedisDown
from instances import config
from redis_servers import RedisAt

Open = Callable[..., Awaitable["House"]]
PATIENCE_S = 60.0
OUR_FEATURES = ("job_ack", "resume", "reattempt", "drain")
KINDS = ("asr", "nmt", "tts", "semantic")
SERVICES = [InstalledService(f"{kind}-service", kind) for kind in KINDS]

_numbers = count(1)


class Wire:
    """A socket that keeps what is sent."""

    def __init__(self, heard: Callable[[dict[str, Any]], None] = lambda message: None) -> None:
        self.id = next(_numbers)
        self.peer = ("127.0.0.1", 1)
        self.closed = False
        self.code: int | None = None
        self.sent: list[dict[str, Any]] = []
        self._heard = heard

    def send(self, data: bytes | str) -> None:
        message = json.loads(data)
        self.sent.append(message)
        self._heard(message)

    def flush(self) -> None: ...

    def close(self, code: int, reason: str = "") -> None:
        self.closed, self.code = True, int(code)

    def of(self, type: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == type]


class WiredNode:
    """A node whose socket is held by a house. It answers nothing unless `working`, or told to."""

    def __init__(self, house: "House", working: bool) -> None:
        self.house, self.working = house, working
        self.wire = Wire(self._heard)
        self.local: LocalNode

    @property
    def id(self) -> str:
        return self.local.id

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """What it was given, in order."""
        return self.wire.of("job_assign")

    @property
    def cancelled(self) -> list[str]:
        return [message["job_id"] for message in self.wire.of("job_cancel")]

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

    def say(self, message: JobAck | JobStarted | NodePartial | JobResult) -> None:
        frame = encode(message)
        decoded = decode_node(frame)
        assert isinstance(decoded, JobAck | JobStarted | NodePartial | JobResult)
        self.house.services.local_nodes.said(self.local, decoded, frame)

    async def beat(self, running: int = 0) -> None:
        usage = ResourceUsage(0.0, 0.0, running)
        heartbeat = NodeHeartbeat(self.id, 1, usage, installed_services=SERVICES)
        await self.house.services.local_nodes.heartbeat(self.local, heartbeat)

    def hang_up(self) -> None:
        """Its socket is gone."""
        self.wire.closed = True
        self.house.services.local_nodes.closed(self.local)

    def _about(self, job: dict[str, Any]) -> dict[str, Any]:
        names = ("job_id", "attempt_id", "session_id", "trace_id")
        return {name: job[name] for name in names} | {"node_id": self.id}

    def _heard(self, message: dict[str, Any]) -> None:
        if self.working and message["type"] == "job_assign":
            self.answer(message)


@dataclass
class Ear:
    """A listener that remembers what became of its orders."""

    ends: dict[int, End] = field(default_factory=dict)
    order_of_ends: list[int] = field(default_factory=list)
    dispatched: list[tuple[int, str]] = field(default_factory=list)
    waits: list[NoNode] = field(default_factory=list)
    partials: list[str] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)

    def job_waits(self, order: Order, why: NoNode) -> None:
        self.waits.append(why)

    def job_dispatched(self, order: Order, node_id: str) -> None:
        self.dispatched.append((order.index, node_id))

    def job_taken(self, order: Order) -> None:
        self.taken.append(order.index)

    def job_partial(self, order: Order, partial: NodePartial) -> None:
        self.partials.append(partial.text)

    def job_moved(self, order: Order) -> None:
        self.moved.append(order.index)

    def job_ended(self, order: Order, end: End) -> None:
        assert order.index not in self.ends, "told twice"
        self.ends[order.index] = end
        self.order_of_ends.append(order.index)


class House:
    def __init__(self, instance: Instance) -> None:
        self.instance, self.services, self.stores = instance, instance.services, instance.stores
        self.keys, self.redis = instance.stores.keys, instance.redis

    @classmethod
    async def open(cls, redis: RedisAt, prefix: str, name: str, **flags: object) -> "House":
        settings = {"server__port": 0, "scheduler__phase2__instance_id": name, **flags}
        return cls(await Instance.start(config(redis, prefix, **settings)))

    async def close(self) -> None:
        await self.instance.stop()

    @property
    def name(self) -> str:
        return self.instance.name

    async def node(
        self,
        id: str,
        *,
        slots: int = 4,
        languages: Iterable[str] = ("en", "es"),
        features: Iterable[str] = OUR_FEATURES,
        kinds: Iterable[str] = KINDS,
        working: bool = False,
    ) -> WiredNode:
        node = WiredNode(self, working)
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
            advanced_features=[*features, f"slots:{slots}"],
            language_capabilities=LanguageCapabilities(spoken, spoken, spoken),
        )
        node.local = await self.services.local_nodes.register(node.wire, register)
        await node.beat()
        return node

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


async def place(house: House, order: Order) -> Assign | Wait | Exists | Ended | RedisDown:
    """Find its first node for an order that nobody drives."""
    return await Placing(house.services.placer, order).place()


def order(
    session: str = "s-1",
    index: int = 0,
    *,
    tgt: str = "es",
    line: TurnLine | None = None,
    ends_turn: bool = True,
    ear: Ear | None = None,
) -> Order:
    """One utterance as a session orders it."""
    line = line or TurnLine(Turn(ids.turn_id()))
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
        turn_id=line.turn.id,
        is_manual_cut=ends_turn,
        is_max_duration_triggered=not ends_turn,
    )
    return Order(
        job_id=assignment.job_id,
        request_id=ids.request_id(session, index, tgt),
        listener=ear or Ear(),
        assignment=assignment,
        cut_at=monotonic(),
        line=line,
        place=line.join(),
        ends_turn=ends_turn,
        held_by_node=not ends_turn,
        needs=needs_of(assignment.pipeline),
    )
