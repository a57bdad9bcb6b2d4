// ------------------------------------------------------------------ games

const YOU = "you", POLICY = "policy", CHANCE = "chance";
const REMEMBERED = 100; // episodes of which the mean is told

/** What one agent of one copy has earned. */
class Tally {
  constructor() {
    Object.assign(this, { score: 0, best: null, episodes: 0, returns: [] });
  }

  earn(reward) {
    this.score = Math.round((this.score + reward) * 1e6) / 1e6;
  }

  end() {
    this.best = this.best === null ? this.score : Math.max(this.best, this.score);
    this.returns = [...this.returns, this.score].slice(-REMEMBERED);
    this.episodes += 1;
    this.score = 0;
  }
}

/**
 * Copies of an environment, and who acts for which agent. People act in the copy that is chosen;
 * elsewhere the policy acts in their place, or chance.
 */
class Game {
  constructor(spec, module, seed) {
    Object.assign(this, { spec, module, seed, chosen: 0, greedy: true });
    this.agents = spec.groups.flatMap(({ agents, thinks }, group) =>
      agents.map((name, agent) => {
        const controls = controlsOf(spec, group, agent);
        const mode = thinks ? POLICY : controls.length ? YOU : CHANCE;
        return { name, group, agent, thinks, controls, mode };
      }),
    );
    this.restart();
  }

  get copies() {
    return this.module.copies;
  }

  /** So many copies from now on, all from the beginning. */
  set copies(count) {
    this.module.open(count);
    this.chosen = 0;
    this.restart();
  }

  /** All copies begin anew; the first has the seed itself, the others have seeds of their own. */
  restart(seed = this.seed) {
    this.seed = seed;
    this.steps = 0;
    this.tallies = [];
    for (let copy = 0; copy < this.copies; ++copy) {
      const own = copy ? this.module.calls.derive(seed, BigInt(copy)) : seed;
      this.module.calls.reset(copy, own);
      this.tallies.push(this.agents.map(() => new Tally()));
      for (const { group, agent } of this.agents) this.module.calls.guess(group, copy, agent);
      this.#think(copy);
    }
  }

  /** People act in this copy from now on. */
  choose(copy) {
    this.chosen = copy;
    this.decideAll();
  }

  /** Somebody else acts from now on, or in another way. */
  decideAll() {
    for (let copy = 0; copy < this.copies; ++copy) this.#decide(copy);
  }

  /** Who acts for an agent in a copy. */
  #actor(copy, { mode, thinks }) {
    if (mode !== YOU || copy === this.chosen) return mode;
    return thinks ? POLICY : CHANCE;
  }

  /** Agents that people play. */
  get played() {
    return this.agents.filter(({ mode }) => mode === YOU);
  }

  isLive(copy, { group, agent }) {
    return this.module.flag("live", group, this.module.row(group, copy, agent));
  }

  /** Whether the chosen copy stands still until a person does something. */
  get waits() {
    return this.spec.waits && this.played.some((who) => this.isLive(this.chosen, who));
  }

  /** One step of the chosen copy, while these are held; false if that is not allowed now. */
  step(held) {
    if (!this.#stepCopy(this.chosen, held)) return false;
    this.steps += 1;
    return true;
  }

  /** One step of all other copies, which wait for nobody. */
  stepOthers() {
    for (let copy = 0; copy < this.copies; ++copy) if (copy !== this.chosen) this.#stepCopy(copy, []);
  }

  #stepCopy(copy, held) {
    for (const who of this.agents) if (!this.#act(copy, who, held)) return false;
    this.module.calls.step(copy);
    this.agents.forEach((who, i) => {
      const tally = this.tallies[copy][i];
      const row = this.module.row(who.group, copy, who.agent);
      tally.earn(this.module.reward(who.group, row));
      if (this.module.flag("terminations", who.group, row) || this.module.flag("truncations", who.group, row))
        tally.end();
    });
    this.#think(copy);
    return true;
  }

  /** Writes what an agent does; false if it is a person's wish that is not allowed. */
  #act(copy, who, held) {
    const actor = this.#actor(copy, who);
    if (actor === YOU) for (const control of who.controls) control.hold(held);
    if (actor === POLICY || !this.isLive(copy, who)) return true; // it has decided
    this.module.calls.guess(who.group, copy, who.agent);
    return actor !== YOU || this.#obey(copy, who);
  }

  #obey(copy, { group, agent, controls }) {
    const row = this.module.row(group, copy, agent);
    const mask = this.module.mask(group, row);
    for (const control of controls) {
      if (control.allowed(mask))
        this.module.setNumber(this.module.actionAt(group, row), control.leaf, control.index, control.value);
      else if (this.spec.waits) return false;
    }
    return true;
  }

  /** Policies look at what is there now, once, and decide. */
  #think(copy) {
    for (const who of this.agents)
      if (who.thinks && this.isLive(copy, who)) this.module.calls.think(who.group, copy, who.agent);
    this.#decide(copy);
  }

  #decide(copy) {
    for (const who of this.agents)
      if (this.#actor(copy, who) === POLICY && this.isLive(copy, who))
        this.module.calls.act(who.group, copy, who.agent, this.greedy);
  }
}
