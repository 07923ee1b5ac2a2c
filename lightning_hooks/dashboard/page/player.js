// Plays steps: a button, a speed, and the loop that shows one step after another.

import { choice, h } from "./dom.js";

const FRAMES = 300; // about the most steps that are shown in a whole run; more are skipped evenly
const PAUSE = 100; // milliseconds between two steps at the speed 1
const SPEEDS = [["0.5", "half speed"], ["1", "normal"], ["2", "double"], ["4", "fourfold"]];
const [PLAY, PAUSED] = ["▶ Play", "❚❚ Pause"];

/**
 * A player over `count()` steps. `index()` is the one that is shown, and `show(index)` shows another and resolves when it is drawn;
 * `isShown()` tells whether the view is still shown.
 */
export class Player {
  constructor({ count, index, show, isShown }) {
    Object.assign(this, { count, index, show, isShown, isPlaying: false });
    this.button = h("button", { class: "play", "aria-pressed": "false", onclick: () => this.toggle() }, PLAY);
    const speed = choice("Speed", SPEEDS, "1", (value) => (this.speed = Number(value)));
    this.speed = 1;
    this.element = h("span", { class: "player" }, this.button, speed);
  }

  toggle() {
    if (this.isPlaying) this.stop();
    else this.play();
  }

  stop() {
    this.isPlaying = false;
    this.button.textContent = PLAY;
    this.button.setAttribute("aria-pressed", "false");
  }

  async play() {
    if (this.isPlaying || this.count() < 2) return;
    this.isPlaying = true;
    this.button.textContent = PAUSED;
    this.button.setAttribute("aria-pressed", "true");
    let at = this.index() >= this.count() - 1 ? -1 : this.index(); // from the start if the last step is shown
    while (this.isPlaying) {
      at = Math.min(at + Math.max(Math.round(this.count() / FRAMES), 1), this.count() - 1);
      await this.show(at);
      if (at >= this.count() - 1 || !this.isShown()) break;
      await new Promise((done) => setTimeout(done, PAUSE / this.speed));
    }
    this.stop();
  }
}
