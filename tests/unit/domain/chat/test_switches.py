from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config.schema_chat import TwoPhase
from dragoman.domain.chat.shards import in_rollout
from dragoman.domain.chat.switches import NAMES, STAY_S, WAIT_S, BadSwitch, ConnectionPath, Path, Switches
from support.tables import for_each

USERS = st.integers(1, 2**63 - 1)
PATHS = st.sampled_from(Path)
ON = Switches(enabled=True)


# -- values


@for_each(
    [
        ("enabled", "on", True),
        ("enabled", "true", True),
        ("enabled", "Yes", True),
        ("enabled", "1", True),
        ("fail_open", "off", False),
        ("fail_open", "FALSE", False),
        ("deliver_before_saved", "no", False),
        ("deliver_before_saved", "0", False),
        ("rollout_percent", "0", 0),
        ("rollout_percent", "100", 100),
        ("batch_size", "1", 1),
        ("batch_size", "4096", 4096),
        ("block_ms", "10", 10),
        ("block_ms", "60000", 60_000),
        ("max_backlog", "1", 1),
        ("max_backlog", "100000000", 100_000_000),
        ("wait_replicas", "0", 0),
        ("wait_replicas", "16", 16),
    ]
)
def test_a_switch_is_given_as_text(name: str, text: str, value: bool | int) -> None:
    changed = Switches().changed({name: text})
    assert getattr(changed, name) == value
    assert type(getattr(changed, name)) is type(value)


@for_each(
    [
        ("enabled", "maybe", "enabled is on or off, not 'maybe'"),
        ("enabled", "", "enabled is on or off, not ''"),
        ("fail_open", "2", "fail_open is on or off, not '2'"),
        ("deliver_before_saved", " on", "deliver_before_saved is on or off, not ' on'"),
        ("rollout_percent", "101", "rollout_percent is a number from 0 to 100, not '101'"),
        ("rollout_percent", "-1", "rollout_percent is a number from 0 to 100, not '-1'"),
        ("rollout_percent", "half", "rollout_percent is a number from 0 to 100, not 'half'"),
        ("rollout_percent", "50%", "rollout_percent is a number from 0 to 100, not '50%'"),
        ("rollout_percent", "²", "rollout_percent is a number from 0 to 100, not '²'"),
        ("batch_size", "0", "batch_size is a number from 1 to 4096, not '0'"),
        ("batch_size", "4097", "batch_size is a number from 1 to 4096, not '4097'"),
        ("block_ms", "9", "block_ms is a number from 10 to 60000, not '9'"),
        ("block_ms", "1e3", "block_ms is a number from 10 to 60000, not '1e3'"),
        ("max_backlog", "0", "max_backlog is a number from 1 to 100000000, not '0'"),
        ("wait_replicas", "17", "wait_replicas is a number from 0 to 16, not '17'"),
        ("wait_replicas", "", "wait_replicas is a number from 0 to 16, not ''"),
        ("wait_replicas", "true", "wait_replicas is a number from 0 to 16, not 'true'"),
        ("shards", "4", f"there is no switch 'shards'; there are {', '.join(NAMES)}"),
        ("", "on", f"there is no switch ''; there are {', '.join(NAMES)}"),
    ]
)
def test_a_wrong_switch_is_refused_in_one_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(BadSwitch) as refused:
        Switches().changed({name: text})
    assert str(refused.value) == sentence


def test_a_number_too_long_to_be_read_is_refused_like_any_other() -> None:
    with pytest.raises(BadSwitch, match="batch_size is a number from 1 to 4096"):
        Switches().changed({"batch_size": "9" * 5000})


def test_one_wrong_switch_changes_nothing() -> None:
    before = Switches()
    with pytest.raises(BadSwitch):
        before.changed({"enabled": "on", "batch_size": "many"})
    assert before == Switches()
    assert before.changed({}) == before


@given(st.sampled_from(NAMES), st.text(max_size=30))
def test_every_text_is_a_value_or_refused(name: str, text: str) -> None:
    try:
        changed = Switches().changed({name: text})
    except BadSwitch:
        return
    assert Switches().changed(changed.texts()) == changed


