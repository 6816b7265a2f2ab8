// Bytes as JSON carries them.

const PIECE = 0x8000; // what can be given to a function at once

export function encode(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += PIECE) text += String.fromCharCode(...bytes.subarray(at, at + PIECE));
  return btoa(text);
}

export function decode(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
