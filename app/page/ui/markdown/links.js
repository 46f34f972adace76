/** The links of a text by their labels. A label may be used before the line that defines it. */

/** @typedef {import("./blocks.js").Token} Token */
/** @typedef {import("./blocks.js").Definition} Definition */
/** @typedef {import("./inline.js").Links} Links */

/** The definitions in a block, and in the blocks within it. @param {any} block @returns {Definition[]} */
export function definitionsIn(block) {
  if (block.type === "def") return [block];
  return (block.items ?? (block.type === "blockquote" || block.type === "list_item" ? block.tokens : [])).flatMap(definitionsIn);
}

/** The links of definitions, in the order of the text. Of two for one label the first counts. @param {Definition[]} definitions @returns {Links} */
export function linksOf(definitions) {
  /** @type {Links} */ const links = Object.create(null);
  for (const { tag, href, title = "" } of definitions) links[tag] ??= { href, title };
  return links;
}

/** The labels whose links differ. @param {Links} before @param {Links} now */
export function changedLabels(before, now) {
  const differs = (/** @type {string} */ label) => before[label]?.href !== now[label]?.href || before[label]?.title !== now[label]?.title;
  return new Set(Object.keys({ ...before, ...now }).filter(differs));
}

/** Whether a text may use one of the labels. @param {string} text @param {Set<string>} labels */
export function mentions(text, labels) {
  for (const [, label] of text.matchAll(/\[((?:\\.|[^[\]\\]){1,999})\]/g)) {
    if (labels.has(label.replaceAll(/\s+/g, " ").toLowerCase())) return true;
  }
  return false;
}
