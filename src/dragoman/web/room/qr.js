// A QR code of a short text: byte mode, error correction level M, versions 1 to 10 (up to 213 bytes).
//
//   text ─▶ bytes ─▶ blocks with check bytes ─▶ interleaved ─▶ squares, in a zigzag from the lower right ─▶ mask
//
// The numbers are those of ISO/IEC 18004. Of the eight masks the one with the lowest penalty is taken.

// By version: check bytes of a block, and the data bytes of each block.
const BLOCKS = [
  null, [10, [16]], [16, [28]], [26, [44]], [18, [32, 32]], [24, [43, 43]], [16, [27, 27, 27, 27]], [18, [31, 31, 31, 31]],
  [22, [38, 38, 39, 39]], [22, [36, 36, 36, 37, 37]], [26, [43, 43, 43, 43, 44]],
];
const ALIGNED = [null, [], [6, 18], [6, 22], [6, 26], [6, 30], [6, 34], [6, 22, 38], [6, 24, 42], [6, 26, 46], [6, 28, 50]];
const MASKS = [
  (x, y) => (x + y) % 2, (x, y) => y % 2, (x) => x % 3, (x, y) => (x + y) % 3,
  (x, y) => ((y >> 1) + Math.floor(x / 3)) % 2, (x, y) => ((x * y) % 2) + ((x * y) % 3),
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2, (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2,
];
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

/** Rows of booleans, true for dark; null if the text is too long. */
export function squares(text) {
  const bytes = new TextEncoder().encode(text);
  const version = BLOCKS.findIndex((blocks, at) => blocks && capacity(blocks, at) >= bytes.length);
  if (version < 0) return null;
  const code = new Code(version);
  code.fill(interleaved(version, bytes));
  return code.masked();
}

/** As an SVG element with the border of four squares that readers need. */
export function drawing(rows) {
  const size = rows.length + 8, svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS(svg.namespaceURI, "path");
  const dark = rows.flatMap((row, y) => row.map((one, x) => (one ? `M${x + 4} ${y + 4}h1v1h-1z` : "")));
  path.setAttribute("d", dark.join(""));
  svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
  svg.append(path);
  return svg;
}

// ---- bytes

const lengthBits = (version) => (version < 10 ? 8 : 16);

function capacity([, data], version) {
  return Math.floor((sum(data) * 8 - 4 - lengthBits(version)) / 8);
}

function interleaved(version, bytes) {
  const [checks, sizes] = BLOCKS[version], data = padded(version, bytes, sum(sizes));
  const blocks = sizes.map((size, at) => data.slice(sum(sizes.slice(0, at)), sum(sizes.slice(0, at)) + size));
  return [...columns(blocks), ...columns(blocks.map((block) => checkBytes(block, checks)))];
}

function padded(version, bytes, size) {
  let bits = "0100" + bytes.length.toString(2).padStart(lengthBits(version), "0");
  for (const byte of bytes) bits += byte.toString(2).padStart(8, "0");
  bits += "0".repeat(Math.min(4, size * 8 - bits.length));
  bits = bits.padEnd(Math.ceil(bits.length / 8) * 8, "0");
  const data = bits.match(/.{8}/g).map((byte) => parseInt(byte, 2));
  for (let at = 0; data.length < size; at++) data.push(at % 2 ? 0x11 : 0xec);
  return data;
}

function columns(blocks) {
  const longest = Math.max(...blocks.map((block) => block.length));
  const rows = Array.from({ length: longest }, (_, at) => blocks.map((block) => block[at]));
  return rows.flat().filter((byte) => byte !== undefined);
}

/** The remainder of the division by the generator polynomial, over the field of 256 elements (x^8+x^4+x^3+x^2+1). */
function checkBytes(block, count) {
  let generator = [1];
  for (let root = 1, at = 0; at < count; at++, root = times(root, 2)) {
    generator = [...generator, 0].map((one, place) => one ^ (place ? times(generator[place - 1], root) : 0));
  }
  const rest = [...block, ...Array(count).fill(0)];
  for (let at = 0; at < block.length; at++) {
    const factor = rest[at];
    generator.forEach((one, place) => (rest[at + place] ^= times(one, factor)));
  }
  return rest.slice(block.length);
}

function times(a, b) {
  let product = 0;
  for (; b; b >>= 1, a = (a << 1) ^ (a & 0x80 ? 0x11d : 0)) if (b & 1) product ^= a;
  return product;
}

// ---- squares

class Code {
  constructor(version) {
    this.version = version;
    this.size = 17 + 4 * version;
    this.rows = Array.from({ length: this.size }, () => Array(this.size).fill(null)); // null: free for data
    this.data = [];
    this.patterns();
  }

  set(x, y, dark) {
    this.rows[y][x] = Boolean(dark);
  }

  patterns() {
    const far = this.size - 7, aligned = ALIGNED[this.version], last = aligned.at(-1);
    for (const [x, y] of [[0, 0], [far, 0], [0, far]]) this.finder(x, y);
    for (let at = 8; at < this.size - 8; at++) this.set(at, 6, at % 2 === 0), this.set(6, at, at % 2 === 0);
    for (const x of aligned) {
      for (const y of aligned) {
        if (!((x === 6 && (y === 6 || y === last)) || (y === 6 && x === last))) this.alignment(x, y);
      }
    }
    this.format(0); // keeps its place free
    if (this.version >= 7) this.versionBits();
  }

  finder(left, top) {
    for (let y = Math.max(0, top - 1); y < Math.min(this.size, top + 8); y++) {
      for (let x = Math.max(0, left - 1); x < Math.min(this.size, left + 8); x++) {
        const away = Math.max(Math.abs(x - left - 3), Math.abs(y - top - 3));
        this.set(x, y, away !== 2 && away !== 4);
      }
    }
  }

  alignment(x, y) {
    for (let dy = -2; dy <= 2; dy++) {
      for (let dx = -2; dx <= 2; dx++) this.set(x + dx, y + dy, Math.max(Math.abs(dx), Math.abs(dy)) !== 1);
    }
  }

  /** The level (M is 00) and the mask, twice. */
  format(mask) {
    const bits = ((mask << 10) | remainder(mask << 10, 0x537)) ^ 0x5412, end = this.size - 1;
    for (let at = 0; at < 15; at++) {
      const dark = (bits >> at) & 1;
      if (at < 8) this.set(8, at < 6 ? at : at + 1, dark), this.set(end - at, 8, dark);
      else this.set(at === 8 ? 7 : 14 - at, 8, dark), this.set(8, end - 14 + at, dark);
    }
    this.set(8, this.size - 8, true);
  }

  versionBits() {
    const bits = (this.version << 12) | remainder(this.version << 12, 0x1f25);
    for (let at = 0; at < 18; at++) {
      const near = Math.floor(at / 3), far = this.size - 11 + (at % 3), dark = (bits >> at) & 1;
      this.set(near, far, dark);
      this.set(far, near, dark);
    }
  }

  fill(bytes) {
    let at = 0;
    for (let right = this.size - 1, up = true; right > 0; right -= 2, up = !up) {
      if (right === 6) right--; // the column of the timing pattern
      for (let step = 0; step < this.size; step++) {
        const y = up ? this.size - 1 - step : step;
        for (const x of [right, right - 1]) {
          if (this.rows[y][x] !== null) continue;
          this.data.push([x, y, at < bytes.length * 8 && (bytes[at >> 3] >> (7 - (at & 7))) & 1]);
          at++;
        }
      }
    }
  }

  masked() {
    const penalties = MASKS.map((_, mask) => (this.mask(mask), penalty(this.rows)));
    this.mask(penalties.indexOf(Math.min(...penalties)));
    return this.rows;
  }

  mask(number) {
    this.format(number);
    for (const [x, y, dark] of this.data) this.set(x, y, dark ^ (MASKS[number](x, y) === 0));
  }
}

/** Of a division of polynomials with the coefficients 0 and 1. */
function remainder(value, divisor) {
  const length = (number) => 32 - Math.clz32(number);
  while (length(value) >= length(divisor)) value ^= divisor << (length(value) - length(divisor));
  return value;
}

function penalty(rows) {
  const lines = [...rows, ...rows.map((_, x) => rows.map((row) => row[x]))].map((line) => line.map(Number).join(""));
  const runs = lines.flatMap((line) => line.match(/0{5,}|1{5,}/g) ?? []).map((run) => run.length - 2);
  const finders = lines.map((line) => line.match(/(?=00001011101|10111010000)/g)?.length ?? 0);
  let blocks = 0;
  for (let y = 1; y < rows.length; y++) {
    for (let x = 1; x < rows.length; x++) {
      const dark = rows[y][x];
      blocks += dark === rows[y][x - 1] && dark === rows[y - 1][x] && dark === rows[y - 1][x - 1];
    }
  }
  const share = sum(rows.flat().map(Number)) / rows.length ** 2;
  return sum(runs) + 3 * blocks + 40 * sum(finders) + 10 * Math.floor(Math.abs(share * 100 - 50) / 5);
}
