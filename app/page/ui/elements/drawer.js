import { part } from "./dom.js";
import { icon } from "./icons.js";

const narrow = matchMedia("(max-width: 52rem)");

/** The sidebar. On narrow screens it is a drawer, hidden and out of the tab order until it is opened. */
export class Drawer {
  #sidebar = part("sidebar", HTMLElement);
  #chat = part("chat", HTMLElement);
  #scrim = part("scrim", HTMLElement);
  #opener = part("open-sidebar", HTMLButtonElement);
  #closer = part("close-sidebar", HTMLButtonElement);
  #open = false;

  constructor() {
    this.#closer.append(icon("close"));
    this.#opener.addEventListener("click", () => this.#set(true));
    this.#closer.addEventListener("click", () => this.#set(false));
    this.#scrim.addEventListener("click", () => this.#set(false));
    narrow.addEventListener("change", () => this.#apply());
    this.#apply();
  }

  /** Closes the drawer. False if it was not open. */
  close() {
    if (!this.#open) return false;
    this.#set(false);
    return true;
  }

  /** @param {boolean} open */
  #set(open) {
    this.#open = open;
    this.#apply();
    (open ? this.#closer : this.#opener).focus();
  }

  #apply() {
    const shown = narrow.matches && this.#open;
    this.#open = shown;
    document.documentElement.classList.toggle("drawer-open", shown);
    this.#opener.setAttribute("aria-expanded", String(shown));
    this.#sidebar.inert = narrow.matches && !shown;
    this.#chat.inert = shown;
  }
}
