"""Sessions and jobs of the whole cluster, a page at a time, for people who look.

A session that cannot resume has left little in Redis: its owner and its turn. Of the others the release window is
there as well: up to where everything is settled, what is settled above that, and which jobs are still open.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dragoman.protocol import ids
from dragoman.store.instances import Instances
from dragoman.store.jobs import Jobs
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.sessions import EXPECTED, open_of, window_of
from dragoman.store.turns import AFFINITY, CURRENT

LOOKED_AT: Final = 2000  # jobs, in one answer: a filter that few pass must not read all of them at once


class Register:
    def __init__(self, redis: Redis, keys: Keys, instances: Instances, jobs: Jobs) -> None:
        self._redis, self._keys, self._instances, self._jobs = redis, keys, instances, jobs

    # -- jobs ------------------------------------------------------------------------------------

    async def jobs(
        self, count: int, before: str = "", wanted: Mapping[str, str] | None = None, since_ms: int = 0
    ) -> dict[str, Any]:
        """The newest first; `next` is where it goes on, also when nothing was found on the way there."""
        found: list[dict[str, str]] = []
        looked, place = 0, ""
        async for place, job in self._jobs.recent(before, since_ms):
            looked += 1
            if _is(job, wanted or {}):
                found.append(job)
            if len(found) == count or looked == LOOKED_AT:
                return {"jobs": found, "next": place}
        return {"jobs": found, "next": ""}

    # -- sessions --------------------------------------------------------------------------------

    async def sessions(self, count: int, after: str = "", part: str = "") -> dict[str, Any]:
        """By id; also those that nobody owns for the moment."""
        ids = await self._session_ids()
        found = [id for id in ids if id > after and part in id]
        shown = found[:count]
        rows = await asyncio.gather(*(self._session(id) for id in shown))
        return {"sessions": rows, "count": len(ids), "next": shown[-1] if len(found) > count else ""}

    async def _session_ids(self) -> list[str]:
        redis, keys = self._redis, self._keys
        sets = [redis.call("SMEMBERS", keys.sessions_of(name)) for name in await self._instances.all()]
        grace = await redis.call("ZRANGE", keys.sessions_grace, 0, -1)
        ids = {id.decode() for members in await asyncio.gather(*sets) for id in members}
        return sorted(ids | {member.decode().rpartition("|")[0] for member in grace})

    async def _session(self, id: str) -> dict[str, Any]:
        redis, keys = self._redis, self._keys
        owner, state, turn, parked = await asyncio.gather(
            redis.call("GET", keys.session_owner(id)),
            redis.call("HGETALL", keys.session_state(id)),
            redis.call("HGET", keys.session_turn(id), CURRENT),
            redis.call("LLEN", keys.session_parked(id)),
        )
        node = await redis.call("HGET", keys.turn(turn.decode()), AFFINITY) if turn is not None else None
        told = {name.decode(): value.decode() for name, value in zip(state[::2], state[1::2], strict=True)}
        return {
            "session_id": id,
            "owner": _text(owner),
            "turn_id": _text(turn),
            "turn_node": _text(node),
            "resumable": "epoch" in told,
            **_languages(told.get("init", "")),
            "subject": told.get("subject", ""),
            "tenant": ids.tenant_of(told.get("subject", "")),
            "next_index": int(told["next_index"]) if told.get("next_index", "").isdecimal() else None,
            "release": _release(told),
            "parked": parked,
        }


def _is(job: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """`outcome` may also be `open`: it has not ended."""
    for name, value in wanted.items():
        have = job.get(name, "") or ("open" if name == "outcome" else "")
        if value and have != value:
            return False
    return True


def _languages(init: str) -> dict[str, str]:
    """What the client asked for when it opened the session."""
    try:
        asked = msgspec.json.decode(init or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        asked = {}
    return {name: str(asked.get(name) or "") for name in ("src_lang", "tgt_lang", "mode", "lang_a", "lang_b")}


def _release(told: Mapping[str, str]) -> dict[str, Any] | None:
    """Everything below `expected` is settled; `settled`: how what is above it was; `open`: for which job one waits."""
    if EXPECTED not in told:
        return None
    expected, settled = window_of(told)
    return {"expected": expected, "settled": settled, "open": {index: job for index, (job, _) in open_of(told).items()}}


def _text(value: bytes | None) -> str:
    return value.decode() if value is not None else ""
