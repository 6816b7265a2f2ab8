"""What the kernel says about the process behind a presence. Only certainty counts as dead."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest

from dragoman.instance.same_host import is_dead, machine, start_ticks
from dragoman.store.instances import Presence
from support.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def presence_of(pid: int) -> Presence:
    return Presence("i", "first", pid=pid, machine=machine(), start_ticks=start_ticks(pid))


def test_process_that_was_killed_and_reaped_is_dead(child: "subprocess.Popen[bytes]") -> None:
    presence = presence_of(child.pid)
    assert not is_dead(presence)
    child.kill()
    child.wait()
    assert is_dead(presence)


def test_stopped_process_is_not_dead(child: "subprocess.Popen[bytes]") -> None:
    presence = presence_of(child.pid)
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    assert not is_dead(presence)


def test_process_that_waits_to_be_reaped_is_not_known_to_be_dead(child: "subprocess.Popen[bytes]") -> None:
    presence = presence_of(child.pid)
    child.kill()
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert not is_dead(presence)


def test_process_whose_number_another_one_has_is_dead() -> None:
    presence = presence_of(os.getpid())
    assert not is_dead(presence)
    assert is_dead(msgspec.structs.replace(presence, start_ticks=presence.start_ticks - 1))


def test_nothing_is_known_of_a_process_on_another_machine_or_of_an_older_release(
    child: "subprocess.Popen[bytes]",
) -> None:
    presence = presence_of(child.pid)
    child.kill()
    child.wait()
    boot, _, namespace = machine().partition(" ")
    for there in (f"another-boot {namespace}", f"{boot} pid:[1]", ""):
        assert not is_dead(msgspec.structs.replace(presence, machine=there))
    assert not is_dead(msgspec.structs.replace(presence, start_ticks=0))
