"""The benches of chat and of a job's life, in short runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.domain.job import State
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.bench import retention
from dragoman.tools.bench.job_life import DRIVER, JobLife, live, round_trips
from dragoman.tools.bench.measure import drive
from dragoman.tools.processes import CannotRun

TINY = ("--quick", "--seconds", "1", "--warmup", "0.5", "--rate", "50", "--clients", "10")
PROMISED = {
    "accepted_p99_ms",
    "saved_share",
    "save_lag_p99_ms",
    "duplicates",
    "reorders",
    "reorderByServerMsgId",
    "reorderByFrom",
    "ping_p99_ms",
}


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    assert run(["bench", "chat", *TINY, *options, "--json", str(tmp_path / "out.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["commit", "machine", "settings", "figures", "ratios"]
    return found


def test_the_plain_run_writes_the_plain_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = measured(tmp_path)["figures"]
    assert figures.keys() >= PROMISED
    assert (figures["saved_share"], figures["duplicates"], figures["reorders"]) == (1, 0, 0)
    assert "Targets " in capsys.readouterr().out


@pytest.mark.long
def test_modes_and_a_slowed_database_stand_beside_each_other(tmp_path: Path) -> None:
    found = measured(tmp_path, "--modes", "--slow")
    figures = found["figures"]
    for slow in ("", "slow_"):
        for mode in ("off", "save_first", "deliver_first"):
            assert figures[f"sqlite_{slow}{mode}_saved_share"] == 1
        # Every commit waits 50 ms, whoever else is on the machine.
    assert figures["sqlite_slow_save_first_save_lag_p50_ms"] > 50
    assert found["settings"]["backlog_over_time"].keys() >= {"sqlite_save_first"}
    assert found["ratios"].keys() >= {"sqlite_slow_accepted_p99", "sqlite_off_vs_accepted_p99"}


async def test_a_job_is_two_round_trips_from_its_assignment_and_seven_from_its_end(redis: Redis, keys: Keys) -> None:
    assert await round_trips(redis, keys) == (2, 7)


async def test_jobs_that_were_lived_hold_nothing(redis: Redis, keys: Keys) -> None:
    waits_s: list[float] = []
    lived = await drive(lambda caller, going: live(JobLife(redis, keys, caller), going, waits_s), 10, 0.0)
    assert lived.calls == len(waits_s) >= 10
    assert await redis.call("EXISTS", keys.jobs_of(DRIVER)) == 0
    assert await redis.call("KEYS", f"{keys.prefix}:v1:nodes:*:reserved") == []
    jobs = await redis.call("KEYS", f"{keys.prefix}:v1:jobs:*")
    assert len(jobs) == lived.calls
    assert {await redis.call("HGET", job.decode(), "state") for job in jobs} == {State.RELEASED.encode()}


async def test_a_step_that_is_refused_ends_the_bench(redis: Redis, keys: Keys) -> None:
    life = JobLife(redis, keys, 0)
    await life.begin()
    await life.ask()
    with pytest.raises(CannotRun, match=r"^Redis answered a step of job-.* instead of"):
        await life.acknowledged()


@pytest.mark.long
def test_ramp_measures_half_and_three_times_the_capacity_and_draws_both(tmp_path: Path) -> None:
    figures = measured(tmp_path, "--ramp", "--svg", str(tmp_path / "ramp.svg"))["figures"]
    assert figures["max_per_s"] in (50, 62.5)
    assert figures["load_3_offered_per_s"] == pytest.approx(3 * figures["max_per_s"], rel=0.05)
    assert figures["load_0.5_worse"] == figures["load_3_worse"] == 0
    assert (tmp_path / "ramp.svg").read_text().startswith("<svg ")


@pytest.mark.long
def test_queued_translations_stand_beside_the_dispatch_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(tmp_path, "--translate", "--translations", "1000")
    figures = found["figures"]
    assert set(found["ratios"]) == {"p50_ratio", "p99_ratio"}
    assert figures["translating_translated_per_s"] > 0
    assert 0 < figures["translating_queued_at_end"] < 1000
    assert figures["alone_translated_per_s"] == 0
    assert "translations a second meanwhile" in capsys.readouterr().out


def test_saves_beside_the_retention_have_their_ratios(tmp_path: Path) -> None:
    ratios = asyncio.run(retention.run(f"sqlite:///{tmp_path}/chat.sqlite3", rounds=1, seconds=0.3, old=60))
    assert all(ratio > 0 for ratio in ratios)
