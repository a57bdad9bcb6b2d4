// ------------------------------------------------------------------ what a policy thinks

const MANY = 9; // choices; more than that are columns side by side
const CURVE = 160; // values that a curve remembers

const element = (tag, className, text = "") => {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
};

/** Sets what an element says, if that is new. */
const say = (target, text) => {
  if (target.textContent !== text) target.textContent = text;
};

/** A number of three digits or so. */
function rounded(number) {
  const text = number.toFixed(Math.abs(number) >= 100 ? 0 : Math.abs(number) >= 10 ? 1 : 2);
  return text.replace(/^-(?=[0.]*$)/, "").replace("-", "\u2212"); // no zero below zero
}

/** A sum of rewards, whole where it is. */
function brief(number) {
  if (number === null) return "–";
  return Number.isInteger(number) ? `${number}`.replace("-", "\u2212") : rounded(number);
}

/** Words for the choices of a leaf, or for its numbers. */
function wordsOf(leaf, count) {
  const words = leaf.text.split(";").map((word) => word.trim());
  if (words.length === count) return words;
  return count === 1 ? [leaf.name || leaf.text] : Array.from({ length: count }, (_, i) => `${i}`);
}

/** The probabilities of choices; what the mask forbids has none. */
function probabilities(logits, mask) {
  const allowed = Array.from(logits, (logit, i) => (mask[i] ? logit : -Infinity));
  const highest = Math.max(...allowed);
  if (highest === -Infinity) return allowed.map(() => 0);
  const weights = allowed.map((logit) => Math.exp(logit - highest));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

/** One number that is chosen among several: a bar for each choice. */
class ChoiceBars {
  constructor(leaf, index, column) {
    Object.assign(this, { leaf, index, column });
    this.words = wordsOf(leaf, leaf.choices);
    this.many = leaf.choices > MANY;
    this.root = element("div", this.many ? "columns" : "bars");
    this.bars = this.words.map((word) => {
      const bar = element("div", "bar");
      const [label, track, percent] = [element("span", "label", word), element("span", "track"), element("span", "percent")];
      track.append(element("i", ""));
      bar.append(...(this.many ? [track] : [label, track, percent]));
      bar.title = word;
      this.root.append(bar);
      return { bar, fill: track.firstChild, percent };
    });
    if (this.many) this.root.append((this.top = element("span", "top")));
  }

  show(module, group, row, { params }) {
    const end = this.column + this.leaf.choices;
    const mask = module.mask(group, row).subarray(this.column, end);
    const shares = probabilities(params.subarray(this.column, end), mask);
    const taken = module.number(module.actionAt(group, row), this.leaf, this.index);
    this.bars.forEach(({ bar, fill, percent }, i) => {
      fill.style.transform = this.many ? `scaleY(${shares[i]})` : `scaleX(${shares[i]})`;
      bar.classList.toggle("taken", i === taken);
      bar.classList.toggle("forbidden", !mask[i]);
      say(percent, `${Math.round(100 * shares[i])}%`);
    });
    if (this.top) {
      const best = shares.indexOf(Math.max(...shares));
      say(this.top, `${this.words[best]} ${Math.round(100 * shares[best])}%`);
    }
  }
}

/** One number of a range: where it is drawn from, and what was taken. */
class NumberBar {
  constructor(leaf, index) {
    Object.assign(this, { leaf, index });
    this.root = element("div", "bars");
    const bar = element("div", "bar");
    const track = element("span", "track range");
    this.band = element("i", "");
    this.mark = element("b", "");
    this.number = element("span", "percent");
    track.append(this.band, this.mark);
    bar.append(element("span", "label", wordsOf(leaf, sizeOf(leaf))[index]), track, this.number);
    this.root.append(bar);
  }

  show(module, group, row, _thought, spread) {
    const [low, high] = [this.leaf.low ?? -3, this.leaf.high ?? 3];
    const place = (at) => {
      const share = (module.number(at, this.leaf, this.index) - low) / (high - low);
      return 100 * Math.min(1, Math.max(0, share));
    };
    const { actionBytes } = module.groups[group];
    const [left, right] = [place(spread), place(spread + 2 * actionBytes)];
    const action = module.actionAt(group, row);
    this.band.style.left = `${left}%`;
    this.band.style.width = `${right - left}%`;
    this.mark.style.left = `${place(action)}%`;
    say(this.number, rounded(module.number(action, this.leaf, this.index)));
  }
}

/** The value of what an agent sees, over the last steps. */
class ValueCurve {
  constructor(root) {
    this.root = root;
    this.canvas = root.querySelector("[data-curve]");
    this.number = root.querySelector("[data-number]");
    this.forget();
  }

  forget() {
    this.values = [];
  }

  note(value) {
    this.values = [...this.values, value].slice(-CURVE);
  }

  show(values) {
    say(this.number, Array.from(values, rounded).join("  "));
    const { canvas } = this;
    const ratio = globalThis.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const context = canvas.getContext("2d");
    const [lowest, highest] = [Math.min(...this.values), Math.max(...this.values)];
    const span = Math.max(highest - lowest, 0.2 * Math.abs(highest), 1e-3); // what barely moves looks so
    const low = (lowest + highest - span) / 2;
    const margin = 2 * ratio;
    const y = (value) => margin + (1 - (value - low) / span) * (canvas.height - 2 * margin);
    const colours = getComputedStyle(canvas);
    context.lineWidth = ratio;
    context.strokeStyle = colours.getPropertyValue("--line");
    context.beginPath();
    context.moveTo(0, y(0));
    context.lineTo(canvas.width, y(0));
    context.stroke();
    context.lineWidth = 2 * ratio;
    context.lineJoin = "round";
    context.strokeStyle = colours.color;
    context.beginPath();
    this.values.forEach((value, i) => context.lineTo((i * canvas.width) / (CURVE - 1), y(value)));
    context.stroke();
  }
}

/** Bars for all that an agent of a group does. */
function barsOf(leaves) {
  const bars = [];
  let column = 0;
  for (const leaf of leaves)
    for (let index = 0; index < sizeOf(leaf); ++index) {
      bars.push(leaf.kind === BOX ? new NumberBar(leaf, index) : new ChoiceBars(leaf, index, column));
      column += leaf.kind === BOX ? 0 : leaf.choices;
    }
  return bars;
}
