// ------------------------------------------------------------------ keys to touch

const SIGNS = { up: "↑", left: "←", down: "↓", right: "→", return: "enter" };
const REACH = 14; // pixels that a finger moves before it counts as a direction
const TRAIL = 40; // pixels that the middle of a drag stays behind the finger at most

/** What a key does, in a word; nothing if its name says it. */
function meaning(spec, key) {
  const leaf = spec.groups[key.group].action[key.leaf];
  if (leaf.kind === BOX) return "";
  const words = wordsOf(leaf, leaf.choices);
  const word = words[key.value];
  return word === key.name || word === `${key.value}` ? "" : word;
}

/** Buttons for the keys of an agent: the arrows as a cross, the others beside it. */
function padOf(spec, who, hands, used) {
  const keys = spec.keys.filter(({ group, agent }) => group === who.group && agent === who.agent);
  const pad = element("div", "pad");
  pad.setAttribute("role", "group");
  pad.setAttribute("aria-label", `Keys of ${who.name}`);
  const arrows = element("div", "arrows");
  const others = element("div", "others");
  for (const key of keys) {
    const isArrow = ARROWS.includes(key.name);
    const button = keyButton(key, meaning(spec, key), hands, used);
    if (isArrow) button.style.gridArea = key.name;
    (isArrow ? arrows : others).append(button);
  }
  arrows.classList.toggle("flat", !keys.some(({ name }) => name === "up"));
  pad.append(...[arrows, others].filter((part) => part.childElementCount));
  return pad;
}

function keyButton(key, word, hands, used) {
  const button = element("button", "key");
  button.type = "button";
  button.dataset.key = key.name;
  button.append(element("kbd", "", SIGNS[key.name] ?? key.name), ...(word ? [element("small", "", word)] : []));
  button.setAttribute("aria-label", word ? `${key.name}: ${word}` : key.name);
  const lift = () => {
    button.classList.remove("down");
    hands.lift(key.name);
  };
  button.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the focus stays where it is
    button.setPointerCapture(event.pointerId);
    button.classList.add("down");
    hands.press(key.name);
    used();
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) button.addEventListener(end, lift);
  button.addEventListener("click", (event) => {
    if (event.detail) return; // of a pointer, which was heard above
    hands.tap(key.name);
    used();
  });
  button.addEventListener("contextmenu", (event) => event.preventDefault());
  return button;
}

/** A finger that is dragged over the picture holds the arrow that it is dragged toward. */
class Drag {
  constructor(names, hands, used) {
    Object.assign(this, { names, hands, used, held: null });
  }

  begin(event) {
    this.middle = { x: event.clientX, y: event.clientY };
  }

  move(event) {
    if (!this.middle) return;
    const [dx, dy] = [event.clientX - this.middle.x, event.clientY - this.middle.y];
    const across = Math.abs(dx) > Math.abs(dy) || !this.names.includes("up");
    const along = across ? dx : dy;
    if (Math.abs(along) < REACH) return;
    const name = across ? (dx < 0 ? "left" : "right") : dy < 0 ? "up" : "down";
    if (name !== this.held && this.names.includes(name)) {
      if (this.held) this.hands.lift(this.held);
      this.held = name;
      this.hands.press(name);
      this.used();
    }
    const over = Math.max(0, Math.hypot(dx, dy) - TRAIL) / (Math.hypot(dx, dy) || 1);
    this.middle.x += dx * over;
    this.middle.y += dy * over;
  }

  end() {
    if (this.held) this.hands.lift(this.held);
    this.held = this.middle = null;
  }
}
