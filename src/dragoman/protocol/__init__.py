"""What crosses the wire: message types, codes, ids, audio framing and the codec. No I/O, no clock, no state."""
