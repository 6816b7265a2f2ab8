from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.segmenter import (
    AudioMark,
    Cut,
    Output,
    Reason,
    Segmenter,
    SegmenterSettings,
    Silence,
    TurnEnded,
    Withheld,
)
from dragoman.protocol.audio import opus_run

CHUNK_MS = 256


def turn_ids() -> Iterator[str]:
    return (f"turn-{n}" for n in count())


def segmenter(*, audio_format: str = "opus", **changed: int) -> Segmenter:
    """Audio of these tests is a few letters: nothing is withheld as quiet unless a test asks for it."""
    ids = turn_ids()
    settings = SegmenterSettings(**{"quiet_final_ms": 0} | changed)
    return Segmenter(settings, lambda: next(ids), audio_format=audio_format)


def cut_of(outputs: list[Output]) -> Cut:
    assert len(outputs) == 1
    assert isinstance(outputs[0], Cut)
    return outputs[0]


def speak(seg: Segmenter, seconds: float, start: float = 0.0) -> tuple[list[Output], float]:
    """Speech as the web client sends it: one chunk per 256 ms."""
    outputs: list[Output] = []
    now = start
    for n in range(round(seconds * 1000 / CHUNK_MS)):
        now = start + n * CHUNK_MS / 1000
        outputs += seg.chunk(b"x" * 900, CHUNK_MS, False, now)
    return outputs, now


def test_a_final_with_audio_cuts_at_once() -> None:
    seg = segmenter()
    assert seg.chunk(b"ab", 20, False, 0.0, seq=1) == []
    cut = cut_of(seg.chunk(b"c", 20, True, 0.1, seq=2))
    assert cut == Cut(0, Reason.MANUAL, b"abc", 40, "turn-0", True, True, 280, AudioMark(2))
    assert seg.deadline() is None


def test_an_empty_final_waits_a_moment_for_the_chunk_behind_it() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    assert seg.chunk(b"", 0, True, 1.0) == []
    assert seg.deadline() == pytest.approx(1.05)
    assert seg.chunk(b"b", 20, False, 1.01) == []
    assert cut_of(seg.poll(1.06)).audio == b"ab"


def test_more_finals_do_not_put_the_cut_off() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.chunk(b"", 0, True, 1.0)
    seg.chunk(b"", 0, True, 1.04)
    assert seg.deadline() == pytest.approx(1.05)
    assert cut_of(seg.chunk(b"b", 20, True, 1.045)).audio == b"ab"
    assert seg.deadline() is None


def open_of(seg: Segmenter) -> tuple[int, str | None, int, bytes] | None:
    now = seg.open_utterance
    return None if now is None else (now.index, now.turn_id, now.duration_ms, now.read())


def test_the_open_utterance_has_the_audio_since_the_last_cut_and_the_number_of_the_next() -> None:
    seg = segmenter(max_duration_ms=60)
    assert open_of(seg) is None
    seg.chunk(b"ab", 20, False, 0.0)
    assert open_of(seg) == (0, None, 20, b"ab")
    cut = cut_of(seg.chunk(b"c", 40, False, 0.1))
    assert open_of(seg) is None
    seg.chunk(b"de", 20, False, 0.2)
    assert open_of(seg) == (1, cut.turn_id, 20, b"de")


def test_the_open_utterance_is_read_from_a_position() -> None:
    seg = segmenter()
    seg.chunk(b"abc", 20, False, 0.0)
    utterance = seg.open_utterance
    assert utterance is not None
    assert utterance.size == 3
    assert [utterance.read(position) for position in (0, 2, 3)] == [b"abc", b"c", b""]


def test_three_seconds_without_a_chunk_are_a_pause() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 10.0)
    assert seg.deadline() == 13.0
    assert seg.poll(12.9) == []
    cut = cut_of(seg.poll(13.0))
    assert (cut.reason, cut.padding_ms, cut.ends_turn) == (Reason.TIMEOUT, 220, True)
    assert seg.deadline() is None


