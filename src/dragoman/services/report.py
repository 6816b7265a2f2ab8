"""The state of the whole cluster, and lists of what is in it, for operators; read from Redis by any instance."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from dragoman.domain.fleet import Fleet, Node
from dragoman.domain.rooms import AUTO, Member, about_of
from dragoman.protocol import ids
from dragoman.services.operations import DeadLetters
from dragoman.services.rooms.local_room import WHY_OVER
from dragoman.store.inbox import Inboxes
from dragoman.store.instances import Instances, Owners
from dragoman.store.jobs import Jobs, Turns, with_attempts
from dragoman.store.nodes import Nodes, Reservations, Storm
from dragoman.store.rooms.rooms import LanguageState, Rooms
from dragoman.store.sessions import EXPECTED, ResumableSessions, open_of, window_of

MAX_NODES = 1000
MAX_GONE = 20


class Report:
    def __init__(
        self,
        instance: str,
        instances: Instances,
        inboxes: Inboxes,
        letters: DeadLetters,
        fleet: Fleet,
        nodes: Nodes,
        reservations: Reservations,
        storm: Storm,
        default_slots: int,
    ) -> None:
        self.instance, self._instances, self._inboxes, self._letters = instance, instances, inboxes, letters
        self._fleet, self._nodes, self._reservations = fleet, nodes, reservations
        self._storm, self._default_slots = storm, default_slots

    async def cluster(self) -> dict[str, Any]:
        """Instances with their durability and inboxes, nodes with their slots, dead letters."""
        return {
            "reported_by": self.instance,
            "now_ms": await self._instances.now_ms(),
            "instances": await self._instance_rows(),
            "nodes": await self._node_rows(self._sorted_nodes()[:MAX_NODES]),
            "node_count": len(self._fleet),
            "dead_letters": await self._letters.counts(),
        }

    async def overview(self) -> dict[str, Any]:
        """The same without the list of nodes, which may be long, but with those that disconnected last."""
        return {
            "reported_by": self.instance,
            "now_ms": await self._instances.now_ms(),
            "instances": (present := await self._instance_rows()),
            "gone_instances": await self._gone_instances({row["instance"] for row in present}),
            "node_count": len(self._fleet),
            "gone": await self._gone(),
            "dead_letters": await self._letters.counts(),
        }

    async def nodes(self, count: int, after: str = "", part: str = "") -> dict[str, Any]:
        """A page of the nodes whose id, instance or languages contain `part`; `next`: `after` of the next page."""
        found = [node for node in self._sorted_nodes() if node.id > after and _has(node, part)]
        return {
            "nodes": await self._node_rows(found[:count]),
            "next": found[count - 1].id if len(found) > count else "",
        }

    async def _instance_rows(self) -> list[dict[str, Any]]:
        present = await self._instances.all()
        answering = await self._instances.answering(present)
        counts = await asyncio.gather(*(self._inboxes.counts(name) for name in present))
        waiting = await asyncio.gather(*(self._inboxes.oldest_ms(name) for name in present))
        return [
            {
                **(msgspec.to_builtins(presence) if presence is not None else {"instance": name}),
                "alive": presence is not None,
                "answering": name in answering,
                "inbox": {
                    "waiting": count.waiting,
                    "bytes": count.bytes,
                    "added": count.added,
                    "done": count.done,
                    "dead": count.dead,
                    "oldest_ms": oldest,
                },
            }
            for (name, presence), count, oldest in zip(present.items(), counts, waiting, strict=True)
        ]

    async def _gone_instances(self, present: set[str]) -> list[dict[str, Any]]:
        gone = await self._instances.gone()
        return [msgspec.to_builtins(one) for one in gone if one.instance not in present][:MAX_GONE]

    def _sorted_nodes(self) -> list[Node]:
        return sorted(self._fleet.nodes(), key=lambda node: node.id)

    async def _node_rows(self, nodes: list[Node]) -> list[dict[str, Any]]:
        reserved = await self._reserved([node.id for node in nodes])
        cooling = await asyncio.gather(*(self._storm.cooling(node.id) for node in nodes))
        return [
            {
                "node_id": node.id,
                "tenant": node.tenant,
                "instance": node.instance,
                "epoch": node.epoch,
                "slots": node.slots or self._default_slots,
                "reserved": jobs,
                "running": node.running,
                "draining": node.draining,
                "languages": {
                    "asr": sorted(node.asr),
                    "semantic": sorted(node.semantic),
                    "tts": sorted(node.tts),
                    "text": sorted(node.text),
                },
                "ready": sorted(node.ready) if node.ready is not None else None,
                "cooling_until_ms": cools.services,
                # Until then it gets no job, after that one at a time until one succeeds.
                "failing": {"paused_until_ms": cools.paused_until_ms, "pauses": cools.pauses} if cools.pauses else None,
            }
            for node, jobs, cools in zip(nodes, reserved, cooling, strict=True)
        ]

    async def _gone(self) -> list[dict[str, Any]]:
        """Nodes that disconnected, the latest first. In Redis the connected ones come before them."""
        fleet = self._fleet
        seen = await self._nodes.last_seen(len(fleet) + MAX_GONE)
        return [{"node_id": id, "last_ms": at_ms} for id, at_ms in seen if id not in fleet][:MAX_GONE]

    async def _reserved(self, nodes: list[str]) -> list[int]:
        """The reserved slots of each node, without expired reservations."""
        if not nodes:
            return []
        now_ms = await self._instances.now_ms()
        return await asyncio.gather(*(self._reservations.count(node, now_ms) for node in nodes))


def _has(node: Node, part: str) -> bool:
    languages = node.asr.union(node.semantic, *node.text)
    return not part or part in node.id or part in node.instance or part in languages


# -- listings --------------------------------------------------------------------------------------
#
# Lists the sessions and jobs of the whole cluster for operators, one page at a time.
#
# Of a session that cannot resume, Redis has only the owner and the turn. Of the others it also has the release window:
# the lowest open index, what is settled above it, and the open jobs.


MAX_ROOMS: Final = 100_000
MAX_MEMBERS: Final = 200  # of one room
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


class RoomListings:
    def __init__(self, rooms: Rooms, jobs: Jobs) -> None:
        self._rooms, self._jobs = rooms, jobs

    async def rooms(self, count: int, after: str = "", part: str = "") -> dict[str, Any]:
        """Open rooms by id; `part` is in the id, or is the code."""
        listed = sorted(await self._rooms.open_rooms(0, MAX_ROOMS))
        by_code = await self._rooms.room_of_code(part) if part.isdecimal() else None
        found = [id for id in listed if id > after and (part in id or id == by_code)]
        rows: list[dict[str, Any]] = []
        while found and len(rows) <= count:
            page, found = found[: count + 1], found[count + 1 :]
            read = await asyncio.gather(*map(self.room, page))
            rows += [row for row in read if row is not None and not row["closed"]]
        more = len(rows) > count
        return {"rooms": rows[:count], "count": len(listed), "next": rows[count - 1]["room_id"] if more else ""}

    async def room(self, id: str, *, with_members: bool = False) -> dict[str, Any] | None:
        """Also a closed room whose transcript is kept."""
        info, counts, captions = await asyncio.gather(
            self._rooms.info(id), self._rooms.counts(id), self._rooms.caption_count(id)
        )
        if info is None:
            return None
        row: dict[str, Any] = {
            "room_id": id,
            "code": info.code,
            "link": f"/room/{id}",
            "tenant": info.tenant,
            "created_ms": info.created_ms,
            "active_ms": info.active_ms,
            "members": sum(counts.instances.values()),
            "languages": counts.heard,
            "instances": counts.instances,
            "captions": captions,
            "locked": info.locked,
            "paused": info.paused,
            "persistent": info.persistent,
            "closed": WHY_OVER.get(info.closed, info.closed),
            "settings": msgspec.Raw(info.settings or b"{}"),
        }
        if with_members:
            members = sorted(await self._rooms.members(id), key=lambda member: member.joined_ms)
            row["listed"] = [_member(member) for member in members[:MAX_MEMBERS]]
        return row

    # -- one caption -----------------------------------------------------------------------------

    async def caption(self, caption: str, room: str = "") -> dict[str, Any] | None:
        """How a caption came about: the job that recognised it, and the job of each translation. Without `room`, of the
        room that its speaker is in. None: the log does not have it."""
        session = caption.partition(":")[0]
        if not room and (noted := await self._rooms.session_room(session)) is not None:
            room = noted[0]
        row = await self._rooms.caption(room, caption) if room else None
        original = await self._rooms.entry(room, row.seq) if row is not None else None
        if row is None or original is None:
            return None
        planned = sorted(row.langs.items())
        translations = await asyncio.gather(*(self._translation(room, caption, *one) for one in planned))
        return {
            "caption_id": caption,
            "room_id": room,
            "kind": row.kind,
            "lang": row.lang,
            "text": original.text,
            "speaker": about_of(original).name,
            "source": about_of(original).source,
            "recognition": await self._recognition(caption, {row.lang, AUTO, *row.langs}),
            "translations": translations,
        }

    async def _translation(self, room: str, caption: str, lang: str, state: LanguageState) -> dict[str, Any]:
        entry = await self._rooms.entry(room, state.seq) if state.seq else None
        text = entry.text if entry is not None else ""
        job = await self._job_of(f"{room}:{caption}:{lang}:{state.n}")
        return {"lang": lang, "state": state.s, "planned": state.n, "text": text, "job": job}

    async def _recognition(self, caption: str, targets: Collection[str]) -> dict[str, Any] | None:
        """The job of the utterance: into its own language if it only recognises, or into one of the others."""
        session, _, index = caption.partition(":u")
        if not index.isdecimal():
            return None
        found = await asyncio.gather(
            *(self._job_of(ids.request_id(session, int(index), target)) for target in sorted(targets))
        )
        return next((job for job in found if job is not None), None)

    async def _job_of(self, request: str) -> dict[str, Any] | None:
        bound = self._jobs.parse_binding(await self._jobs.binding(request))
        record = await self._jobs.get(bound.job_id) if bound is not None else None
        return readable(record) if record is not None else None


def readable(record: Mapping[str, str]) -> dict[str, Any]:
    """The record of a job, with its attempts and its receipt as objects."""
    job = with_attempts(record)
    with suppress(msgspec.DecodeError, KeyError):
        job["receipt"] = msgspec.json.decode(job["receipt"])
    return job


def _member(member: Member) -> dict[str, Any]:
    names = ("session", "instance", "name", "speaks", "hears", "role", "joined_ms", "voice", "muted")
    return {name: getattr(member, name) for name in names}


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
