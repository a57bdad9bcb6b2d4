// ------------------------------------------------------------------ the player

const RATE = 30; // steps a second where an environment does not say
const SMOOTH = 45; // steps a second above which nothing is drawn between two steps
const FEW = 4; // copies; of more than that only the chosen one is drawn between two steps
const BUDGET = 12; // milliseconds of a frame that steps may take
const COMMANDS = { " ": "play", r: "restart", ".": "step" };

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** A page on which one environment is played. */
class Player {
  constructor(spec, module, back) {
    const { root, part } = grow("player-page");
    Object.assign(this, { root, part, spec, hands: new Hands() });
    this.game = new Game(spec, module, 1n);
    this.rate = spec.frames > 0 ? spec.frames : RATE;
    this.playing = false;
    this.due = 0;
    this.told = 0; // the episode whose end was told last
    this.keysDown = new Map(); // names by the place of the key, since a name may change while held
    part("title").textContent = spec.title;
    part("summary").textContent = spec.summary;
    part("reward").textContent = spec.reward && `Reward: ${spec.reward}.`;
    part("note").textContent = spec.note;
    part("back").hidden = !back;
    part("acting").hidden = !spec.groups.some(({ thinks }) => thinks);
    part("seed").value = "1";
    this.#bindTransport();
    this.#listen();
    this.#makeScreens();
    this.#makeCards();
    this.#showSpeed();
    this.play(this.game.played.length === 0 ? !calm.matches : spec.waits);
    this.frame = requestAnimationFrame((now) => this.#tick(now));
  }

  /** Nothing of it goes on. */
  close() {
    cancelAnimationFrame(this.frame);
    this.stopped.abort();
  }

  play(on) {
    this.playing = on;
    const button = this.part("play");
    button.setAttribute("aria-label", on ? "Pause" : "Play");
    button.querySelector("use").setAttribute("href", on ? "#pause" : "#play");
    this.root.classList.toggle("playing", on);
    this.begun ||= on;
    this.root.classList.toggle("begun", this.begun);
  }

  /** All copies from the beginning. */
  restart(seed = this.game.seed) {
    this.game.restart(seed);
    this.told = 0;
    this.hands.release();
    this.#seen(false);
    for (const card of this.cards) card.forget();
  }

  /** One step, as soon as a person wants it where the game waits for one. */
  step() {
    const { game } = this;
    const asked = this.hands.tapped.length > 0;
    const acted = (!game.waits || asked) && game.step(this.hands.take());
    game.stepOthers();
    if (acted) for (const card of this.cards) card.note();
    if (!acted && game.copies === 1) return;
    this.#news();
    this.#seen(true);
  }

  /** A person did something to play. */
  #used() {
    if (!this.begun) this.play(true);
    if (this.playing && this.game.waits) this.step();
  }

  // ------------------------------------------------------------------ what is on the page

  #bindTransport() {
    const { part } = this;
    const on = (name, event, does) => part(name).addEventListener(event, does);
    on("play", "click", () => this.play(!this.playing));
    on("restart", "click", () => this.restart());
    on("step", "click", () => {
      this.play(false);
      this.step();
    });
    on("speed", "input", () => this.#showSpeed());
    on("seed", "change", () => {
      const seed = part("seed").value.replace(/\D/g, "") || "1";
      part("seed").value = seed;
      this.restart(BigInt(seed));
    });
    on("any-seed", "click", () => {
      part("seed").value = `${Math.floor(Math.random() * 1e6)}`;
      this.restart(BigInt(part("seed").value));
    });
    on("copies", "change", () => {
      this.game.copies = Number(part("copies").value);
      this.#makeScreens();
      for (const card of this.cards) card.forget();
    });
    on("greedy", "change", () => {
      this.game.greedy = part("greedy").value === "greedy";
      this.game.decideAll();
    });
    // A click leaves the keyboard to the game.
    this.root.addEventListener("click", ({ detail, target }) => {
      if (detail && target.closest("button, .modes")) document.activeElement?.blur();
    });
  }

