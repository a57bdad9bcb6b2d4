// ------------------------------------------------------------------ the gallery, and the start

const WARM_UP = 40; // steps of chance before a picture is taken

/** A card of the gallery; its picture moves while it is pointed at. */
class Card {
  constructor(spec, compiled) {
    const { root, part } = grow("card");
    Object.assign(this, { root, spec, compiled });
    root.href = `#${spec.name}`;
    part("title").textContent = spec.title;
    part("summary").textContent = spec.summary;
    this.picture = new Picture(root.querySelector("canvas"), spec.size);
    for (const event of ["pointerenter", "focus"]) root.addEventListener(event, () => this.#move());
    for (const event of ["pointerleave", "blur"]) root.addEventListener(event, () => this.#rest());
  }

  /** Takes a picture of a game that is under way. */
  async open() {
    const spec = { ...this.spec, waits: false };
    this.game = new Game(spec, await Module.start(await this.compiled(), spec, 1), 3n);
    for (const who of this.game.agents) who.mode = CHANCE;
    let list = this.game.module.shapes(0);
    for (let step = 0; step < WARM_UP; ++step) {
      const before = this.game.tallies[0][0].episodes;
      this.game.step([]);
      if (this.game.tallies[0][0].episodes === before) list = this.game.module.shapes(0);
    }
    this.list = list;
    this.show();
  }

  show() {
    this.picture.fit();
    if (!this.list) return;
    this.picture.paint(this.list);
    this.picture.canvas.style.background = colourOf(this.list.background); // beside the picture
  }

  #move() {
    if (!this.game || calm.matches) return;
    clearInterval(this.timer);
    this.timer = setInterval(() => {
      this.game.step([]);
      this.list = this.game.module.shapes(0);
      this.show();
    }, 1000 / Math.min(30, this.spec.frames || RATE));
  }

  #rest() {
    clearInterval(this.timer);
  }

  close() {
    this.#rest();
  }
}

/** Every environment of the page as a card, by kind. */
class Gallery {
  constructor(data, compiled) {
    const { root, part } = grow("gallery-page");
    this.root = root;
    part("count").textContent = `${data.games.length} environments, each a small C program that runs here as WebAssembly. Choose one and play.`;
    this.cards = new Map(data.games.map((spec) => [spec.name, new Card(spec, () => compiled(spec))]));
    const listed = new Set(data.kinds.flatMap(({ games }) => games));
    const rest = data.games.map(({ name }) => name).filter((name) => !listed.has(name));
    const kinds = rest.length ? [...data.kinds, { title: "More", games: rest }] : data.kinds;
    for (const { title, games } of kinds) {
      const section = element("section", "kind");
      const grid = element("div", "cards");
      grid.append(...games.map((name) => this.cards.get(name).root));
      section.append(element("h2", "", title), grid);
      part("kinds").append(section);
    }
    this.#watch();
  }

  /** Cards open when they come into view, and are drawn anew when their size changes. */
  #watch() {
    const byRoot = new Map([...this.cards.values()].map((card) => [card.root, card]));
    this.sights = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries) {
          if (!isIntersecting) continue;
          this.sights.unobserve(target);
          byRoot.get(target).open();
        }
      },
      { rootMargin: "200px" },
    );
    this.sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => byRoot.get(target).show()));
    for (const root of byRoot.keys()) {
      this.sights.observe(root);
      this.sizes.observe(root);
    }
  }

  close() {
    this.sights.disconnect();
    this.sizes.disconnect();
    for (const card of this.cards.values()) card.close();
  }
}

/** The page: the gallery, or the environment that the address names. */
class App {
  constructor(data) {
    this.data = data;
    this.modules = new Map();
    this.several = data.games.length > 1;
    addEventListener("hashchange", () => this.open());
  }

  compiled(spec) {
    if (!this.modules.has(spec.name)) this.modules.set(spec.name, compile(spec.module));
    return this.modules.get(spec.name);
  }

  async open() {
    const name = decodeURIComponent(location.hash.slice(1));
    const spec = this.several ? this.data.games.find((game) => game.name === name) : this.data.games[0];
    this.wanted = spec;
    const module = spec && (await Module.start(await this.compiled(spec), spec, 1));
    if (this.wanted !== spec) return; // another one was asked for meanwhile
    const view = spec
      ? new Player(spec, module, this.several)
      : new Gallery(this.data, (game) => this.compiled(game));
    this.view?.close();
    this.view = view;
    document.title = spec && this.several ? `${spec.title} · ${this.data.title}` : this.data.title;
    document.getElementById("page").replaceChildren(view.root);
    scrollTo(0, 0);
  }
}

/** For those who look at the page from a console: `fugu.view.game`. */
globalThis.fugu = new App(JSON.parse(document.getElementById("data").textContent));
try {
  await globalThis.fugu.open();
} catch (error) {
  document.getElementById("page").append(element("p", "failure", `This page needs a browser with WebAssembly: ${error.message}`));
  throw error;
}
