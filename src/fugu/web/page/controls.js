// ------------------------------------------------------------------ hands of people

const KEY_NAMES = { " ": "space", enter: "return", esc: "escape" };
const ARROWS = ["up", "left", "down", "right"];

/** What a key is called in an environment's description: as pygame calls it. */
function nameOf(event) {
  const key = event.key.toLowerCase();
  return KEY_NAMES[key] ?? key.replace(/^arrow/, "");
}

/** The name under which a cell that was pointed at counts as a key. */
const cellName = (value) => `cell ${value}`;

/** What is held, the last at the end, and what was tapped since somebody looked. */
class Hands {
  constructor() {
    this.release();
  }

  press(name) {
    this.held = [...this.held.filter((other) => other !== name), name];
    this.tapped.push(name);
  }

  lift(name) {
    this.held = this.held.filter((other) => other !== name);
  }

  /** Pressed and let go at once. */
  tap(name) {
    this.tapped.push(name);
  }

  release() {
    this.held = [];
    this.tapped = [];
  }

  /** What counts in this step; a tap counts even if the key is up again by now. */
  take() {
    const taken = [...this.tapped.filter((name) => !this.held.includes(name)), ...this.held];
    this.tapped = [];
    return taken;
  }
}

/** One number of one agent's action, and what sets it. */
class Control {
  /** @param values what each key does, by its name */
  constructor(leaf, index, column, values) {
    Object.assign(this, { leaf, index, column, values });
    this.choices = leaf.kind === BOX ? 0 : leaf.choices;
    const taken = new Set(values.values());
    const free = [...Array(this.choices).keys()].filter((choice) => !taken.has(choice));
    // What is done while nothing is held; null: what was done last.
    this.idle = !this.choices || free.includes(0) ? 0 : free.length === 1 ? free[0] : null;
    this.value = this.idle ?? 0;
  }

  hold(names) {
    const known = names.filter((name) => this.values.has(name));
    if (known.length) this.value = this.values.get(known.at(-1));
    else if (this.idle !== null) this.value = this.idle;
  }

  allowed(mask) {
    return !this.choices || mask[this.column + this.value] !== 0;
  }
}

/** The controls that an environment gives to one of its agents. */
function controlsOf(spec, group, agent) {
  const leaves = spec.groups[group].action;
  const places = new Map();
  const at = (leaf, index) => {
    const place = `${leaf} ${index}`;
    if (!places.has(place)) places.set(place, { leaf, index, values: new Map() });
    return places.get(place).values;
  };
  for (const key of spec.keys)
    if (key.group === group && key.agent === agent) at(key.leaf, key.index).set(key.name, key.value);
  for (const cells of spec.cells)
    if (group === 0 && cells.agent === agent)
      for (let value = 0; value < cells.columns * cells.rows; ++value) at(0, 0).set(cellName(value), value);
  return [...places.values()].map(({ leaf, index, values }) => {
    const before = leaves.slice(0, leaf).filter(({ kind }) => kind !== BOX);
    const column = before.reduce((sum, other) => sum + other.choices * sizeOf(other), 0);
    return new Control(leaves[leaf], index, column + index * leaves[leaf].choices, values);
  });
}
