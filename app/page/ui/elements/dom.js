/** Makes elements. Text goes in as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with attributes (`text` is its text; null and false leave an attribute out) and children.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | null>} [attributes]
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, { text = null, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  if (text !== null) made.textContent = String(text);
  made.append(...children);
  return made;
}

/** One of the icons of index.html. @param {string} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/**
 * The element with this id; index.html has it.
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} Kind
 */
export function part(id, Kind) {
  const found = document.getElementById(id);
  if (!(found instanceof Kind)) throw new Error(`index.html has no ${Kind.name} #${id}`);
  return found;
}
