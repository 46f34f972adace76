import { part } from "../elements/dom.js";
import { icon } from "../elements/icons.js";
import { t } from "../words/translate.js";

const KEY = "midstream.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Light or dark: as in the system, or as the user chose. `storage` keeps the choice; theme-early.js reads it before the first paint. */
export class Theme {
  #button = part("theme", HTMLButtonElement);
  #storage;

  /** @param {Storage | null} storage */
  constructor(storage) {
    this.#storage = storage;
    this.#button.addEventListener("click", () => this.choose(other()));
    dark.addEventListener("change", () => this.#show());
    this.#show();
  }

  /** `light`, `dark`, or empty for the system's. */
  get chosen() {
    return document.documentElement.dataset.theme ?? "";
  }

  /** @param {string} theme */
  choose(theme) {
    if (theme === "light" || theme === "dark") {
      document.documentElement.dataset.theme = theme;
      this.#storage?.setItem(KEY, theme);
    } else {
      delete document.documentElement.dataset.theme;
      this.#storage?.removeItem(KEY);
    }
    this.#show();
  }

  #show() {
    this.#button.replaceChildren(icon(other() === "dark" ? "moon" : "sun"));
    this.#button.title = other() === "dark" ? t("Switch to the dark theme") : t("Switch to the light theme"); // what it does
    this.#button.setAttribute("aria-label", this.#button.title);
    // Gives the theme's colour to what is around the page, such as the bar of an installed one.
    const colours = /** @type {NodeListOf<HTMLMetaElement>} */ (document.querySelectorAll("meta[name=theme-color]"));
    for (const colour of colours) colour.content = getComputedStyle(document.documentElement).backgroundColor;
  }
}

/** The theme that is not shown. */
function other() {
  const shown = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  return shown === "dark" ? "light" : "dark";
}
