"""Lists the sessions and jobs of the whole cluster for operators, one page at a time.

Of a session that cannot resume, Redis has only the owner and the turn. Of the others it also has the release window:
the lowest open index, what is settled above it, and the open jobs.
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

MAX_READ: Final = 2000  # jobs per page: a filter that few jobs match must not read all of them


class Listings:
    def __init__(
        self, instances: Instances, jobs: Jobs, sessions: ResumableSessions, owners: Owners, turns: Turns
    ) -> None:
        self._instances, self._jobs, self._sessions = instances, jobs, sessions
        self._owners, self._turns = owners, turns

    # -- jobs ------------------------------------------------------------------------------------

    async def jobs(
        self, count: int, before: str = "", wanted: Mapping[str, str] | None = None, since_ms: int = 0
    ) -> dict[str, Any]:
        """The newest first. `next` is the `before` of the next page; it may be set although no job matched."""
        found: list[dict[str, str]] = []
        read, position = 0, ""
        async for position, job in self._jobs.recent(before, since_ms):
            read += 1
            if _matches(job, wanted or {}):
                found.append(job)
            if len(found) == count or read == MAX_READ:
                return {"jobs": found, "next": position}
        return {"jobs": found, "next": ""}

    # -- sessions --------------------------------------------------------------------------------

    async def sessions(self, count: int, after: str = "", part: str = "") -> dict[str, Any]:
        """By id; also sessions without an owner."""
        ids = await self._session_ids()
        found = [id for id in ids if id > after and part in id]
        shown = found[:count]
        rows = await asyncio.gather(*(self._session(id) for id in shown))
        return {"sessions": rows, "count": len(ids), "next": shown[-1] if len(found) > count else ""}

    async def _session_ids(self) -> list[str]:
        owned = await asyncio.gather(*(self._instances.sessions_of(name) for name in await self._instances.all()))
        return sorted({id for ids in owned for id in ids} | await self._sessions.in_grace())

    async def _session(self, id: str) -> dict[str, Any]:
        owner, state, turn, parked = await asyncio.gather(
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
            "resumable": "epoch" in state,
            **_languages(state.get("init", "")),
            "subject": state.get("subject", ""),
            "tenant": ids.tenant_of(state.get("subject", "")),
            "next_index": int(state["next_index"]) if state.get("next_index", "").isdecimal() else None,
            "release": _release(state),
            "parked": parked,
        }


def _matches(job: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """`outcome` may also be `open`: the job has not ended."""
    for name, value in wanted.items():
        have = job.get(name, "") or ("open" if name == "outcome" else "")
        if value and have != value:
            return False
    return True


def _languages(init: str) -> dict[str, str]:
    """The languages with which the client opened the session."""
    try:
        asked = msgspec.json.decode(init or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        asked = {}
    return {name: str(asked.get(name) or "") for name in ("src_lang", "tgt_lang", "mode", "lang_a", "lang_b")}


def _release(state: Mapping[str, str]) -> dict[str, Any] | None:
    """Everything below `expected` is settled. `settled`: the indexes above it; `open`: the jobs of open indexes."""
    if EXPECTED not in state:
        return None
    expected, settled = window_of(state)
    return {
        "expected": expected,
        "settled": settled,
        "open": {index: job for index, (job, _) in open_of(state).items()},
    }
