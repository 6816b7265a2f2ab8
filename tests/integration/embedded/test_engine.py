"""One server in its directory: its life, its data, and who may not have it."""

import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from dragoman.embedded import engine
from dragoman.embedded.binary import EngineError, ServerBinary, ServerEnded, dotted
from dragoman.embedded.datadir import RECORD_FILE
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer, wire
from support.redis_servers import BINARIES
from support.waiting import StartParent, alive, wait_for


@pytest.fixture(params=BINARIES)
def any_binary(request: pytest.FixtureRequest) -> ServerBinary:
    binary: ServerBinary = request.getfixturevalue(request.param)
    return binary


def test_a_server_answers_on_its_socket_and_on_its_port(any_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(any_binary, tmp_path / "data", port=CHOOSE_PORT) as server:
        assert server.call("PING") == "PONG"
        assert server.url == f"unix://{tmp_path}/data/redis.sock"
        with socket.create_connection(("127.0.0.1", server.port or 0)) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(16) == b"+PONG\r\n"


def test_a_server_is_private_keeps_a_file_and_never_evicts(any_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(any_binary, tmp_path / "data") as server:
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
        expected = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "auto-aof-rewrite-min-size": str(32 * 1024 * 1024),
            "auto-aof-rewrite-percentage": "50",
            "port": "0",
            "save": "",
        }
        assert {name: server.call("CONFIG", "GET", name)[1] for name in expected} == expected


def file_bytes(server: RedisServer) -> int:
    told = dict(line.split(":", 1) for line in server.call("INFO", "persistence").splitlines() if ":" in line)
    return int(told["aof_current_size"])


def test_file_is_rewritten_before_it_takes_long_to_load(any_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(any_binary, tmp_path / "data") as server:
        with wire(server.socket_path) as connection:
            for _ in range(40):
                connection.call("SET", "same", "x" * 1_000_000)
        wait_for(lambda: file_bytes(server) < 10_000_000, "the file to be rewritten")


def test_server_that_loads_its_data_says_so_once_and_how_much_there_is(
    server_binary: ServerBinary, tmp_path: Path
) -> None:
    # While it loads an append-only file, a server answers only every 1024 commands: three times within these 4.5 s.
    slow = {"key-load-delay": "1500"}
    loading = list[int]()
    with RedisServer(server_binary, tmp_path / "data", settings=slow) as server:
        with wire(server.socket_path) as connection:
            for number in range(3000):
                connection.call("SET", f"key {number}", "x" * 100)
        server.kill()
        server.prepare()
        server.launch()
        server.wait_ready(loading.append)
        assert len(loading) == 1
        assert loading[0] >= 3000 * 100


def test_with_fsync_always_a_restart_after_kill_9_keeps_every_answered_write(
    any_binary: ServerBinary, tmp_path: Path
) -> None:
    with RedisServer(any_binary, tmp_path / "data", fsync="always") as server:
        with wire(server.socket_path) as connection:
            for number in range(200):
                connection.call("RPUSH", "written", number)
        first = server.pid
        server.kill()
        assert not alive(first)
        server.start()
        assert server.pid != first
        assert server.call("LLEN", "written") == 200


def test_an_orderly_stop_keeps_everything_and_the_next_start_finds_it(any_binary: ServerBinary, tmp_path: Path) -> None:
    for life in range(1, 4):
        with RedisServer(any_binary, tmp_path / "data") as server:
            assert server.call("INCR", "lives") == life
        assert not server.running


def test_a_path_with_blanks_and_letters_of_any_kind_works(any_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(any_binary, tmp_path / 'my "own" dätä %20') as server:
        assert server.call("PING") == "PONG"


def test_a_directory_in_use_refuses_a_second_server_and_names_the_first(
    server_binary: ServerBinary, tmp_path: Path
) -> None:
    with RedisServer(server_binary, tmp_path / "data") as first:
        second = RedisServer(server_binary, tmp_path / "data", lock_timeout_s=0.05)
        with pytest.raises(EngineError, match=rf"in use by another server \(pid {first.pid}\)"):
            second.start()
        second.stop()
        assert first.call("PING") == "PONG"


def test_the_directory_stays_taken_while_a_server_outlives_its_killed_parent(
    server_binary: ServerBinary, tmp_path: Path, start_parent: StartParent
) -> None:
    parent, orphan = start_parent("server", str(tmp_path / "data"))
    os.kill(orphan, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    heir = RedisServer(server_binary, tmp_path / "data", lock_timeout_s=0.05)
    with pytest.raises(EngineError, match=rf"pid {orphan}"):
        heir.start()
    os.kill(orphan, signal.SIGCONT)
    wait_for(lambda: not alive(orphan), "the orphan to end")
    with heir:
        assert heir.call("PING") == "PONG"


def test_a_server_dies_with_its_parent_killed_9_and_its_data_is_there_at_once(
    server_binary: ServerBinary, tmp_path: Path, start_parent: StartParent
) -> None:
    parent, orphan = start_parent("server", str(tmp_path / "data"))
    with wire(tmp_path / "data" / "redis.sock") as connection:
        connection.call("SET", "kept", "yes")
    parent.kill()
    # Not waited for: the lock makes the next one wait until the first has written its file.
    with RedisServer(server_binary, tmp_path / "data") as heir:
        assert heir.call("GET", "kept") == "yes"
        assert not alive(orphan)


def test_data_of_a_newer_server_is_refused(server_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(server_binary, tmp_path / "data") as server:
        server.call("SET", "kept", "yes")
    newer = ServerBinary(server_binary.path, server_binary.kind, (99, 0, 0), "from the future")
    with RedisServer(newer, tmp_path / "data") as server:
        assert server.call("GET", "kept") == "yes"
    with pytest.raises(EngineError, match=r"written by Valkey 99\.0\.0.*name Valkey 99\.0\.0 or newer"):
        RedisServer(server_binary, tmp_path / "data").start()


def test_data_of_another_kind_is_refused_both_ways(
    server_binary: ServerBinary, old_server_binary: ServerBinary, tmp_path: Path
) -> None:
    for writer, reader in [(server_binary, old_server_binary), (old_server_binary, server_binary)]:
        with RedisServer(writer, tmp_path / writer.kind) as server:
            server.call("SET", "kept", "yes")
        with pytest.raises(EngineError, match=f"written by {writer}, which {reader} .* cannot be trusted to read"):
            RedisServer(reader, tmp_path / writer.kind).start()
        with RedisServer(writer, tmp_path / writer.kind) as server:
            assert server.call("GET", "kept") == "yes"


def test_the_record_names_what_wrote_the_data(server_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(server_binary, tmp_path / "data"):
        record = json.loads((tmp_path / "data" / RECORD_FILE).read_text())
    assert record == {"kind": server_binary.kind, "version": dotted(server_binary.version)}


@pytest.mark.parametrize("record", [None, "", "[]", '{"kind": "redis"}', '{"kind": "redis", "version": "seven"}'])
def test_data_directory_without_a_marker_is_refused(
    server_binary: ServerBinary, tmp_path: Path, record: str | None
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "dump.rdb").write_bytes(b"REDIS0009")
    if record is not None:
        (data / RECORD_FILE).write_text(record)
    with pytest.raises(EngineError, match=r"no readable dragoman-engine\.json"):
        RedisServer(server_binary, data).start()


def test_marker_without_data_is_ignored(server_binary: ServerBinary, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / RECORD_FILE).write_text('{"kind": "redis", "version": "99.0.0"}')
    with RedisServer(server_binary, data) as server:
        assert server.call("PING") == "PONG"


def test_a_directory_that_cannot_be_made_is_one_sentence(server_binary: ServerBinary, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for impossible in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/dragoman")):
        with pytest.raises(EngineError, match=r"cannot be used .* set another embedded\.data_dir"):
            RedisServer(server_binary, impossible).start()


def test_permissions_of_a_foreign_directory_are_not_changed(server_binary: ServerBinary, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "letter.txt").write_text("dear")
    with pytest.raises(EngineError, match="open to others and holds other files"):
        RedisServer(server_binary, shared).start()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_an_empty_directory_is_made_private(server_binary: ServerBinary, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with RedisServer(server_binary, tmp_path / "data") as server:
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket_puts_it_elsewhere_and_says_so(any_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(any_binary, tmp_path / ("long-" * 24)) as server:
        assert server.call("PING") == "PONG"
        [remark] = server.remarks
        assert str(server.socket_path) in remark
        home = server.socket_path.parent
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        server.kill()
        server.start()
        assert server.socket_path.parent == home
        assert len(server.remarks) == 1
    assert not home.exists()


def test_a_server_that_ends_while_starting_shows_the_end_of_its_log(any_binary: ServerBinary, tmp_path: Path) -> None:
    server = RedisServer(any_binary, tmp_path / "data", settings={"no-such-setting": "1"})
    with pytest.raises(ServerEnded, match="ended with exit code 1 while starting") as caught:
        server.start()
    server.stop()
    assert "no-such-setting" in str(caught.value)
    assert str(server.log_path) in str(caught.value)


def test_a_server_that_never_answers_is_given_up(server_binary: ServerBinary, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexec sleep 300\n")
    mute.chmod(0o755)
    server = RedisServer(ServerBinary(mute, "redis", (7, 0, 0), "made up"), tmp_path / "data", start_timeout_s=0.2)
    with pytest.raises(EngineError, match=r"did not answer within 0\.2 s"):
        server.start()
    assert not server.running
    server.stop()


def test_loading_data_may_take_longer_than_the_start_timeout(server_binary: ServerBinary, tmp_path: Path) -> None:
    with RedisServer(server_binary, tmp_path / "data") as server, wire(server.socket_path) as connection:
        for number in range(400):
            connection.call("SET", f"key {number}", "x" * 100)
    slow = {"aof-use-rdb-preamble": "no", "key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"}
    with RedisServer(server_binary, tmp_path / "data", settings=slow, start_timeout_s=0.3) as server:
        assert server.call("DBSIZE") == 400


def test_port_in_use_is_a_distinct_error(server_binary: ServerBinary, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = RedisServer(server_binary, tmp_path / "data", port=taken.getsockname()[1])
        with pytest.raises(ServerEnded) as caught:
            server.start()
        server.stop()
    assert caught.value.port_was_taken


def test_chosen_port_that_was_taken_meanwhile_is_replaced(
    any_binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], engine.free_port()])
        monkeypatch.setattr(engine, "free_port", lambda: next(ports))
        with RedisServer(any_binary, tmp_path / "data", port=CHOOSE_PORT) as server:
            assert server.port != taken.getsockname()[1]
            assert server.call("PING") == "PONG"


def test_a_log_that_has_grown_large_is_put_aside(
    server_binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LOG_MAX_BYTES", 10)
    for _ in range(2):
        with RedisServer(server_binary, tmp_path / "data"):
            pass
    assert (tmp_path / "data" / "redis.log.1").stat().st_size > 10