  #showSpeed() {
    this.speed = 2 ** Number(this.part("speed").value);
    const steps = this.rate * this.speed;
    this.part("rate").textContent = `${brief(this.speed)}×  ·  ${brief(Number(steps.toPrecision(3)))} steps/s`;
  }

  #makeScreens() {
    const { spec, game } = this;
    this.screens = Array.from({ length: game.copies }, (_, copy) => {
      const { root, part } = grow("screen");
      const canvas = root.querySelector("canvas");
      const screen = root.querySelector(".screen");
      screen.setAttribute("aria-label", game.copies > 1 ? `${spec.title}, copy ${copy + 1}` : spec.title);
      this.#listenToPointer(screen, copy);
      return { root, screen, caption: part("caption"), hint: part("hint"), picture: new Picture(canvas, spec.size), list: null, before: null };
    });
    const grid = this.part("screens");
    grid.replaceChildren(...this.screens.map(({ root }) => root));
    grid.style.setProperty("--ratio", spec.size[0] / spec.size[1]);
    grid.style.setProperty("--across", Math.ceil(Math.sqrt(game.copies)));
    grid.classList.toggle("several", game.copies > 1);
    this.choose(0);
    this.#seen(false);
  }

  #makeCards() {
    const changed = () => {
      this.game.decideAll();
      this.stale = true;
      this.hands.release();
      this.#makePads();
    };
    this.cards = this.game.agents.map((_, i) => new AgentCard(this.game, i, changed));
    this.part("agents").replaceChildren(...this.cards.map(({ root }) => root));
    this.#makePads();
  }

  #makePads() {
    const { spec, game } = this;
    const pads = game.played.map((who) => padOf(spec, who, this.hands, () => this.#used()));
    this.part("pads").replaceChildren(...pads.filter((pad) => pad.childElementCount));
    this.names = new Set(game.played.flatMap(({ controls }) => controls.flatMap(({ values }) => [...values.keys()])));
    const arrows = ARROWS.filter((name) => this.names.has(name));
    this.drag = arrows.length ? new Drag(arrows, this.hands, () => this.#used()) : null;
    this.root.classList.toggle("draggable", this.drag !== null);
    const hint = this.names.size ? "Press a key or touch the picture" : "Play";
    for (const screen of this.screens) say(screen.hint, hint);
  }

  /** People act, and bars tell of, this copy from now on. */
  choose(copy) {
    this.game.choose(copy);
    this.stale = true;
    this.screens.forEach(({ root }, i) => root.classList.toggle("chosen", i === copy));
    for (const card of this.cards ?? []) card.forget();
  }

  // ------------------------------------------------------------------ hands

  #listen() {
    this.stopped = new AbortController();
    const on = (target, event, does) => target.addEventListener(event, does, { signal: this.stopped.signal });
    on(window, "keydown", (event) => this.#keyDown(event));
    on(window, "keyup", (event) => {
      this.hands.lift(this.keysDown.get(event.code));
      this.keysDown.delete(event.code);
    });
    on(window, "blur", () => this.hands.release());
  }

  #keyDown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { target } = event;
    if (target.closest("input:not([type=radio]), select, textarea")) return;
    if (target.closest("button, a, label, input") && [" ", "Enter"].includes(event.key)) return;
    const name = nameOf(event);
    if (this.names.has(name)) {
      event.preventDefault();
      if (event.repeat && !this.game.waits) return;
      this.keysDown.set(event.code, name);
      this.hands.press(name);
      this.#used();
    } else if (COMMANDS[event.key]) {
      event.preventDefault();
      this.part(COMMANDS[event.key]).click();
    }
  }

  #listenToPointer(screen, copy) {
    screen.addEventListener("pointerdown", (event) => {
      if (copy !== this.game.chosen) return this.choose(copy);
      if (!this.begun) this.play(true);
      else if (!this.#point(event, screen) && event.pointerType !== "mouse") this.drag?.begin(event);
      if (event.pointerType !== "mouse") screen.setPointerCapture(event.pointerId);
    });
    screen.addEventListener("pointermove", (event) => this.drag?.move(event));
    for (const end of ["pointerup", "pointercancel"]) screen.addEventListener(end, () => this.drag?.end());
  }

  /** A cell that was pointed at; whether there is one. */
  #point(event, screen) {
    const { left, top, width } = screen.querySelector("canvas").getBoundingClientRect();
    const scale = this.spec.size[0] / width;
    const [x, y] = [(event.clientX - left) * scale, (event.clientY - top) * scale];
    for (const cells of this.spec.cells) {
      const who = this.game.played.find(({ group, agent }) => group === 0 && agent === cells.agent);
      if (!who || !this.game.isLive(this.game.chosen, who)) continue;
      const column = Math.floor(((x - cells.x) / cells.width) * cells.columns);
      const row = Math.floor(((y - cells.y) / cells.height) * cells.rows);
      if (column < 0 || row < 0 || column >= cells.columns || row >= cells.rows) continue;
      this.hands.tap(cellName(row * cells.columns + column));
      this.#used();
      return true;
    }
    return false;
  }

  // ------------------------------------------------------------------ time

  #tick(now) {
    this.frame = requestAnimationFrame((next) => this.#tick(next));
    const passed = Math.min(0.1, (now - (this.last ?? now)) / 1000); // what was missed is not caught up
    this.last = now;
    if (this.playing) {
      this.due += passed * this.rate * this.speed;
      const end = performance.now() + BUDGET;
      for (; this.due >= 1; this.due -= 1) {
        if (performance.now() > end) this.due = 1;
        this.step();
      }
    }
    this.#draw();
  }

  /** Lists of all copies are out of date; the old ones are what they have moved from. */
  #seen(moved) {
    for (const screen of this.screens) {
      screen.before = moved ? (screen.list ?? screen.before) : null;
      screen.list = null;
    }
    this.stale = true;
  }

  #draw() {
    const slow = this.playing && !this.spec.waits && !calm.matches && this.rate * this.speed < SMOOTH;
    this.screens.forEach((screen, copy) => {
      const fitted = screen.picture.fit();
      const smooth = slow && (this.game.copies <= FEW || copy === this.game.chosen);
      if (!fitted && !this.stale && !smooth) return;
      screen.list ??= this.game.module.shapes(copy);
      screen.picture.paint(screen.list, screen.before, smooth ? Math.min(1, this.due) : 1);
    });
    if (!this.stale) return;
    this.stale = false;
    this.#count();
    for (const card of this.cards) card.show();
  }

  // ------------------------------------------------------------------ scores

  /** The agent whose score is told: the first that a person plays, or the first of all. */
  get #first() {
    return Math.max(0, this.game.agents.findIndex(({ mode }) => mode === YOU));
  }

  #count() {
    const { game, part } = this;
    const tallies = game.tallies.map((agents) => agents[this.#first]);
    const returns = tallies.flatMap((tally) => tally.returns);
    const bests = tallies.map(({ best }) => best).filter((best) => best !== null);
    say(part("return"), brief(tallies[game.chosen].score));
    say(part("best"), brief(bests.length ? Math.max(...bests) : null));
    say(part("mean"), brief(returns.length ? returns.reduce((a, b) => a + b, 0) / returns.length : null));
    say(part("mean-name"), returns.length > 1 ? `Mean of ${returns.length}` : "Mean");
    say(part("episodes"), `${tallies.reduce((sum, { episodes }) => sum + episodes, 0)}`);
    say(part("steps"), game.steps.toLocaleString("en"));
    this.screens.forEach(({ caption }, copy) => say(caption, brief(tallies[copy].score)));
  }

  /** The end of an episode that a person plays is told to those who do not see it. */
  #news() {
    const { episodes, returns } = this.game.tallies[this.game.chosen][this.#first];
    if (this.game.played.length && episodes > this.told)
      say(this.part("news"), `Episode ${episodes} ended with ${brief(returns.at(-1))}`);
    this.told = episodes;
  }
}
