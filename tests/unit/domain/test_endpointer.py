"""Speech is cut where it begins and ends. The detector of these tests knows which milliseconds are speech."""

from array import array
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.endpointer import LEAD_MS, START_MS, Endpoint, Endpointer, Frame, quietest
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
from support.tables import for_each

RATE, MS, FRAME_MS = 8000, 16, 20  # samples a second, bytes a millisecond
SILENCE_MS = 500
RULES = SegmenterSettings(max_duration_ms=3000, pause_ms=3000, final_grace_ms=50)

Passage = tuple[bool, int]  # speech or not, milliseconds


class Speaker:
    """A client and the detector of its session: sends what is said, and follows where every byte of it goes."""

    def __init__(self, said: Sequence[Passage], rules: SegmenterSettings = RULES) -> None:
        self.speech = [speech for speech, duration_ms in said for _ in range(duration_ms)]
        self.pcm = array("h", (n % 30000 for n in range(len(self.speech) * MS // 2))).tobytes()
        self.cuts: list[tuple[Cut, int]] = []  # and its first byte
        self.outputs: list[Output] = []
        self.dropped: list[tuple[int, int]] = []
        self.sent = self.at = 0  # bytes sent, and bytes that are in an output
        self.chunks: list[tuple[int, int]] = []  # by number: first byte and end
        self.mark = AudioMark()
        self._rules, self._turns = rules, count()
        self._restart(0)

    def _restart(self, next_index: int) -> None:
        self.seg = Segmenter(
            self._rules, lambda: f"turn-{next(self._turns)}", next_index, "pcm16", Endpointer(RATE, SILENCE_MS)
        )
        self._framed = self.at  # up to here the detector has made frames

    def say(self, chunk_ms: int = 100, *, now: float = 0.0, final: bool = False) -> list[Output]:
        size = min(chunk_ms * MS, len(self.pcm) - self.sent)
        self.chunks.append((self.sent, self.sent + size))
        self.sent += size
        return self._send(len(self.chunks) - 1, now, final=final)

    def _send(self, seq: int, now: float, *, final: bool = False, skipped: int = 0) -> list[Output]:
        begin, end = self.chunks[seq]
        audio = self.pcm[begin + skipped : end]
        return self.take(self.seg.chunk(audio, 0, final, now, seq, self._frames(end), skipped))

    def _frames(self, end: int) -> list[Frame]:
        frames = []
        while self._framed + FRAME_MS * MS <= end:
            frames.append(Frame(self.speech[self._framed // MS], FRAME_MS * MS))
            self._framed += FRAME_MS * MS
        return frames

    def say_all(self, chunk_ms: int = 100) -> "Speaker":
        while self.sent < len(self.pcm):
            self.say(chunk_ms)
        return self

    def take(self, outputs: list[Output]) -> list[Output]:
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, Cut):
                assert output.audio == self.pcm[self.at : self.at + len(output.audio)]
                self.cuts.append((output, self.at))
                self.at += len(output.audio)
            elif isinstance(output, Silence | Withheld):
                size = output.duration_ms * MS
                self.dropped.append((self.at, self.at + size))
                self.at += size
            if not isinstance(output, TurnEnded):
                seq = self.mark.seq if output.settled.seq is None else output.settled.seq
                self.mark = output.settled._replace(seq=seq)
        return outputs

    def settled(self) -> int:
        """How much audio is settled, as the last mark says."""
        if self.mark.split_seq is not None:
            return self.chunks[self.mark.split_seq][0] + self.mark.split_bytes
        return 0 if self.mark.seq is None else self.chunks[self.mark.seq][1]

    def resume(self, now: float) -> None:
        """Another instance continues: it has what the outputs said, and gets the later chunks again."""
        turn_id, first = self.seg.turn_id, -1 if self.mark.seq is None else self.mark.seq
        self._restart(len(self.cuts))
        if turn_id is not None:
            self.seg.resume_turn(turn_id, now)
        mark = self.mark
        for seq in range(first + 1, len(self.chunks)):
            self._send(seq, now, skipped=mark.split_bytes if seq == mark.split_seq else 0)

    def places(self) -> list[tuple[int, int, str]]:
        """Of each cut: its first and last millisecond, and what cut it."""
        return [(at // MS, (at + len(cut.audio)) // MS, cut.reason.value) for cut, at in self.cuts]


def test_utterance_keeps_a_little_silence_before_it_and_ends_after_half_a_second_without_speech() -> None:
    speaker = Speaker([(False, 1000), (True, 600), (False, 1500)]).say_all()
    assert speaker.places() == [(1000 - LEAD_MS, 1600 + SILENCE_MS, "timeout")]
    (cut, _) = speaker.cuts[0]
    assert (cut.index, cut.begins_turn, cut.ends_turn, cut.duration_ms) == (0, True, True, 1300)


def test_silence_counts_from_the_end_of_speech_though_the_detector_hears_it_late() -> None:
    endpointer, size = Endpointer(RATE, SILENCE_MS), FRAME_MS * MS
    for _ in range(START_MS // FRAME_MS):
        endpointer.frame(Frame(True, size))
    assert endpointer.frame(Frame(False, size, late=2 * size)) is None
    ends = [endpointer.frame(Frame(False, size)) for _ in range(SILENCE_MS // FRAME_MS - 3)]
    assert ends == [None] * (len(ends) - 1) + [Endpoint.END]


def test_pause_shorter_than_the_setting_ends_nothing_and_a_longer_one_begins_a_turn() -> None:
    said = [(False, 300), (True, 500), (False, 480), (True, 500), (False, 700), (True, 500), (False, 600)]
    speaker = Speaker(said).say_all()
    assert speaker.places() == [(100, 2280, "timeout"), (2280, 3480, "timeout")]
    assert [cut.turn_id for cut, _ in speaker.cuts] == ["turn-0", "turn-1"]


def test_noise_shorter_than_a_start_of_speech_makes_no_utterance() -> None:
    speaker = Speaker([(False, 500), (True, START_MS - FRAME_MS), (False, 700), (True, 60), (False, 1000)]).say_all()
    assert speaker.cuts == []
    assert speaker.seg.deadline() is None


@for_each([1, 20, 33, 250, 5000])
def test_places_of_the_cuts_do_not_depend_on_the_length_of_the_chunks(chunk_ms: int) -> None:
    said = [(False, 700), (True, 4000), (False, 900), (True, 260), (False, 700), (True, 140), (False, 40), (True, 3000)]
    assert Speaker(said).say_all(chunk_ms).places() == Speaker(said).say_all(100).places()


def test_speech_without_a_pause_is_cut_at_its_quietest_place_and_the_turn_goes_on() -> None:
    speaker = Speaker([(True, 4000), (False, 600)])
    loud, quiet = array("h", [9000, -9000] * (RATE // 2)), array("h", [300, -300] * (RATE // 20))
    speaker.pcm = (loud * 2 + quiet + loud * 3)[: 4600 * RATE // 1000].tobytes()
    speaker.say_all()
    first, second = speaker.cuts
    assert speaker.places() == [(0, 2050, "max_duration"), (2050, 4500, "timeout")]
    assert (first[0].turn_id, first[0].ends_turn) == (second[0].turn_id, False)


def test_turn_ends_without_an_utterance_when_nothing_is_said_after_a_cut_by_length() -> None:
    speaker = Speaker([(True, 2700), (False, 480)])
    speaker.pcm = array("h", [9000, -9000] * (27 * RATE // 20)).tobytes() + bytes(480 * MS)
    speaker.say_all()
    [(cut, _)] = speaker.cuts
    assert (cut.reason, 2700 * MS < len(cut.audio) < 2800 * MS) == (Reason.MAX_DURATION, True)
    assert speaker.seg.open_utterance is None
    speaker.speech += [False] * 100
    speaker.pcm += bytes(100 * MS)
    speaker.say_all()
    assert speaker.outputs[-2:] == [TurnEnded("turn-0"), speaker.outputs[-1]]
    assert (len(speaker.cuts), speaker.seg.turn_id) == (1, None)


@pytest.mark.parametrize("speech_ms", [60, 900])
def test_cut_by_hand_takes_what_was_said_at_once(speech_ms: int) -> None:
    speaker = Speaker([(False, 1000), (True, speech_ms)])
    speaker.say(1000)
    speaker.say(speech_ms, final=True)
    assert speaker.places() == [(800, 1000 + speech_ms, "manual")]
    assert speaker.seg.deadline() is None


def test_cut_by_hand_in_silence_makes_no_utterance() -> None:
    speaker = Speaker([(False, 1000)])
    speaker.say(1000, final=True)
    assert [type(output) for output in speaker.outputs] == [Silence, Withheld]
    assert (speaker.cuts, speaker.mark, speaker.at) == ([], AudioMark(0), len(speaker.pcm))


def test_a_client_that_stops_sending_in_the_middle_of_speech_is_cut_by_the_pause() -> None:
    speaker = Speaker([(False, 200), (True, 450)])
    speaker.say(650, now=10.0)
    assert speaker.seg.deadline() == 13.0
    speaker.take(speaker.seg.poll(13.0))
    assert speaker.places() == [(0, 650, "timeout")]


def test_silence_that_is_heard_ends_an_utterance_also_while_a_translation_plays() -> None:
    speaker = Speaker([(True, 400), (False, 600)])
    speaker.seg.tts_started(0.0)
    assert speaker.say_all().places() == [(0, 900, "timeout")]


def test_an_hour_of_silence_makes_no_utterance_and_keeps_no_audio() -> None:
    seg = Segmenter(RULES, lambda: "turn", 0, "pcm16", Endpointer(RATE, SILENCE_MS))
    chunk, frames = bytes(1000 * MS), [Frame(False, FRAME_MS * MS)] * (1000 // FRAME_MS)
    for second in range(3600):
        outputs = seg.chunk(chunk, 1000, False, float(second), second, frames)
        assert [type(output) for output in outputs] == [Silence]
        assert seg.deadline() is None
        assert seg.open_utterance is None
    assert (seg.next_index, outputs[-1].settled) == (0, AudioMark(3598, 3599, (1000 - LEAD_MS) * MS))  # type: ignore[union-attr]


def open_of(seg: Segmenter) -> tuple[int, str | None, int, bytes] | None:
    now = seg.open_utterance
    return None if now is None else (now.index, now.turn_id, now.duration_ms, now.read())


def test_open_utterance_appears_with_the_start_of_speech_and_again_after_a_cut_by_length() -> None:
    speaker = Speaker([(False, 600), (True, 3000), (False, 300)])
    speaker.say(680)
    assert open_of(speaker.seg) is None
    speaker.say(60)
    assert open_of(speaker.seg) == (0, None, 340, speaker.pcm[400 * MS : 740 * MS])
    while not speaker.cuts:
        speaker.say(100)
    left = speaker.pcm[speaker.at : speaker.sent]
    assert open_of(speaker.seg) == (1, "turn-0", len(left) // MS, left)


def test_chunk_that_a_cut_split_is_continued_where_it_was_cut_after_a_resume() -> None:
    speaker = Speaker([(True, 700), (False, 900), (True, 800), (False, 700)])
    speaker.say(2000)
    assert speaker.mark == AudioMark(None, 0, 1400 * MS)
    speaker.resume(now=2.0)
    speaker.say_all()
    assert speaker.places() == [(0, 1200, "timeout"), (1400, 2900, "timeout")]
    assert [cut.index for cut, _ in speaker.cuts] == [0, 1]


def test_speech_that_goes_on_after_a_resume_stays_in_its_turn() -> None:
    speaker = Speaker([(True, 3600), (False, 700)])
    while not speaker.cuts:
        speaker.say(200)
    speaker.resume(now=3.0)
    speaker.say_all()
    assert [cut.turn_id for cut, _ in speaker.cuts] == ["turn-0"] * 2


PASSAGES = st.lists(
    st.tuples(st.booleans(), st.sampled_from([20, 60, 100, 180, 320, 500, 740, 1500, 3300])), max_size=12
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["chunk"] * 8 + ["final", "empty final", "poll", "resume"]),
        st.sampled_from([0, 1, 7, 20, 100, 333, 2000]),
        st.sampled_from([0.0, 0.0, 0.0, 0.1, 4.0]),
    ),
    max_size=25,
)


@given(PASSAGES, STEPS)
def test_every_byte_is_in_one_cut_or_dropped_whatever_happens(
    said: list[Passage], steps: list[tuple[str, int, float]]
) -> None:
    speaker, now = Speaker(said), 0.0
    for what, chunk_ms, passed in steps:
        now += passed
        if what == "poll":
            speaker.take(speaker.seg.poll(now))
        elif what == "empty final":
            speaker.chunks.append((speaker.sent, speaker.sent))
            speaker._send(len(speaker.chunks) - 1, now, final=True)
        elif what == "resume":
            speaker.resume(now)
        else:
            speaker.say(chunk_ms, now=now, final=what == "final")
        assert speaker.settled() == speaker.at  # a resume would continue with the first byte that is in no output
    speaker.take(speaker.seg.close(now + 1))
    assert speaker.at == speaker.sent
    assert [cut.index for cut, _ in speaker.cuts] == list(range(len(speaker.cuts)))
    assert all(len(cut.audio) <= 3000 * MS + 2000 * MS for cut, _ in speaker.cuts)


@given(PASSAGES)
def test_no_start_of_speech_is_dropped(said: list[Passage]) -> None:
    speaker = Speaker(said).say_all()
    speaker.take(speaker.seg.close(60.0))
    for begin, end in speaker.dropped:
        run = longest = 0
        for at in range(begin // MS, end // MS):
            run = run + 1 if speaker.speech[at] else 0
            longest = max(longest, run)
        assert longest < START_MS


@for_each([8000, 16000, 44100, 48000])
def test_quietest_place_is_found_at_every_sample_rate(rate: int) -> None:
    loud, quiet = array("h", [5000, -7000] * (rate // 4)), array("h", [200, 100] * (rate // 16))
    at = quietest((loud + quiet + loud).tobytes(), rate) / 2 / rate
    assert 0.5 < at < 0.625


def test_audio_too_short_to_have_a_quiet_place_is_cut_at_its_end() -> None:
    assert quietest(bytes(80 * MS), RATE) == 80 * MS