def test_a_chunk_without_audio_does_not_put_the_pause_off() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.chunk(b"", 0, False, 2.0)
    assert seg.deadline() == 3.0


def test_ten_seconds_of_audio_are_cut_and_the_turn_goes_on() -> None:
    seg = segmenter()
    outputs, _ = speak(seg, 10.3)
    cut = cut_of(outputs)
    assert (cut.reason, cut.duration_ms, cut.begins_turn, cut.ends_turn) == (Reason.MAX_DURATION, 10240, True, False)
    assert cut.is_max_duration_triggered
    assert seg.turn_id == cut.turn_id


def test_zero_means_no_longest_duration() -> None:
    outputs, _ = speak(segmenter(max_duration_ms=0), 60.0)
    assert outputs == []


def test_forty_five_seconds_without_a_pause_are_one_turn_of_four_max_duration_jobs_and_one_ending_job() -> None:
    seg = segmenter()
    outputs, now = speak(seg, 45.0)
    outputs += seg.chunk(b"", 0, True, now)
    outputs += seg.poll(now + 0.05)
    cuts = [cut for cut in outputs if isinstance(cut, Cut)]
    assert [cut.reason for cut in cuts] == [Reason.MAX_DURATION] * 4 + [Reason.MANUAL]
    assert {cut.turn_id for cut in cuts} == {"turn-0"}
    assert [cut.begins_turn for cut in cuts] == [True, False, False, False, False]
    assert [cut.ends_turn for cut in cuts] == [False, False, False, False, True]


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_empty_cut_still_ends_the_turn_and_takes_no_number(by_hand: bool) -> None:
    seg = segmenter(max_duration_ms=100)
    first = cut_of(seg.chunk(b"a", 100, False, 0.0))
    if by_hand:
        seg.chunk(b"", 0, True, 1.0)
    assert seg.poll(3.0) == [TurnEnded(first.turn_id)]
    assert seg.deadline() is None
    second = cut_of(seg.chunk(b"b", 20, True, 4.0))
    assert (second.index, second.begins_turn) == (1, True)
    assert second.turn_id != first.turn_id


def test_closing_cuts_what_is_left_by_hand() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    cut = cut_of(seg.close(0.1))
    assert (cut.reason, cut.is_manual_cut, cut.ends_turn, cut.padding_ms) == (Reason.CLOSE, True, True, 280)
    assert seg.close(0.2) == []


def test_closing_ends_an_open_turn() -> None:
    seg = segmenter(max_duration_ms=100)
    first = cut_of(seg.chunk(b"a", 100, False, 0.0))
    assert seg.close(0.1) == [TurnEnded(first.turn_id)]


def test_while_a_translation_plays_silence_is_no_pause() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.tts_started(1.0)
    assert seg.poll(20.0) == []
    seg.tts_ended(20.0)
    assert seg.deadline() == 23.0
    assert cut_of(seg.poll(23.0)).reason is Reason.TIMEOUT


def test_a_playback_that_never_ends_is_over_after_a_minute() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.tts_started(1.0)
    assert seg.deadline() == 64.0
    seg.tts_ended(63.0)
    assert seg.deadline() == 64.0


def test_the_end_of_a_playback_that_never_began_does_not_put_the_pause_off() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.tts_ended(2.0)
    assert seg.deadline() == 3.0


def test_silence_of_a_paused_client_is_no_pause_until_the_client_may_send_again() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.client_paused(2.0, now=1.0)
    assert seg.deadline() == 6.0
    assert seg.poll(5.9) == []
    assert seg.chunk(b"b", 20, False, 5.9) == []
    assert cut_of(seg.poll(8.9)).audio == b"ab"


def test_shorter_pause_does_not_end_a_longer_one() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.client_paused(5.0, now=1.0)
    seg.client_paused(1.0, now=2.0)
    assert seg.deadline() == 9.0


def test_playback_that_ends_does_not_end_the_pause_of_a_client() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0)
    seg.tts_started(1.0)
    seg.client_paused(5.0, now=1.0)
    seg.tts_ended(2.0)
    assert seg.deadline() == 9.0