@given(
    st.builds(
        Switches,
        enabled=st.booleans(),
        deliver_before_saved=st.booleans(),
        fail_open=st.booleans(),
        rollout_percent=st.integers(0, 100),
        batch_size=st.integers(1, 4096),
        block_ms=st.integers(10, 60_000),
        max_backlog=st.integers(1, 100_000_000),
        wait_replicas=st.integers(0, 16),
    )
)
def test_switch_settings_survive_their_text_form(switches: Switches) -> None:
    assert Switches().changed(switches.texts()) == switches


def test_every_switch_is_a_setting_with_the_same_name_and_default() -> None:
    configured = TwoPhase()
    assert {name: getattr(configured, name) for name in NAMES} == {
        field.name: field.default for field in fields(Switches)
    }


# -- which path a sender should be on


@given(USERS, st.integers(0, 100), st.booleans())
def test_the_path_of_a_sender(user: int, percent: int, deliver_first: bool) -> None:
    switches = Switches(enabled=True, deliver_before_saved=deliver_first, rollout_percent=percent)
    two_phase = Path.DELIVER_FIRST if deliver_first else Path.SAVE_FIRST
    assert switches.path_of(user) is (two_phase if in_rollout(user, percent) else Path.OFF)


@given(USERS, st.integers(0, 100))
def test_disabled_switch_applies_to_all_users(user: int, percent: int) -> None:
    assert Switches(enabled=False, deliver_before_saved=True, rollout_percent=percent).path_of(user) is Path.OFF


@given(USERS, st.integers(0, 100), st.integers(0, 100))
def test_growing_rollout_keeps_its_users(user: int, one: int, other: int) -> None:
    less, more = (Switches(enabled=True, rollout_percent=percent) for percent in sorted((one, other)))
    assert less.path_of(user) is Path.OFF or more.path_of(user) is Path.SAVE_FIRST


# -- which path a connection is on


def test_a_new_connection_takes_the_wanted_path_when_nothing_of_its_sender_is_under_way() -> None:
    for wanted in Path:
        course = ConnectionPath()
        assert course.wants_change(wanted, 0.0)
        assert course.decide(wanted, 0, 0.0) is wanted
        assert not course.wants_change(wanted, 0.0)


def test_a_message_waits_a_bit_for_another_path_but_the_first_of_a_connection_does_not() -> None:
    there = ConnectionPath(Path.DELIVER_FIRST)
    assert there.must_wait(3, 100.0, 100.0)
    assert not there.must_wait(0, 100.0, 100.0)
    assert not there.must_wait(3, 100.0, 100.0 + WAIT_S)
    assert not ConnectionPath().must_wait(3, 100.0, 100.0)


@for_each(Path)
def test_a_new_connection_that_finds_messages_under_way_goes_behind_them(wanted: Path) -> None:
    course = ConnectionPath()
    assert course.decide(wanted, 3, 5.0) is Path.SAVE_FIRST


def test_a_connection_changes_when_nothing_is_under_way_and_else_tries_again_later() -> None:
    course = ConnectionPath(Path.DELIVER_FIRST)
    assert course.wants_change(Path.OFF, 100.0)
    assert course.decide(Path.OFF, 1, 100.0) is Path.DELIVER_FIRST
    assert not course.wants_change(Path.OFF, 100.0 + STAY_S - 0.01)
    assert course.wants_change(Path.OFF, 100.0 + STAY_S)
    assert course.decide(Path.OFF, 0, 100.0 + STAY_S) is Path.OFF


def test_postponed_change_is_dropped_after_the_path_changed() -> None:
    course = ConnectionPath(Path.OFF)
    course.decide(Path.SAVE_FIRST, 1, 100.0)
    course.decide(Path.SAVE_FIRST, 0, 101.0)
    assert course.wants_change(Path.OFF, 101.0)


@given(st.lists(st.tuples(PATHS, st.integers(0, 2), st.floats(0, 15)), max_size=40))
def test_a_connection_never_leaves_its_path_while_something_is_under_way(steps: list[tuple[Path, int, float]]) -> None:
    course, now = ConnectionPath(), 0.0
    for wanted, unsaved, later in steps:
        now += later
        before = course.path
        if not course.wants_change(wanted, now):
            assert wanted is before or now < course.retry_at
            continue
        path = course.decide(wanted, unsaved, now)
        assert path is course.path
        if unsaved == 0:
            assert path is wanted
        else:
            assert path is (before or Path.SAVE_FIRST)
            assert course.retry_at == now + STAY_S
