"""Saving messages while old ones are deleted: `python -m dragoman.tools.bench.retention [sqlite|postgres]`.

Eight writers save a message every 20 ms, with and without `Retention` at work on 40,000 old messages, in paired rounds.
"""

import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from dragoman.archive import Archive, NewMessage, open_archive
from dragoman.cli import output
from dragoman.domain.chat.message_ids import first_id_of
from dragoman.services.chat.removal import DAY_MS, Retention
from dragoman.services.metrics import Metrics
from dragoman.tools.bench.measure import latency
from dragoman.tools.postgres import PostgresServer

OLD = 40_000
BATCH = 1000
WRITERS = 8
PAUSE_S = 0.02
KEEP_DAYS, OLD_DAYS = 365, 400


async def run(url: str, rounds: int = 4, seconds: float = 8.0, old: int = OLD) -> tuple[float, float]:
    """The ratios of p50 and p99, with over without; the median of the rounds."""
    archive, ratios = open_archive(url), list[tuple[float, float]]()
    await archive.open()
    try:
        for number in range(rounds):
            await _fill(archive, number, old)
            found = {}
            for deleting in (False, True) if number % 2 == 0 else (True, False):
                found[deleting], deleted = await _saves(archive, seconds, number * 2 + deleting, deleting=deleting)
                times = ", ".join(
                    f"{share.removesuffix('_us')} {value / 1000:.1f} ms" for share, value in found[deleting].items()
                )
                output.line(
                    f"{number} {'deleting' if deleting else 'alone   '} {times}; {deleted / seconds:.0f} deleted/s"
                )
            ratios.append((_ratio(found, "p50_us"), _ratio(found, "p99_us")))
            while (await archive.expire(first_id_of(_now() - KEEP_DAYS * DAY_MS), _now(), BATCH)).messages:
                pass
    finally:
        await archive.close()
    return median(one for one, _ in ratios), median(other for _, other in ratios)


def _ratio(found: dict[bool, dict[str, float]], share: str) -> float:
    return found[True][share] / found[False][share]


def _now() -> int:
    return int(time.time() * 1000)


async def _fill(archive: Archive, number: int, count: int) -> None:
    base = first_id_of(_now() - OLD_DAYS * DAY_MS) + number * 10**9
    rows = [NewMessage(base + n, f"o-{base + n}", 1 + n % 50, 1000 + n % 37, "TEXT", "y" * 80, 1) for n in range(count)]
    for first in range(0, count, BATCH):
        await archive.save(rows[first : first + BATCH])
    # As if they had been saved then; the archive writes the time of the commit.
    await archive._change("UPDATE message SET saved_ms = 1 WHERE id < $1", first_id_of(_now() - KEEP_DAYS * DAY_MS))


async def _saves(archive: Archive, seconds: float, series: int, *, deleting: bool) -> tuple[dict[str, float], float]:
    metrics, took = Metrics(), list[float]()
    until = time.monotonic() + seconds

    async def write(writer: int) -> None:
        id = first_id_of(_now()) + (series * WRITERS + writer) * 10**6
        while time.monotonic() < until:
            id += 1
            began = time.monotonic()
            await archive.save([NewMessage(id, f"n-{id}", 10 + writer, 100 + writer, "TEXT", "x" * 80, 1)])
            took.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    retention = Retention(archive, lambda: deleting, metrics, KEEP_DAYS)
    work = asyncio.create_task(retention.run_once())
    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return latency(took), metrics.chat_expired.value


def main(kind: str) -> None:
    with ExitStack() as stack:
        if kind == "postgres":
            url = stack.enter_context(PostgresServer()).new_database()
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-"))
            url = f"sqlite:///{Path(folder) / 'chat.sqlite3'}"
        p50, p99 = asyncio.run(run(url))
    output.line(f"deleting / alone: p50 {p50:.2f} x, p99 {p99:.2f} x")


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["sqlite"])
