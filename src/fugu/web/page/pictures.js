// ------------------------------------------------------------------ pictures

const [RECTANGLE, CIRCLE, LINE, TRIANGLE, LETTERS] = [0, 1, 2, 3, 4];
const FONT = 'ui-rounded, "SF Pro Rounded", "Nunito", system-ui, sans-serif';
const CAPITALS = 2 / 3; // how high they are, of the height of letters
const LEAP = 0.2; // what moves by more than this share of a picture has not moved but leapt

const colours = new Map();

function colourOf(word) {
  if (!colours.has(word)) colours.set(word, `#${word.toString(16).padStart(6, "0")}`);
  return colours.get(word);
}

/** Whether two shapes are the same to the last bit, letters aside. */
function same(a, i, b, j) {
  for (let w = 0; w < 9; ++w)
    if (a.words[i * SHAPE_WORDS + w] !== b.words[j * SHAPE_WORDS + w]) return false;
  return true;
}

/** Whether two shapes may be one that has moved. */
function akin(a, i, b, j) {
  const [p, q] = [i * SHAPE_WORDS, j * SHAPE_WORDS];
  return a.words[p] === b.words[q] && a.words[p + 1] === b.words[q + 1];
}

/**
 * For each shape of a list, which one of the list before it is; -1 for none. Where shapes came or
 * went, those before them must be the same, and those behind them are counted from the end.
 */
function origins(before, after) {
  const from = new Int32Array(after.count).fill(-1);
  const shift = before.count - after.count;
  let first = 0;
  if (shift !== 0)
    while (first < Math.min(before.count, after.count) && same(before, first, after, first)) ++first;
  for (let i = after.count - 1; i >= first && i + shift >= first; --i) {
    if (akin(before, i + shift, after, i)) from[i] = i + shift;
    else if (shift !== 0) break;
  }
  return from;
}

/** A canvas that shows display lists. */
class Picture {
  /** @param size width and height, in the units of the lists */
  constructor(canvas, size) {
    this.canvas = canvas;
    this.size = size;
    this.context = canvas.getContext("2d", { alpha: false });
    canvas.style.aspectRatio = `${size[0]} / ${size[1]}`;
  }

  /** As many pixels as the screen has for it; whether that changed. */
  fit() {
    const ratio = Math.min(globalThis.devicePixelRatio || 1, 3);
    const width = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
    const height = Math.max(1, Math.round((width * this.size[1]) / this.size[0]));
    if (this.canvas.width === width && this.canvas.height === height) return false;
    this.canvas.width = width;
    this.canvas.height = height;
    return true;
  }

  /** Draws a list, or what lies between the one before and it. */
  paint(list, before = null, share = 1) {
    const { context, canvas } = this;
    this.scale = canvas.width / this.size[0];
    context.fillStyle = colourOf(list.background);
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (before && share < 1) list.from ??= origins(before, list);
    const at = new Float32Array(6);
    for (let i = 0; i < list.count; ++i) {
      const word = i * SHAPE_WORDS;
      for (let k = 0; k < 6; ++k) at[k] = list.floats[word + 2 + k];
      if (before && share < 1 && list.from[i] >= 0) this.#mix(at, before, list.from[i], share);
      this.#shape(list, word, at);
    }
  }

  #mix(at, before, index, share) {
    const first = index * SHAPE_WORDS + 2;
    const far = LEAP * (this.size[0] + this.size[1]) / 2;
    for (let k = 0; k < 6; ++k) if (Math.abs(at[k] - before.floats[first + k]) > far) return;
    for (let k = 0; k < 6; ++k) at[k] = before.floats[first + k] + (at[k] - before.floats[first + k]) * share;
  }

  #shape(list, word, at) {
    const { context, scale } = this;
    for (let k = 0; k < 6; ++k) at[k] *= scale;
    const [x0, x1, x2, y0, y1, y2] = at;
    const size = list.floats[word + 8] * scale;
    context.fillStyle = colourOf(list.words[word + 1]);
    switch (list.words[word]) {
      case RECTANGLE: { // on whole pixels, so that no seam shows between two that touch
        const [left, top] = [Math.round(Math.min(x0, x1)), Math.round(Math.min(y0, y1))];
        const [right, bottom] = [Math.round(Math.max(x0, x1)), Math.round(Math.max(y0, y1))];
        context.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
        break;
      }
      case CIRCLE:
        context.beginPath();
        context.arc(x0, y0, Math.max(size, 0.4), 0, 2 * Math.PI);
        context.fill();
        break;
      case LINE:
        context.strokeStyle = context.fillStyle;
        context.lineWidth = Math.max(size, 0.8);
        context.lineCap = "round";
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.stroke();
        break;
      case TRIANGLE:
        context.strokeStyle = context.fillStyle;
        context.lineWidth = 1; // half a pixel on each side: of two that touch, one covers the seam
        context.lineJoin = "round";
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.lineTo(x2, y2);
        context.closePath();
        context.fill();
        context.stroke();
        break;
      case LETTERS:
        this.#letters(textOf(list, word), x0, y0, size);
    }
  }

  #letters(text, x, y, height) {
    const { context } = this;
    context.font = `600 100px ${FONT}`;
    Picture.capital ??= context.measureText("H").actualBoundingBoxAscent / 100;
    context.font = `600 ${(height * CAPITALS) / Picture.capital}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    context.fillText(text, x, y + (height * CAPITALS) / 2);
  }
}

function textOf(list, word) {
  const begin = (word + 9) * 4;
  let end = begin;
  while (list.bytes[end]) ++end;
  return String.fromCharCode(...list.bytes.subarray(begin, end));
}
