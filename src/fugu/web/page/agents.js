// ------------------------------------------------------------------ agents beside the game

const MODES = { [YOU]: "You", [POLICY]: "Policy", [CHANCE]: "Chance" };

/** Fresh nodes of one of the page's templates, and what they hold by its data attribute. */
function grow(id) {
  const root = document.getElementById(id).content.firstElementChild.cloneNode(true);
  const part = (name) => (root.matches(`[data-${name}]`) ? root : root.querySelector(`[data-${name}]`));
  return { root, part };
}

/** One agent: its score, who acts for it, and what its policy thinks. */
class AgentCard {
  /** @param changed called when somebody else acts for the agent */
  constructor(game, index, changed) {
    Object.assign(this, { game, index, who: game.agents[index] });
    const { root, part } = grow("agent");
    this.root = root;
    this.score = part("score");
    const name = this.who.name.replaceAll("_", " ");
    part("name").textContent = name[0].toUpperCase() + name.slice(1);
    this.score.hidden = game.agents.length === 1; // it stands above
    this.#offer(part("modes"), changed);
    this.bars = [];
    if (!this.who.thinks) return;
    part("value").hidden = false;
    this.curve = new ValueCurve(part("value"));
    this.bars = barsOf(game.spec.groups[this.who.group].action);
    for (const bar of this.bars) part("heads").append(bar.root);
  }

  #offer(place, changed) {
    const { who } = this;
    const modes = [who.controls.length ? YOU : "", who.thinks ? POLICY : "", CHANCE].filter(Boolean);
    place.hidden = modes.length < 2;
    place.setAttribute("aria-label", `Who acts for ${who.name}`);
    for (const mode of modes) {
      const label = element("label", "");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: `mode ${this.index}`, value: mode, checked: who.mode === mode });
      input.addEventListener("change", () => {
        who.mode = mode;
        changed();
      });
      label.append(input, element("span", "", MODES[mode]));
      place.append(label);
    }
  }

  get row() {
    return this.game.module.row(this.who.group, this.game.chosen, this.who.agent);
  }

  /** A step was made. */
  note() {
    if (this.curve) this.curve.note(this.game.module.thought(this.who.group, this.row).values[0]);
  }

  /** Another copy is looked at, or all begins anew. */
  forget() {
    this.curve?.forget();
  }

  show() {
    const { game, who, row } = this;
    say(this.score, brief(game.tallies[game.chosen][this.index].score));
    if (!who.thinks) return;
    const { module } = game;
    const thought = module.thought(who.group, row);
    const numbers = this.bars.some((bar) => bar instanceof NumberBar);
    const spread = numbers ? module.calls.spread(who.group, game.chosen, who.agent) : 0;
    this.curve.show(thought.values);
    for (const bar of this.bars) bar.show(module, who.group, row, thought, spread);
  }
}