def test_a_cut_knows_the_last_message_that_is_in_it() -> None:
    seg = segmenter()
    seg.chunk(b"a", 20, False, 0.0, seq=4)
    seg.chunk(b"", 0, True, 0.1, seq=6)
    seg.chunk(b"b", 20, False, 0.11, seq=5)
    assert cut_of(seg.poll(0.2)).settled.seq == 6
    seg.chunk(b"c", 20, False, 0.3)
    assert cut_of(seg.close(0.4)).settled.seq is None


def test_a_resumed_session_goes_on_with_its_turn_and_its_numbers() -> None:
    ids = turn_ids()
    seg = Segmenter(SegmenterSettings(quiet_final_ms=0), lambda: next(ids), next_index=7)
    seg.resume_turn("turn-of-old", now=100.0)
    assert seg.deadline() == 103.0
    cut = cut_of(seg.chunk(b"a", 20, True, 101.0))
    assert (cut.index, cut.turn_id, cut.begins_turn) == (7, "turn-of-old", False)


# -- quiet finals

# As the original web client sends them: 256 ms at a time, 12 or 13 packets.
SILENCE, SPEECH = (opus_run([bytes(size)] * 13) for size in (8, 70))


def test_short_quiet_final_makes_no_utterance_and_takes_no_number() -> None:
    seg = segmenter(quiet_final_ms=600)
    assert seg.chunk(SILENCE, 260, False, 0.0, seq=1) == []
    assert seg.chunk(SILENCE, 260, True, 0.1, seq=2) == [Withheld(AudioMark(2), 520)]
    assert seg.deadline() is None
    assert cut_of(seg.chunk(SPEECH, 260, True, 1.0, seq=3)).index == 0


@pytest.mark.parametrize("final_first", [False, True])
def test_silent_finals_of_the_web_client_are_withheld_until_speech(final_first: bool) -> None:
    seg, outputs, now = segmenter(quiet_final_ms=600), list[Output](), 0.0
    for seq in range(0, 40, 2):
        now += 0.256
        for final in (final_first, not final_first):
            outputs += seg.chunk(b"" if final else SILENCE, 0 if final else 260, final, now, seq)
    outputs += seg.poll(now + 0.05)
    assert {type(output) for output in outputs} == {Withheld}
    assert sum(output.duration_ms for output in outputs if isinstance(output, Withheld)) == 20 * 260
    seg.chunk(SPEECH, 260, False, now + 0.256)
    seg.chunk(b"", 0, True, now + 0.256)
    cut = cut_of(seg.poll(now + 0.31))
    assert (cut.index, cut.audio) == (0, SPEECH)


def test_short_final_is_cut_at_once_when_something_was_said() -> None:
    seg = segmenter(quiet_final_ms=600)
    seg.chunk(SILENCE, 260, False, 0.0)
    assert cut_of(seg.chunk(SPEECH, 260, True, 0.1)).audio == SILENCE + SPEECH


@pytest.mark.parametrize("closes", [True, False])
def test_quiet_audio_is_cut_by_a_pause_and_by_closing(closes: bool) -> None:
    seg = segmenter(quiet_final_ms=600)
    seg.chunk(SILENCE, 260, False, 0.0)
    assert cut_of(seg.close(1.0) if closes else seg.poll(3.0)).audio == SILENCE


@pytest.mark.parametrize(("loudness", "kind"), [(31, Withheld), (33, Cut)])
def test_short_pcm16_final_is_withheld_when_its_samples_are_quiet(loudness: int, kind: type) -> None:
    seg = segmenter(quiet_final_ms=600, audio_format="pcm16")
    samples = (loudness.to_bytes(2, "little") + (-loudness).to_bytes(2, "little", signed=True)) * 2400
    [output] = seg.chunk(samples, 300, True, 0.0)
    assert type(output) is kind


def test_nothing_is_withheld_when_the_setting_is_zero() -> None:
    assert cut_of(segmenter(quiet_final_ms=0).chunk(SILENCE, 260, True, 0.0)).audio == SILENCE


