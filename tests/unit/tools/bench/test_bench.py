"""How the benches measure."""

import asyncio
import io
import json
import os
import re
import resource
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from math import nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import dragoman
from dragoman.tools.bench import measure
from dragoman.tools.bench.chat_ramp import is_sustained, plot, quantities
from dragoman.tools.bench.dispatch import Settings, latency_table, ratios
from dragoman.tools.bench.environment import cpu_seconds
from dragoman.tools.bench.idle_load import IdleClient, IdleLoad
from dragoman.tools.bench.measure import Case, Going, Quantities, drive, in_turns, latency, medians, percentile, ping
from dragoman.tools.processes import NO_OUTPUT, CannotRun, cpu_s, last_line, rss_bytes
from dragoman.tools.report import Report, commit, machine, number, rounded, table
from support.tables import for_each

GOOD: dict[str, Any] = {
    "sent": 100, "saved_count": 100, "accepted_count": 100, "errors": {}, "failures": [], "took_s": 5.2,
    "duplicates": 0, "reorderByFrom": 0, "reorderByServerMsgId": 0, "accepted_p99_ms": 9.0, "server_busy": 0,
}  # fmt: skip


def test_a_rate_is_is_sustained_with_when_all_is_saved_soon_after() -> None:
    assert is_sustained(GOOD, 5.0)
    for worse in ({"saved_count": 99}, {"errors": {"server_busy": 1}}, {"failures": ["closed"]}, {"took_s": 6.1}):
        assert not is_sustained(GOOD | worse, 5.0)


def second(accepted: int, refused: int, p99_ms: float) -> dict[str, Any]:
    return {
        "sent": accepted + refused, "accepted": accepted, "refused": refused,
        "accepted_p99_ms": p99_ms, "refused_p99_ms": 1.0 if refused else nan,
    }  # fmt: skip


CALM = [second(20, 0, 9.0)] * 3
OVERLOAD = [second(60, 40, 80.0)]
REFUSED = {"errors": {"server_busy": 40}, "server_busy": 40, "saved_count": 60, "accepted_count": 60}


def test_beyond_it_only_server_busy_is_in_order() -> None:
    assert quantities(GOOD | REFUSED, CALM + OVERLOAD, 1)["worse"] == 0
    worse: list[dict[str, Any]] = [
        {"errors": {"server_busy": 40, "internal_error": 1}},
        {"saved_count": 59},
        {"accepted_count": 61},
        {"duplicates": 1},
        {"reorderByFrom": 1},
        {"failures": ["closed"]},
    ]
    for one in worse:
        assert quantities(GOOD | REFUSED | one, CALM + OVERLOAD, 1)["worse"] > 0


def test_an_overload_is_over_with_the_last_second_that_is_not_as_before() -> None:
    after = [second(20, 1, 9.0), second(20, 0, 41.0), second(20, 0, 19.0)]
    found = quantities(GOOD | REFUSED, CALM + OVERLOAD + after, 1)
    assert (found["recovery_s"], found["refused_share"], found["accepted_p99_ms"]) == (2, 0.4, 80)
    assert quantities(GOOD | REFUSED, CALM + OVERLOAD + after[2:], 1)["recovery_s"] == 0


def test_plot_of_the_ramp_has_a_line_for_each_figure() -> None:
    found = {load: quantities(GOOD | REFUSED, CALM + OVERLOAD, 1) for load in (0.5, 3.0)}
    root = ElementTree.fromstring(plot(1000, found))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 4


FIGURES = {
    f"{where}_{what}_{share}_us": us * (1 if share == "p50" else 3) * (1 if where == "same" else 2)
    for where in ("same", "across")
    for share in ("p50", "p99")
    for what, us in (("cut", 200.0), ("ping", 40.0), ("rapid_ping", 20.0), ("said", 260.0))
}


def test_a_latency_is_a_multiple_of_the_ping_of_the_same_case() -> None:
    cases = [f"{where}_{share}" for where in ("same", "across") for share in ("p50", "p99")]
    assert ratios(FIGURES) == pytest.approx(
        {f"{case}_vs_ping": 5.0 for case in cases} | {f"{case}_vs_rapid_ping": 10.0 for case in cases}
    )


