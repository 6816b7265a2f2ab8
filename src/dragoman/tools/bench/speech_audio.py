"""One second of speech as it travels: what every utterance and every answer of the speech benches carries."""

from dragoman.protocol.audio import encode_base64, opus_run

PACKET_BYTES = 40  # 16 kbit/s
PACKETS = 50  # of 20 ms

AUDIO = bytes(encode_base64(opus_run([b"\xf8" + bytes(PACKET_BYTES - 1)] * PACKETS))).strip(b'"')
"""Base64, without the quotes."""
