// Opus packets into an Ogg file, which is what browsers decode.
//
// The wire has runs of [u16 little-endian length][packet], 20 ms each. An Ogg page is a header with a checksum, a
// table of lengths in pieces of at most 255, and the packets: RFC 3533 and RFC 7845.

const PACKET_SAMPLES = 960; // 20 ms at 48 kHz, in which Opus counts whatever was encoded
const PRE_SKIP = 312;
const SERIAL = 0x44524147;
const BEGIN = 2, END = 4;
const PACKETS_A_PAGE = 40; // 1,275 bytes at most are six pieces each; a page has room for 255

const CRC = new Uint32Array(256).map((_, byte) => {
  let crc = byte << 24;
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x80000000 ? (crc << 1) ^ 0x04c11db7 : crc << 1;
  return crc >>> 0;
});

/** The packets of a run, without a truncated one at its end. */
export function packetsOf(run) {
  const packets = [];
  for (let at = 0; at + 2 <= run.length; ) {
    const size = run[at] | (run[at + 1] << 8);
    if (at + 2 + size > run.length) break;
    packets.push(run.subarray(at + 2, at + 2 + size));
    at += 2 + size;
  }
  return packets;
}

/** A whole file, as an ArrayBuffer. */
export function mux(packets, sampleRate = 16000) {
  const pages = [page([head(sampleRate)], 0, 0, BEGIN), page([tags()], 0, 1, 0)];
  for (let at = 0; at < packets.length; at += PACKETS_A_PAGE) {
    const some = packets.slice(at, at + PACKETS_A_PAGE);
    const last = at + some.length >= packets.length;
    pages.push(page(some, (at + some.length) * PACKET_SAMPLES, pages.length, last ? END : 0));
  }
  return joined(pages).buffer;
}

function head(sampleRate) {
  const bytes = new Uint8Array(19), view = new DataView(bytes.buffer);
  bytes.set(ascii("OpusHead"));
  bytes[8] = 1; // version
  bytes[9] = 1; // channels
  view.setUint16(10, PRE_SKIP, true);
  view.setUint32(12, sampleRate, true);
  return bytes;
}

function tags() {
  const vendor = ascii("dragoman"), bytes = new Uint8Array(8 + 4 + vendor.length + 4);
  bytes.set(ascii("OpusTags"));
  new DataView(bytes.buffer).setUint32(8, vendor.length, true);
  bytes.set(vendor, 12);
  return bytes;
}

function page(packets, granule, number, flags) {
  const lacing = packets.flatMap((packet) => [...Array(Math.floor(packet.length / 255)).fill(255), packet.length % 255]);
  const header = new Uint8Array(27 + lacing.length), view = new DataView(header.buffer);
  header.set(ascii("OggS"));
  header[5] = flags;
  view.setBigUint64(6, BigInt(granule), true);
  view.setUint32(14, SERIAL, true);
  view.setUint32(18, number, true);
  header[26] = lacing.length;
  header.set(lacing, 27);
  const whole = joined([header, ...packets]);
  new DataView(whole.buffer).setUint32(22, checksum(whole), true);
  return whole;
}

function checksum(bytes) {
  let crc = 0;
  for (const byte of bytes) crc = ((crc << 8) ^ CRC[(crc >>> 24) ^ byte]) >>> 0;
  return crc;
}

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) whole.set(part, at), (at += part.length);
  return whole;
}

function ascii(text) {
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}
