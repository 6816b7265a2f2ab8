"""Sessions by the thousand, and a session with many open utterances: a client has its share, the others keep theirs."""

from collections import Counter
from contextlib import AsyncExitStack
from uuid import uuid4

from dragoman.tools.bench.abuse.attack import Answers, Attack, good
from dragoman.tools.bench.abuse.messages import beat, utterance
from dragoman.tools.bench.abuse.scene import Scene
from dragoman.tools.bench.abuse.wire import HONEST, Wire, websocket

OF_ONE_CONNECTION = 64
CONNECTIONS = 17  # so many that one client wants more sessions than it may have
BATCH = 32
BATCHES = 6


async def left_sessions(scene: Scene) -> Answers:
    """Sessions that can be resumed, and sessions that say they are a gateway's, on connections that are then cut."""
    seen: Answers = Counter()
    for platform, resume in (("web", True), ("api-gateway", False)):
        token = scene.token(sub=f"eve-{uuid4().hex[:8]}")
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                wire = await stack.enter_async_context(websocket(scene.port, "/ws/session"))
                for _ in range(OF_ONE_CONNECTION):
                    await wire.say(scene.init(platform=platform, resume=resume, token=token))
                seen += await _answers(wire, OF_ONE_CONNECTION)
                seen[await wire.lives()] += 1
    async with scene.session(source=HONEST, token=scene.token(sub="ann")) as (wire, _):
        seen[await wire.lives()] += 1
    return seen


async def _answers(wire: Wire, count: int) -> Answers:
    told = [await wire.until("session_init_ack", "error") for _ in range(count)]
    return Counter(str(one.get("code", one["type"])) for one in told)


async def open_utterances(scene: Scene) -> Answers:
    """One session that can be resumed says more than any node can answer."""
    seen: Answers = Counter()
    async with scene.session(resume=True) as (wire, session):
        for batch in range(BATCHES):
            for index in range(batch * BATCH, (batch + 1) * BATCH):
                await wire.say(utterance(session, index))
            await wire.say(beat(session))
            while (told := await wire.until("error", "backpressure", "server_heartbeat"))["type"] != "server_heartbeat":
                seen[str(told.get("action", told.get("code")))] += 1
                if told["type"] == "closed":
                    return seen
        seen[await wire.lives()] += 1
    return seen


ATTACKS = (
    Attack(
        "left_sessions",
        "sessions of one client on connections that are cut",
        left_sessions,
        good("session_init_ack", "LIMIT_EXCEEDED", "lives on"),
    ),
    Attack(
        "open_utterances",
        "utterances that nobody can answer",
        open_utterances,
        good("PAUSE", "LIMIT_EXCEEDED", "lives on"),
        good("NO_AVAILABLE_NODE"),
    ),
)