def test_the_table_has_a_row_for_every_case_and_share() -> None:
    out = StringIO()
    Console(file=out, width=120).print(latency_table(FIGURES, ratios(FIGURES), Settings()))
    assert "job_assign at the node, at 200 jobs a second" in out.getvalue()
    assert [line.split()[:2] for line in out.getvalue().splitlines() if "×" in line] == [
        ["same,", "p50"],
        ["same,", "p99"],
        ["across,", "p50"],
        ["across,", "p99"],
    ]


class RecordingTransport:
    """The client's end of a connection: what was sent, and whether it was cut."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.cut = False

    def send(self, _: object, data: bytes) -> None:
        self.sent.append(json.loads(data))

    def disconnect(self, graceful: bool = True) -> None:
        self.cut = True


def connected(client: IdleClient) -> Any:
    transport: Any = RecordingTransport()
    client.on_ws_connected(transport)
    return transport


def told(client: IdleClient, transport: Any, **message: Any) -> None:
    client.receive(transport, json.dumps(message, separators=(",", ":")).encode())


async def test_an_idle_session_that_comes_back_resumes() -> None:
    client = IdleClient(IdleLoad(), "ws://127.0.0.1:1/ws/session", "127.0.0.1", b"")
    first = connected(client)
    assert first.sent[0]["type"] == "session_init"
    told(client, first, type="session_init_ack", session_id="s-1", resume_token="t", seq=3)
    client.cut()
    assert (first.cut, client.is_open) == (True, False)
    second = connected(client)
    client.on_ws_disconnected(first)
    assert second.sent == [{"type": "session_resume", "session_id": "s-1", "resume_token": "t", "last_seq": 3}]
    told(client, second, type="session_init_ack", session_id="s-1")
    assert (client.is_open, client.resumed) == (True, True)


async def test_an_idle_session_that_is_over_opens_another() -> None:
    client = IdleClient(IdleLoad(), "ws://127.0.0.1:1/ws/session", "127.0.0.1", b"")
    told(client, connected(client), type="session_init_ack", session_id="s-1", resume_token="t")
    client.cut()
    again = connected(client)
    told(client, again, type="error", code="INVALID_SESSION", message="It is over.")
    assert again.sent[-1]["type"] == "session_init"
    told(client, again, type="session_init_ack", session_id="s-2", resume_token="u")
    assert (client.is_open, client.resumed) == (True, False)


async def test_an_idle_chat_user_authenticates_answers_pings_and_is_counted_when_it_is_closed() -> None:
    load = IdleLoad()
    client = IdleClient(load, "ws://127.0.0.1:1/ws", "127.0.0.1", b"token")
    transport = connected(client)
    told(client, transport, type="AUTH_OK")
    told(client, transport, type="PING", ts=1)
    assert transport.sent == [{"type": "AUTH", "token": "token"}, {"type": "PONG"}]
    told(client, transport, type="ERROR", reason="kicked")
    client.on_ws_disconnected(transport)
    assert (transport.cut, load.closed) == (True, {"kicked": 1})


async def asked_again(caller: int, going: Going) -> int:
    calls = 0
    while going.on or not calls:
        await asyncio.sleep(0)
        calls += 1
    return calls


async def test_every_caller_has_its_number_and_its_calls_are_summed() -> None:
    seen = set()

    async def once(caller: int, going: Going) -> int:
        seen.add(caller)
        return caller

    found = await drive(once, 5, 0.01)
    assert seen == {0, 1, 2, 3, 4}
    assert found.calls == 10


async def test_the_load_ends_when_its_time_is_up() -> None:
    found = await drive(asked_again, 3, 0.02)
    assert found.calls > 3
    assert found.per_s == found.calls / found.seconds
    assert found.us_each(2.0) == pytest.approx(2e6 / found.calls)


async def test_a_load_of_no_time_at_all_still_calls_once() -> None:
    assert (await drive(asked_again, 4, 0.0)).calls >= 4


async def test_the_first_caller_that_fails_ends_the_load_with_its_error() -> None:
    ended = []

    async def fails(caller: int, going: Going) -> int:
        if caller == 1:
            raise LookupError("no such thing")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(caller)
        return 0

    with pytest.raises(LookupError, match="no such thing"):
        await drive(fails, 3, 60)
    assert sorted(ended) == [0, 2]


async def test_unanswered_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DRAIN_TIMEOUT_S", 0.01)

    async def forever(caller: int, going: Going) -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    with pytest.raises(TimeoutError):
        await drive(forever, 2, 0.01)


@for_each(
    [
        ([7.0], 0.5, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
        ([1.0, 2.0], 0.0, 1.0),
    ]
)
def test_a_percentile_is_a_value_that_occurred(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


Serve = Callable[[bytes], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Listens for one caller and answers everything with the same bytes; gives the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def answer(reply: bytes) -> None:
        line, _ = listener.accept()
        with line:
            while line.recv(64):
                line.sendall(reply)

    def start(reply: bytes) -> int:
        threads.append(threading.Thread(target=answer, args=(reply,)))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join()
    listener.close()


def test_pings_are_counted_once_at_least(serve: Serve) -> None:
    found = ping("127.0.0.1", serve(b"+PONG\r\n"), 0.0)
    assert found.keys() == {"p50_us", "p99_us"}
    assert 0 < found["p50_us"] <= found["p99_us"]


def test_url_that_is_no_redis_is_refused_with_a_sentence(serve: Serve) -> None:
    with pytest.raises(CannotRun, match=r"answered PING with b'-ERR what\?"):
        ping("127.0.0.1", serve(b"-ERR what?\r\n"), 0.0)


def test_unreachable_server_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(CannotRun, match=rf"^PING to 127\.0\.0\.1:{port} failed: .*\.$"):
        ping("127.0.0.1", port, 0.0)


def test_latencies_are_in_microseconds() -> None:
    assert latency([0.002, 0.001, 0.003]) == pytest.approx({"p50_us": 2000, "p99_us": 3000})


def test_the_cpu_time_of_a_process_is_what_it_counts_itself() -> None:
    before = cpu_s(os.getpid())
    counted = sum(os.times()[:2])
    tick_s = 0.02  # both are told in ticks of the clock
    assert before - tick_s <= counted <= cpu_s(os.getpid()) + tick_s


def test_the_memory_of_a_process_is_below_its_largest_so_far() -> None:
    assert 0 < rss_bytes(os.getpid()) <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * 1.1


def test_last_line_is_the_last_one_with_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")
    assert last_line(log) == NO_OUTPUT
    log.write_bytes(b"first\n" + b"x" * 10_000 + b"\nlast one\n\n")
    assert last_line(log) == "last one"


class Log:
    """The context of the cases here: notes who ran, answers with what was prepared."""

    def __init__(self, **answers: Sequence[float | Exception]) -> None:
        self.ran: list[str] = []
        self._answers = {name: list(values) for name, values in answers.items()}

    def answer(self, name: str) -> Quantities:
        self.ran.append(name)
        value = self._answers[name].pop(0)
        if isinstance(value, Exception):
            raise value
        return {"per_s": value}


def case(name: str, peer: str = "") -> Case[Log]:
    async def run(log: Log) -> Quantities:
        return log.answer(name)

    return Case(name, name.upper(), run, peer)


async def test_every_second_round_goes_backwards_and_the_median_counts() -> None:
    log, told = Log(ours=[1, 9, 3], theirs=[4, 5, 6]), list[str]()
    found = await in_turns([case("ours"), case("theirs", "them")], log, 3, told.append)
    assert log.ran == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert told == [name.upper() for name in log.ran]
    assert found.figures == {"ours_per_s": 3, "theirs_per_s": 5}
    assert found.left_out == {}


async def test_a_peer_that_fails_is_left_out_of_that_case_by_name() -> None:
    log, told = Log(ours=[1, 2, 3], few=[7, 7, 7], many=[5, OSError("pool is full")]), list[str]()
    cases = [case("ours"), case("few", "them"), case("many", "them")]
    found = await in_turns(cases, log, 3, told.append)
    assert found.figures == {"ours_per_s": 2, "few_per_s": 7}
    assert found.left_out == {"many": "them: pool is full"}
    assert log.ran.count("many") == 2
    assert len(told) == 9  # the bar reaches its end all the same


async def test_error_without_a_message_is_named_by_its_class() -> None:
    found = await in_turns([case("theirs", "them")], Log(theirs=[TimeoutError()]), 1)
    assert found.left_out == {"theirs": "them: TimeoutError"}


async def test_when_one_of_ours_fails_the_bench_has_failed() -> None:
    with pytest.raises(OSError, match="gone"):
        await in_turns([case("ours")], Log(ours=[OSError("gone")]), 1)


def test_medians_are_taken_quantity_by_quantity() -> None:
    assert medians([{"a": 1, "b": 9}, {"a": 5, "b": 2}, {"a": 3, "b": 4}]) == {"a": 3, "b": 4}


@pytest.fixture
def report() -> Report:
    made = Report({"seconds": 1.0}, commit="abc", machine={"cores": 2})
    made.figures = {"single_job_1_per_s": 1234.56, "single_ping_p50_us": 25.4567}
    made.ratios = {"vs_redis_py_1000": 12.3456}
    return made


def test_the_file_holds_what_was_promised(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "commit": "abc",
        "machine": {"cores": 2},
        "settings": {"seconds": 1.0},
        "figures": {"single_job_1_per_s": 1235, "single_ping_p50_us": 25.46},
        "ratios": {"vs_redis_py_1000": 12.35},
    }


def test_unwritable_file_is_one_sentence(report: Report, tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"^The results cannot be written to .*: Is a directory\.$"):
        report.write(tmp_path)


def test_tables_and_notes_are_shown_in_order(report: Report) -> None:
    report.tables.append(table("jobs", ["at a time", "jobs/s"], [["100", "4,000"]]))
    report.notes.append("Left out: nobody.")
    shown = io.StringIO()
    report.show(Console(file=shown, width=60))
    words = shown.getvalue().split()
    assert words[:5] == ["jobs", "at", "a", "time", "jobs/s"]
    assert words[-5:] == ["100", "4,000", "Left", "out:", "nobody."]


@for_each([(None, "–"), (0.0231, "0.02"), (7.0, "7.00"), (25.46, "25.5"), (99.96, "100.0"), (170918.2, "170,918")])
def test_numbers_have_the_digits_people_need(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_unit_follows_a_number_but_no_dash() -> None:
    assert number(12.0, " ×") == "12.0 ×"
    assert number(None, " ×") == "–"


@for_each([(0.0123456, 0.01235), (0.0, 0.0), (999.96, 1000.0), (170918.6, 170919)])
def test_four_digits_are_kept(value: float, kept: float) -> None:
    assert rounded(value) == kept


def test_machine_is_described_without_its_name() -> None:
    told = machine()
    assert told.keys() == {"cpu", "cores", "memory_gib", "system", "python", "load_before"}


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=T", "-c", "user.email=t@t.invalid"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as if it lay in a repository of its own, tracked and committed."""
    home = tmp_path / "src"
    home.mkdir()
    (home / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    monkeypatch.setattr(dragoman, "__file__", str(home / "__init__.py"))
    return home


def test_the_commit_is_that_of_the_package(package: Path) -> None:
    (package.parent / "notes").write_text("beside the package")
    assert re.fullmatch(r"[0-9a-f]{40}", commit())


def test_a_changed_package_is_dirty(package: Path) -> None:
    (package / "__init__.py").write_text("x = 1")
    assert re.fullmatch(r"[0-9a-f]{40}-dirty", commit())


def test_installed_copy_in_another_repository_has_no_commit(package: Path) -> None:
    git(package.parent, "rm", "-q", "--cached", "src/__init__.py")
    assert commit() == "unknown"


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert commit() == "unknown"


INFO = (
    "# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n"
    "used_cpu_user_children:9.0\r\nused_cpu_sys_main_thread:1.400000\r\nused_cpu_user_main_thread:2.200000\r\n"
)


def test_the_cpu_time_of_a_server_is_its_own_and_counted_once() -> None:
    assert cpu_seconds(INFO) == 3.75
