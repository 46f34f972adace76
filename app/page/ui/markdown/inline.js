import { DOMPurify, Marked } from "../../vendor/markdown.js";
import { formulaAt, formulaElement } from "./formulas.js";
import { piecesOf } from "./pieces.js";

/** Emphasis, links, code and formulas within lines. The elements are harmless, whatever the text says. */

/** @typedef {Record<string, {href: string, title: string}>} Links  links by their labels */

const FORMULA_STARTS = /\$|\\[([]/;
const FORMULAS = /\$\$[^`]+?\$\$|\$(?!\s)[^$`]*[^$`\s]\$|\\\([\s\S]+?\\\)|\\\[[\s\S]+?\\\]/g;
/** A text without marks. */
const PLAIN = /^(?:(?!www\.|:\/\/)[^\\`*_~[\]<>&!$@\n])*$/i;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    // A tag in a reply is text about HTML: it is shown, not obeyed.
    html: ({ text }) => escape(text),
    // Loading an image would tell a stranger's server that this reply was read.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  },
  hooks: {
    // An asterisk in a formula must not end emphasis before it.
    emStrongMask: (text) => text.replaceAll(FORMULAS, (formula) => "a".repeat(formula.length)),
  },
  extensions: [
    {
      // This comes before Markdown removes backslashes.
      name: "formula",
      level: "inline",
      start: (text) => FORMULA_STARTS.exec(text)?.index,
      tokenizer(text, tokens) {
        // US$ 5 is a price. A dollar within a word begins no formula either.
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
 * A short text without its marks; formulas in TeX.
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
 * Fills an element that is filled only once: a cell.
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
    // It is nested deeper than the parser's stack.
    if (!(error instanceof RangeError)) throw error;
    return escape(text);
  }
}

/** @param {string} text */
function escape(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