def test_each_cut_sets_exactly_one_flag_of_its_job() -> None:
    for reason in Reason:
        cut = Cut(0, reason, b"a", 20, "t", True, reason.ends_turn, 220, AudioMark())
        assert [cut.is_manual_cut, cut.is_timeout_triggered, cut.is_max_duration_triggered].count(True) == 1


# The oracle works in ticks of 1/8 s, exact in binary: it looks at every tick and counts quiet ones, and knows no
# deadlines at all.
TICK_MS = 125
RULES = SegmenterSettings(
    final_grace_ms=250, pause_ms=1000, max_duration_ms=500, max_buffer_bytes=6, tts_max_ms=2000,
    quiet_final_ms=0, quiet_opus_bytes=1,
)  # fmt: skip
WITHHOLDING = replace(RULES, quiet_final_ms=200)


@dataclass
class TickByTick:
    rules: SegmenterSettings = RULES
    withheld: list[int] = field(default_factory=list)  # durations
    held: list[tuple[bytes, int]] = field(default_factory=list)
    cuts: list[tuple[str, bytes, int, int]] = field(default_factory=list)  # reason, audio, duration, turn
    ended: list[int] = field(default_factory=list)  # turns that ended without a cut
    turn: int = 0
    turn_has_cut: bool = False
    quiet_ticks: int = 0
    tts_ticks_left: int = 0
    paused_ticks_left: int = 0
    grace_ticks_left: int | None = None

    def tick(self) -> None:
        if self.grace_ticks_left is not None:
            self.grace_ticks_left -= 1
        # A tick in which playback was still on, or the client was asked to send nothing, is no quiet one.
        if self.tts_ticks_left or self.paused_ticks_left:
            self.tts_ticks_left = max(0, self.tts_ticks_left - 1)
            self.paused_ticks_left = max(0, self.paused_ticks_left - 1)
            self.quiet_ticks = 0
        else:
            self.quiet_ticks += 1
        if self.grace_ticks_left == 0:
            self.finish("manual")
        elif self.grace_ticks_left is None and self.quiet_ticks * TICK_MS >= RULES.pause_ms:
            self.finish("timeout")

    def put_out(self, reason: str) -> None:
        audio, duration = b"".join(a for a, _ in self.held), sum(d for _, d in self.held)
        self.cuts.append((reason, audio, duration, self.turn))
        self.held, self.turn_has_cut = [], True

    def is_quiet(self) -> bool:
        duration, size = sum(d for _, d in self.held), sum(len(a) for a, _ in self.held)
        packets = duration // 20
        return duration < self.rules.quiet_final_ms and size - 2 * packets < self.rules.quiet_opus_bytes * packets

    def finish(self, reason: str) -> None:
        if self.held and reason == "manual" and not self.turn_has_cut and self.is_quiet():
            self.withheld.append(sum(d for _, d in self.held))
            self.held = []
        elif self.held:
            self.put_out(reason)
        elif self.turn_has_cut:
            self.ended.append(self.turn)
        self.turn += 1 if self.turn_has_cut else 0
        self.turn_has_cut, self.grace_ticks_left = False, None

    def chunk(self, audio: bytes, duration: int, final: bool) -> None:
        if audio:
            self.held.append((audio, duration))
            self.quiet_ticks = 0
        if final and audio:
            return self.finish("manual")
        if final:
            if self.grace_ticks_left is None:
                self.grace_ticks_left = RULES.final_grace_ms // TICK_MS
            return None
        if not audio:
            return None
        for reason, over in (
            ("max_duration", sum(d for _, d in self.held) >= RULES.max_duration_ms),
            ("max_length", sum(len(a) for a, _ in self.held) > RULES.max_buffer_bytes),
        ):
            if over:
                return self.put_out(reason) if self.grace_ticks_left is None else self.finish("manual")
        return None


Step = tuple[str, int, int, int]  # what, ticks passed, bytes, duration
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["chunk"] * 5 + ["final", "final", "tts", "tts_ended", "pause", "poll"]),
        st.sampled_from([0, 0, 1, 1, 2, 3, 7, 8, 9, 30]),
        st.integers(0, 4),
        st.sampled_from([0, 20, 100, 250]),
    ),
    max_size=40,
)


