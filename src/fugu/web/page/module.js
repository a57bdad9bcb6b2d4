// ------------------------------------------------------------------ modules

const BOX = 0; // the kind of a leaf that holds numbers; all others hold choices
const SHAPE_WORDS = 21; // of FuguShape
const ROWS = [
  "observations", "final", "actions", "masks", "rewards", "costs", "terminations", "truncations",
  "live", "over", "agents", "observationBytes", "actionBytes", "maskWidth", "numCosts",
]; // of FuguArrays
const MINDS = [
  "states", "params", "values", "numStates", "numParams", "numValues", "choices", "spread",
]; // of WebMinds

/** How many numbers a leaf has. */
const sizeOf = (leaf) => leaf.shape.reduce((product, side) => product * side, 1);

/** Compiles a module that is written as base64. */
function compile(text) {
  return WebAssembly.compile(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
}

/** Copies of an environment in a module's memory. */
class Module {
  /** Starts a compiled module with so many copies. */
  static async start(compiled, spec, copies) {
    const { exports } = await WebAssembly.instantiate(compiled);
    return new Module(exports, spec, copies);
  }

  constructor(exports, spec, copies) {
    this.calls = exports;
    this.spec = spec;
    this.open(copies);
  }

  /** So many copies, each to be reset; what was before is gone. */
  open(copies) {
    if (!this.calls.open(copies)) throw new Error(`no memory for ${copies} copies`);
    this.copies = copies;
    this.groups = this.spec.groups.map((_, g) => this.#struct(this.calls.rows(g), ROWS));
    this.minds = this.spec.groups.map((_, g) => {
      const at = this.calls.minds(g);
      return at ? this.#struct(at, MINDS) : null;
    });
  }

  /** All memory as typed arrays; they are made anew when it has grown. */
  get memory() {
    const { buffer } = this.calls.memory;
    if (this.views?.buffer !== buffer)
      this.views = {
        buffer,
        bytes: new Uint8Array(buffer),
        words: new Uint32Array(buffer),
        floats: new Float32Array(buffer),
        longs: new BigInt64Array(buffer),
      };
    return this.views;
  }

  #struct(at, names) {
    const { words } = this.memory;
    return Object.fromEntries(names.map((name, i) => [name, words[at / 4 + i]]));
  }

  row(group, copy, agent) {
    return copy * this.groups[group].agents + agent;
  }

  /** One of the flags of a row: live, terminations, truncations. */
  flag(name, group, row) {
    return this.memory.bytes[this.groups[group][name] + row] !== 0;
  }

  reward(group, row) {
    return this.memory.floats[this.groups[group].rewards / 4 + row];
  }

  mask(group, row) {
    const { masks, maskWidth } = this.groups[group];
    return this.memory.bytes.subarray(masks + row * maskWidth, masks + (row + 1) * maskWidth);
  }

  /** Where an agent's action lies. */
  actionAt(group, row) {
    return this.groups[group].actions + row * this.groups[group].actionBytes;
  }

  /** A number of a leaf of the action that lies at `at`. */
  number(at, leaf, index) {
    if (leaf.kind === BOX) return this.memory.floats[(at + leaf.offset) / 4 + index];
    return Number(this.memory.longs[(at + leaf.offset) / 8 + index]);
  }

  setNumber(at, leaf, index, value) {
    if (leaf.kind === BOX) this.memory.floats[(at + leaf.offset) / 4 + index] = value;
    else this.memory.longs[(at + leaf.offset) / 8 + index] = BigInt(value);
  }

  /** What a policy thinks of an agent: parameters of its actions, and values. */
  thought(group, row) {
    const { params, values, numParams, numValues } = this.minds[group];
    const part = (at, count) => this.memory.floats.subarray(at / 4 + row * count, at / 4 + (row + 1) * count);
    return { params: part(params, numParams), values: part(values, numValues) };
  }

  /** The display list of a copy, as it is now. */
  shapes(copy) {
    const at = this.calls.draw(copy);
    if (!at) throw new Error("no memory for a picture");
    const [first, count, , background] = this.memory.words.subarray(at / 4, at / 4 + 4);
    const words = this.memory.words.slice(first / 4, first / 4 + count * SHAPE_WORDS);
    return { background, count, words, floats: new Float32Array(words.buffer), bytes: new Uint8Array(words.buffer) };
  }
}
