import { element, part } from "../elements/dom.js";

/** What the bundled model can show on a first visit. */
const SUGGESTIONS = [
  "My name is Ada.",
  "Count from 1 to 300.",
  "Tell me a story about a lighthouse.",
  "How do you say “good morning” in Chinese?",
  "What is 7 plus 8?",
  "What is Midstream?",
];

/** What an empty conversation shows. */
export class Welcome {
  #root = part("welcome", HTMLElement);

  /** @param {{onChoose: (text: string) => void}} actions */
  constructor({ onChoose }) {
    const rows = SUGGESTIONS.map((text) => {
      const button = element("button", { type: "button", text });
      button.addEventListener("click", () => onChoose(text));
      return element("li", {}, button);
    });
    part("suggestions", HTMLUListElement).replaceChildren(...rows);
  }

  /** @param {boolean} empty */
  show(empty) {
    this.#root.hidden = !empty;
  }
}
