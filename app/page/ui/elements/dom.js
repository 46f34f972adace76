/** Makes elements. Text is set as text, never as markup. */

/** @typedef {string | number | boolean | null | ((event: any) => void)} Value */

/**
 * An element with attributes (`text` is its text; null and false leave an attribute out), listeners (`onclick`) and children.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, Value>} [attributes]
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, { text = null, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  if (text !== null) made.textContent = String(text);
  made.append(...children);
  return made;
}

/**
 * The element with this id, which is in index.html.
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} Kind
 */
export function part(id, Kind) {
  const found = document.getElementById(id);
  if (!(found instanceof Kind)) throw new Error(`index.html has no ${Kind.name} #${id}`);
  return found;
}
