"""Sockets, messages and jobs at the same time, for as long as was asked for; and what everybody counted."""

import asyncio
from dataclasses import dataclass
from math import isnan
from typing import Any
from uuid import uuid4

from dragoman.tools.bench.chat_stage import Ground
from dragoman.tools.bench.pressure.settings import Settings
from dragoman.tools.bench.pressure.stage import Stage, stage
from dragoman.tools.bench.pressure.watch import Watched, watching
from dragoman.tools.bench.rounds import Quantities

DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Mix:
    sockets: int
    messages_per_s: float
    jobs_per_s: float

    def __str__(self) -> str:
        return f"{self.sockets:,} sockets, {self.messages_per_s:,.0f} messages/s, {self.jobs_per_s:,.0f} jobs/s"


async def together(below: Ground, settings: Settings, mix: Mix, seconds: float) -> Quantities:
    async with stage(below, settings.instances) as on:
        await on.must_hold(mix.sockets // 2, mix.sockets - mix.sockets // 2)
        await on.add_speakers(settings.sessions, settings.nodes)
        await on.add_users(settings.users)
        await on.speakers.act("tolerate")
        await on.speakers.act("pace", per_s=mix.jobs_per_s)
        lasts_s = settings.warmup_s + seconds
        name = f"m{uuid4().hex[:6]}"
        await on.crowd.act("pace", per_s=mix.messages_per_s, seconds=lasts_s, name=name, in_time=True)
        await asyncio.sleep(settings.warmup_s)
        await on.fleet.act("time")
        async with watching(on) as watched:
            await asyncio.sleep(seconds)
        return await _counted(on, settings, watched)


async def _counted(on: Stage, settings: Settings, watched: Watched) -> Quantities:
    dispatch = await on.fleet.act("times")
    # The last messages are being sent; whoever speaks goes on meanwhile.
    chat = await on.crowd.act("result", 2 * DRAIN_S, warmup_s=settings.warmup_s, wait_s=DRAIN_S, expects_accepted=True)
    spoken = await on.speakers.act("rest", 2 * DRAIN_S, wait_s=DRAIN_S)
    idle = await on.idlers.act("count")
    return {
        **of_speech(spoken, dispatch),
        **of_chat(chat),
        "sockets_closed": sum(idle["closed"].values()),
        "lag_p99_ms": watched.lag_p99_ms,
        "lag_max_ms": watched.lag_max_ms,
        "rss_mb": watched.rss_mb,
        "rss_growth_kb_per_min": watched.growth_kb_per_min,
        "blocks": watched.blocks[-1][1] if watched.blocks else 0,
        "blocks_growth_per_min": watched.blocks_growth_per_min,
        "cpu_share": watched.cpu_share,
    }


def of_speech(spoken: dict[str, Any], dispatch: dict[str, Any]) -> Quantities:
    failed = sum(spoken["errors"].values())
    return {
        "jobs_said": spoken["said"],
        "jobs_answered": spoken["results"],
        "jobs_failed": failed,
        "jobs_lost": max(spoken["said"] - spoken["results"] - failed, 0),
        "jobs_doubled": spoken["doubled"],
        "jobs_cancelled": dispatch["cancelled"],
        "backpressure": sum(spoken["pressed"].values()),
        "speakers_closed": spoken["failed"],
        "nodes_closed": sum(dispatch["closed"].values()),
        **{f"nodes_closed_{code}": count for code, count in dispatch["closed"].items()},
        **{f"jobs_failed_{code.lower()}": count for code, count in spoken["errors"].items()},
        **{f"backpressure_{action.lower()}": count for action, count in spoken["pressed"].items()},
        "dispatch_p50_ms": dispatch["cut"]["p50_us"] / 1e3 if "cut" in dispatch else 0.0,
        "dispatch_p99_ms": dispatch["cut"]["p99_us"] / 1e3 if "cut" in dispatch else 0.0,
    }


def of_chat(chat: dict[str, Any]) -> Quantities:
    """`messages_lost` were accepted and not saved, `messages_silent` got no answer of any kind."""
    refused = sum(chat["errors"].values())
    timed = {f"{name}_p99_ms": float(chat[f"{name}_p99_ms"]) for name in ("accepted", "saved", "e2e")}
    return {
        "messages_sent": chat["sent"],
        "messages_unsent": chat["unsent"],
        "messages_saved": chat["saved_count"],
        "server_busy": chat["server_busy"],
        "messages_refused_otherwise": refused - chat["errors"].get("server_busy", 0),
        "messages_lost": max(chat["accepted_count"] - chat["saved_count"], 0),
        "messages_silent": max(chat["sent"] - chat["saved_count"] - chat["server_busy"], 0),
        "messages_doubled": chat["duplicates"],
        "messages_reordered": max(chat["reorderByFrom"], chat["reorderByServerMsgId"]),
        "messages_reordered_and_refused": chat["late_and_refused"],
        "users_closed": len(chat["failures"]),
        **{f"messages_told_{reason}": count for reason, count in chat["errors"].items()},
        **{name: ms for name, ms in timed.items() if not isnan(ms)},
    }


WRONG = (
    "jobs_lost",
    "jobs_doubled",
    "speakers_closed",
    "nodes_closed",
    "sockets_closed",
    "users_closed",
    "messages_lost",
    "messages_silent",
    "messages_doubled",
    "messages_reordered",
    "messages_refused_otherwise",
)
"""What must not happen however much there is: of these, 0."""
