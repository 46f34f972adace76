import { DOMPurify, Marked } from "../../vendor/markdown.js";
import { formulaAt, formulaElement } from "./formulas.js";
import { piecesOf } from "./blocks/pieces.js";

/** What stands within lines: emphasis, links, code, formulas. Harmless, whatever the text says. */

/** @typedef {Record<string, {href: string, title: string}>} Links  by their labels */

const FORMULA_STARTS = /\$|\\[([]/;
const FORMULAS = /\$\$[^`]+?\$\$|\$(?!\s)[^$`]*[^$`\s]\$|\\\([\s\S]+?\\\)|\\\[[\s\S]+?\\\]/g;
/** Nothing in it is a mark. */
const PLAIN = /^(?:(?!www\.|:\/\/)[^\\`*_~[\]<>&!$@\n])*$/i;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    // A tag in a reply is words about HTML: shown, not obeyed.
    html: ({ text }) => escape(text),
    // Loading a picture would tell a stranger's server that this reply was read.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  },
  hooks: {
    // An asterisk in a formula ends no emphasis before it.
    emStrongMask: (text) => text.replaceAll(FORMULAS, (formula) => "a".repeat(formula.length)),
  },
  extensions: [
    {
      // Before Markdown takes its backslashes.
      name: "formula",
      level: "inline",
      start: (text) => FORMULA_STARTS.exec(text)?.index,
      tokenizer(text, tokens) {
        // A price in another currency: US$ 5. What stands in a word is no formula either.
        if (/[A-Za-z0-9\\$]$/.test(tokens.at(-1)?.raw ?? "") && text.startsWith("$")) return undefined;
        const formula = formulaAt(text);
        return formula === null ? undefined : { type: "formula", ...formula };
      },
      renderer: ({ raw, display }) => `<span class="formula${display ? " display" : ""}">${escape(raw)}</span>`,
    },
  ],
});

const SANITIZE = {
  ALLOWED_TAGS: ["a", "br", "code", "del", "em", "span", "strong"],
  ALLOWED_ATTR: ["class", "href", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: /** @type {const} */ (true),
};

/**
 * A short text in elements.
 * @param {string} text
 * @param {Links} links
 * @returns {DocumentFragment | Text}
 */
export function inline(text, links) {
  if (PLAIN.test(text)) return document.createTextNode(text);
  const fragment = sanitized(text, links);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  replaceFormulas(fragment, formulaElement);
  return fragment;
}

/**
 * What a short text says, without its marks; formulas in TeX.
 * @param {string} text
 * @param {Links} links
 */
export function wordsIn(text, links) {
  const fragment = sanitized(text, links);
  for (const end of fragment.querySelectorAll("br")) end.replaceWith("\n");
  replaceFormulas(fragment, (formula) => formula.text);
  return fragment.textContent ?? "";
}

/** @param {string} text @param {Links} links */
function sanitized(text, links) {
  return DOMPurify.sanitize(htmlOf(text, links), SANITIZE);
}

/** @param {DocumentFragment} fragment @param {(formula: import("./formulas.js").Found) => Node | string} replacement */
function replaceFormulas(fragment, replacement) {
  for (const formula of fragment.querySelectorAll("span.formula")) {
    const found = formulaAt(formula.textContent ?? "");
    if (found !== null) formula.replaceWith(replacement(found));
  }
}

/**
 * Fills an element that is not filled again: a cell.
 * @param {HTMLElement} root
 * @param {string} text
 * @param {Links} links
 */
export function fill(root, text, links) {
  for (const piece of piecesOf(text)) root.append(inline(piece, links));
}

/** @param {string} text @param {Links} links */
function htmlOf(text, links) {
  try {
    const lexer = new marked.Lexer(marked.defaults);
    lexer.tokens.links = links;
    return marked.Parser.parseInline(lexer.inlineTokens(text), marked.defaults);
  } catch (error) {
    // It nests deeper than the parser's stack.
    if (!(error instanceof RangeError)) throw error;
    return escape(text);
  }
}

/** @param {string} text */
function escape(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
