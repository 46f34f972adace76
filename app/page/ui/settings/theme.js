import { icon, part } from "../elements/dom.js";

const KEY = "midstream.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * The switch between light and dark. The system's choice holds until the switch is used; then the user's, kept in
 * `storage` (theme-early.js reads it before the first paint).
 * @param {Storage | null} storage
 */
export function installTheme(storage) {
  const button = part("theme", HTMLButtonElement);
  const show = () => {
    const other = theme() === "dark" ? "light" : "dark";
    button.replaceChildren(icon(other === "dark" ? "moon" : "sun"));
    button.setAttribute("aria-label", `Switch to the ${other} theme`);
    button.title = `Switch to the ${other} theme`;
  };
  button.addEventListener("click", () => {
    const chosen = theme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    storage?.setItem(KEY, chosen);
    show();
  });
  dark.addEventListener("change", show);
  show();
}

function theme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}
