"""Words that tests of driven jobs share: a job on a node, what became of it, times short enough to be waited for."""

from dragoman.domain.job import Outcome, State
from dragoman.protocol.codec import raw
from dragoman.protocol.codes import ErrorCode
from dragoman.protocol.node import JobError
from dragoman.services.speech.order import Order
from integration.speech.house import PATIENCE_S, Ear, House, WiredNode, order
from waiting import wait_until

OLD: tuple[str, ...] = ()
ACKING = ("job_ack",)
# Short enough to be waited for, long enough for a busy machine to answer in.
QUICK = {"speech__job_ack_timeout_ms": 300, "speech__attempt_timeout_ms": 1500, "speech__job_timeout_ms": 5000}

# Whoever is to be taken for dead must not say just then that it lives.
SELDOM_RENEWED = {
    "scheduler__phase2__instance_presence_ttl_seconds": 300,
    "scheduler__phase2__owner_ttl_seconds": 600,
    "speech__reservation_ttl_ms": 600_000,
}


def out_of_time(ms: int) -> dict[str, int]:
    """Every time-out of a job at once."""
    names = ("job_ack_timeout_ms", "attempt_timeout_ms", "job_timeout_ms")
    return {f"speech__{name}": ms for name in names} | {"speech__placement_wait_ms": ms - 1}


async def given(node: WiredNode, number: int = 1) -> dict[str, object]:
    """The job a node was given last, once it has had `number` of them."""
    await wait_until(lambda: len(node.jobs) >= number, PATIENCE_S)
    return node.jobs[number - 1]


async def end_of(ear: Ear, index: int = 0) -> Outcome:
    await wait_until(lambda: index in ear.ends, PATIENCE_S)
    return ear.ends[index].outcome


async def in_state(house: House, job: Order, state: State) -> bool:
    return (await house.job(job.job_id))["state"] == state


def missing_model(service: str = "nmt-service") -> JobError:
    details = {"service_id": service, "service_version": "1", "reason": "not_loaded"}
    return JobError(ErrorCode.MODEL_NOT_AVAILABLE, "The model is not loaded.", raw(details))


async def start(house: House, first: WiredNode, **about: object) -> tuple[Order, Ear]:
    """A job that is on `first`, which is alone in the fleet until then."""
    ear = Ear()
    mine = order(ear=ear, **about)  # type: ignore[arg-type]  # keywords of `order`
    house.services.dispatcher.take(mine)
    await given(first)
    return mine, ear
