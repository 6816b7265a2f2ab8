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
from dragoman.store.owners import Owners
from dragoman.store.sessions import EXPECTED, ResumableSessions, open_of, window_of
from dragoman.store.turns import Turns

LOOKED_AT: Final = 2000  # jobs, in one answer: a filter that few pass must not read all of them at once


class Register:
    def __init__(
        self, instances: Instances, jobs: Jobs, sessions: ResumableSessions, owners: Owners, turns: Turns
    ) -> None:
        self._instances, self._jobs, self._sessions = instances, jobs, sessions
        self._owners, self._turns = owners, turns

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
        owned = await asyncio.gather(*(self._instances.sessions_of(name) for name in await self._instances.all()))
        return sorted({id for ids in owned for id in ids} | await self._sessions.in_grace())

    async def _session(self, id: str) -> dict[str, Any]:
        owner, told, turn, parked = await asyncio.gather(
            self._owners.session_owner(id),
            self._sessions.state(id),
            self._turns.current(id),
            self._sessions.parked_count(id),
        )
        node = await self._turns.node_of(turn) if turn is not None else None
        return {
            "session_id": id,
            "owner": owner or "",
            "turn_id": turn or "",
            "turn_node": node or "",
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
