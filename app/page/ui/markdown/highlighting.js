import { element } from "../elements/dom.js";

/** Colours code by highlight.js, as elements that have only classes and text, whatever the code says. */
const PART = /<span class="([^"]*)">|(<\/span>)|&(amp|lt|gt|quot|#x27);|[^<&]+/g;
/** @type {Record<string, string>} */
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'" };

/** The name of the language behind a code block's fence; empty if there is none. @param {string} info */
export function languageOf(info) {
  return info.trim().split(/\s/)[0].toLowerCase().replaceAll(/[^a-z0-9+#.-]/g, "");
}

/**
 * Code in colours.
 * @param {import("../replies/highlighter.js").Highlighter} hljs
 * @param {string} context  the code right before it, from a place without open strings and comments
 * @param {string} code
 * @param {string} language
 * @returns {{nodes: DocumentFragment, open: boolean}}  `open`: whether it ends in a string, a comment or the like
 */
export function highlighted(hljs, context, code, language) {
  const { value, _top: top } = hljs.highlight(context + code, { language, ignoreIllegals: true });
  return { nodes: painted(value, context.length), open: top !== undefined && top !== hljs.getLanguage(language) };
}

/** @param {string} html @param {number} skipped  characters at the beginning that are left out */
function painted(html, skipped) {
  const root = document.createDocumentFragment();
  /** @type {{name: string, node: Node | null}[]} */ const open = [];
  let left = skipped;
  for (const [all, name, close, entity] of html.matchAll(PART)) {
    if (name !== undefined) open.push({ name, node: null });
    else if (close !== undefined) open.pop();
    else {
      const text = entity === undefined ? all : ENTITIES[entity];
      if (text.length > left) nodeIn(root, open).appendChild(document.createTextNode(text.slice(left)));
      left = Math.max(0, left - text.length);
    }
  }
  return root;
}

/** The innermost open element. Open elements that had no text yet are made. @param {Node} root @param {{name: string, node: Node | null}[]} open */
function nodeIn(root, open) {
  let node = root;
  for (const part of open) node = part.node ??= node.appendChild(element("span", { class: part.name }));
  return node;
}
