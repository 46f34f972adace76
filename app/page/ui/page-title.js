import { part } from "./elements/dom.js";

const NAME = "Midstream";
const MARK = "●";

/** The page's title: that of the shown conversation, with a mark if a reply has ended that nobody has looked at. */
export class PageTitle {
  #heading = part("title", HTMLElement);
  #title = "";
  #marked = false;

  constructor() {
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#marked = false;
      this.#write();
    });
  }

  /**
   * @param {string} title    of the conversation; empty if it has none
   * @param {string} heading  the heading over the messages
   */
  show(title, heading) {
    if (this.#heading.textContent !== heading) this.#heading.textContent = heading;
    this.#title = title;
    this.#write();
  }

  /** Takes that a reply has ended. If nobody looks at the page, its title says so until somebody does. */
  mark() {
    this.#marked = document.hidden;
    this.#write();
  }

  #write() {
    const title = this.#title === "" ? NAME : `${this.#title} · ${NAME}`;
    const whole = this.#marked ? `${MARK} ${title}` : title;
    if (document.title !== whole) document.title = whole;
  }
}
