"""Old messages are deleted by one instance, in batches, on both databases."""

import pytest

from dragoman.archive import Archive, NewMessage, Receipt, Status
from dragoman.domain.chat.message_ids import first_id_of
from dragoman.services.chat import removal
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.removal import DAY_MS, Retention
from dragoman.services.metrics import Metrics
from support.databases import ask

DAYS = 30.0


async def messages(archive: Archive, sql_url: str, count: int, days_old: float) -> list[int]:
    """Accepted and saved then."""
    accepted_ms = now_ms() - int(days_old * DAY_MS)
    ids = [first_id_of(accepted_ms) + number for number in range(count)]
    await archive.save([NewMessage(id, f"c-{id}", 1, 2, "TEXT", "hello", accepted_ms) for id in ids])
    await ask(sql_url, f"UPDATE message SET saved_ms = {accepted_ms} WHERE id >= {ids[0]} AND id <= {ids[-1]}")
    return ids


async def left(sql_url: str) -> set[int]:
    return {row[0] for row in await ask(sql_url, "SELECT id FROM message")}


async def test_messages_older_than_the_retention_are_deleted_and_undelivered_ones_counted(
    archive: Archive, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "EXPIRE_BATCH", 2)
    old = await messages(archive, sql_url, 5, DAYS + 0.1)
    new = await messages(archive, sql_url, 3, DAYS - 0.1)
    await archive.add_translation(old[0], "es", "hola", "node-1")
    await archive.receipts([Receipt(2, Status.DELIVERED, tuple(old[:2]))])
    metrics = Metrics()
    await Retention(archive, lambda: True, metrics, DAYS).run_once()
    assert await left(sql_url) == set(new)
    assert await ask(sql_url, "SELECT count(*) FROM message_translation") == [(0,)]
    assert (metrics.chat_expired.value, metrics.chat_expired_undelivered.value) == (5, 3)


async def test_nothing_is_deleted_without_a_retention(archive: Archive, sql_url: str) -> None:
    old = await messages(archive, sql_url, 2, 3650.0)
    await Retention(archive, lambda: True, Metrics(), 0.0).run_once()
    assert await left(sql_url) == set(old)


async def test_instance_that_loses_the_task_stops_after_its_batch(
    archive: Archive, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "EXPIRE_BATCH", 2)
    await messages(archive, sql_url, 5, DAYS + 1)
    ours = iter([True, False])
    await Retention(archive, lambda: next(ours), Metrics(), DAYS).run_once()
    assert len(await left(sql_url)) == 3


async def test_unavailable_database_ends_the_round_without_an_error(archive: Archive, sql_url: str) -> None:
    old = await messages(archive, sql_url, 2, DAYS + 1)
    await archive.close()
    await Retention(archive, lambda: True, Metrics(), DAYS).run_once()
    assert await left(sql_url) == set(old)
