import { element, part } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** Words for the state of the conversation. */
export const STATES = Object.freeze({
  starting: t("Starting the microphone"),
  listening: t("Listening"),
  waiting: t("Hold the button while you speak"),
  hearing: t("You are being heard"),
  understanding: t("One moment"),
  replying: t("Replying. Speak to interrupt"),
  replyingAlone: t("Replying"),
  away: t("Waiting for the connection"),
  nothing: t("Nothing was understood. Say it again"),
});

/** Ways to talk, as stored. */
export const Way = Object.freeze({ FREE: "free", HOLD: "hold" });

/** The bar over the box: the microphone's level, the state, the words as they are heard, and the way to talk. */
export class VoiceBar {
  #level = element("span", {});
  #state = element("p", { class: "voice-state", role: "status" });
  #heard = element("p", { class: "voice-heard", dir: "auto" });
  #way = element("select", { "aria-label": t("Way of talking") });
  #hold = element("button", { class: "hold", type: "button", "aria-pressed": "false", text: t("Hold to talk") });
  #actions;

  /**
   * @param {object} actions
   * @param {string} actions.way
   * @param {(way: string) => void} actions.onWay
   * @param {(held: boolean) => void} actions.onHold
   */
  constructor(actions) {
    this.#actions = actions;
    this.#way.append(element("option", { value: Way.FREE, text: t("Hands-free") }), element("option", { value: Way.HOLD, text: t("Hold to talk") }));
    this.#way.value = actions.way;
    this.#way.addEventListener("change", () => this.#choose());
    const meter = element("span", { class: "voice-level", "aria-hidden": "true" }, this.#level);
    this.root = element("section", { class: "voice", "aria-label": t("Voice chat") }, meter, this.#state, this.#heard, this.#way, this.#hold);
    this.#listen();
    this.#hold.hidden = actions.way !== Way.HOLD;
    part("composer", HTMLFormElement).before(this.root);
  }

  /** @param {keyof typeof STATES} state */
  showState(state) {
    this.root.dataset.state = state;
    if (this.#state.textContent !== STATES[state]) this.#state.textContent = STATES[state];
  }

  /** Shows the words so far, and whether they are final. @param {string} text @param {boolean} final */
  hear(text, final) {
    this.#heard.textContent = text;
    this.#heard.classList.toggle("final", final);
  }

  /** @param {number} level  0 to 1 */
  level(level) {
    this.#level.style.transform = `scaleX(${level.toFixed(2)})`;
  }

  remove() {
    this.root.remove();
  }

  /** Focuses the button to hold, if there is one. */
  focus() {
    if (!this.#hold.hidden) this.#hold.focus();
  }

  #choose() {
    this.#hold.hidden = this.#way.value !== Way.HOLD;
    this.#actions.onWay(this.#way.value);
  }

  #listen() {
    const held = (/** @type {boolean} */ now) => () => this.#setHeld(now);
    this.#hold.addEventListener("pointerdown", (event) => {
      this.#hold.setPointerCapture(event.pointerId);
      this.#setHeld(true);
    });
    for (const type of ["pointerup", "pointercancel", "blur"]) this.#hold.addEventListener(type, held(false));
    this.#hold.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press must not open a menu
    this.#hold.addEventListener("keydown", (event) => this.#onKey(event, true));
    this.#hold.addEventListener("keyup", (event) => this.#onKey(event, false));
  }

  /** @param {KeyboardEvent} event @param {boolean} down */
  #onKey(event, down) {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    if (!event.repeat) this.#setHeld(down);
  }

  /** @param {boolean} held */
  #setHeld(held) {
    if ((this.#hold.getAttribute("aria-pressed") === "true") === held) return;
    this.#hold.setAttribute("aria-pressed", String(held));
    this.#actions.onHold(held);
  }
}
