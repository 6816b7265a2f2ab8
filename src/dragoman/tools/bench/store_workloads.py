"""What the callers of `bench store` do; the same code for our client and for a peer.

Answers are checked: a client that is fast at being refused is not fast.
"""

from time import perf_counter

from dragoman.store.instances import RENEW_IF_EQUAL
from dragoman.store.reservations import RELEASE_SLOT, RESERVE_SLOT
from dragoman.tools.bench.errors import BenchError
from dragoman.tools.bench.job_life import NODES, RESERVATION_TTL_MS, SLOTS
from dragoman.tools.bench.load import Going
from dragoman.tools.bench.ping import latency
from dragoman.tools.bench.redis_py import Client
from dragoman.tools.bench.rounds import Quantities

SCRIPTS = (RENEW_IF_EQUAL, RESERVE_SLOT, RELEASE_SLOT)
VALUE = b"x" * 64
OWNER_TTL_MS = 45_000


async def commands(client: Client, caller: int, going: Going) -> int:
    """SET and GET by turns."""
    key, calls = f"bench:command:{caller}", 0
    while going.on or not calls:
        await client.call("SET", key, VALUE)
        if await client.call("GET", key) != VALUE:
            raise BenchError(f"GET {key} did not answer what had been SET.")
        calls += 2
    return calls


async def scripts(client: Client, caller: int, going: Going) -> int:
    """A small script: an owner key renewed while it is ours."""
    key, owner, calls = f"bench:owner:{caller}", f"instance-{caller}", 0
    await client.call("SET", key, owner)
    while going.on or not calls:
        if await RENEW_IF_EQUAL(client, key=key, value=owner, ttl=OWNER_TTL_MS) != b"OK":
            raise BenchError(f"{key} was not renewed.")
        calls += 1
    return calls


async def reserves(client: Client, caller: int, going: Going) -> int:
    """Two larger scripts: a slot of a node taken and given back."""
    key, job, calls = f"bench:{{node:{caller % NODES}}}:reserved", f"job-{caller}", 0
    while going.on or not calls:
        if await RESERVE_SLOT(client, reserved=key, job=job, ttl=RESERVATION_TTL_MS, limit=SLOTS) != b"OK":
            raise BenchError(f"No slot of {key} was given.")
        if await RELEASE_SLOT(client, reserved=key, job=job, limit=SLOTS) != b"OK":
            raise BenchError(f"No slot of {key} was taken back.")
        calls += 2
    return calls


async def one_by_one(client: Client, seconds: float) -> Quantities:
    """One caller, one GET at a time, each timed."""
    key, taken_s = "bench:call", list[float]()
    await client.call("SET", key, VALUE)
    until = perf_counter() + seconds
    while (asked := perf_counter()) < until or not taken_s:
        await client.call("GET", key)
        taken_s.append(perf_counter() - asked)
    return latency(taken_s)