def run(steps: list[Step], rules: SegmenterSettings = RULES) -> tuple[list[Output], TickByTick, bytes]:
    ids = turn_ids()
    seg, oracle, tick = Segmenter(rules, lambda: next(ids)), TickByTick(rules), 0
    outputs: list[Output] = []
    fresh = count(0)
    spoken = b""
    for what, passed, size, duration in steps:
        tick += passed
        now = tick * TICK_MS / 1000
        for _ in range(passed):
            oracle.tick()
        if what in ("chunk", "final"):
            audio = bytes(next(fresh) % 251 for _ in range(size))
            spoken += audio
            outputs += seg.chunk(audio, duration if audio else 0, what == "final", now)
            oracle.chunk(audio, duration if audio else 0, what == "final")
        elif what == "tts":
            seg.tts_started(now)
            oracle.tts_ticks_left = RULES.tts_max_ms // TICK_MS
        elif what == "tts_ended":
            seg.tts_ended(now)
            if oracle.tts_ticks_left:
                oracle.tts_ticks_left = oracle.quiet_ticks = 0
        elif what == "pause":
            seg.client_paused(size * TICK_MS / 1000, now)
            oracle.paused_ticks_left, oracle.quiet_ticks = max(oracle.paused_ticks_left, size), 0
        else:
            outputs += seg.poll(now)
            due = seg.deadline()
            assert due is None or due > now
    outputs += seg.close(tick * TICK_MS / 1000)
    oracle.finish("close")
    return outputs, oracle, spoken


@given(STEPS, st.sampled_from([RULES, WITHHOLDING]))
def test_cuts_and_turns_equal_those_of_a_check_at_every_tick(steps: list[Step], rules: SegmenterSettings) -> None:
    outputs, oracle, _ = run(steps, rules)
    cuts = [cut for cut in outputs if isinstance(cut, Cut)]
    assert [(c.reason.value, c.audio, c.duration_ms, c.turn_id) for c in cuts] == [
        (reason, audio, duration, f"turn-{turn}") for reason, audio, duration, turn in oracle.cuts
    ]
    ended = [output.turn_id for output in outputs if isinstance(output, TurnEnded)]
    assert ended == [f"turn-{turn}" for turn in oracle.ended]
    assert [output.duration_ms for output in outputs if isinstance(output, Withheld)] == oracle.withheld
    assert [cut.index for cut in cuts] == list(range(len(cuts)))


@given(STEPS)
def test_no_audio_is_lost_or_doubled_and_indexes_have_no_holes(steps: list[Step]) -> None:
    outputs, _, spoken = run(steps)
    cuts = [cut for cut in outputs if isinstance(cut, Cut)]
    assert b"".join(cut.audio for cut in cuts) == spoken
    assert all(cut.audio for cut in cuts)
    assert [cut.index for cut in cuts] == list(range(len(cuts)))


@given(STEPS)
def test_a_turn_begins_once_ends_once_and_is_not_interleaved_with_another(steps: list[Step]) -> None:
    outputs, _, _ = run(steps)
    by_turn: dict[str, list[Output]] = {}
    for output in outputs:
        assert not isinstance(output, Withheld | Silence)
        by_turn.setdefault(output.turn_id, []).append(output)
    for of_turn in by_turn.values():
        *before, last = of_turn
        assert isinstance(last, TurnEnded) or (isinstance(last, Cut) and last.ends_turn)
        assert isinstance(of_turn[0], Cut)
        assert of_turn[0].begins_turn
        assert all(isinstance(cut, Cut) and not cut.ends_turn for cut in before)
        assert not any(isinstance(cut, Cut) and cut.begins_turn for cut in of_turn[1:])
    order = [output.turn_id for output in outputs if isinstance(output, Cut | TurnEnded)]
    assert sum(1 for one, other in pairwise(order) if one != other) == max(0, len(by_turn) - 1)
