import { DOMPurify, Marked, hljs } from "../../vendor/markdown.js";
import { copyButton } from "../elements/copy-button.js";
import { element } from "../elements/dom.js";

/** @typedef {import("../../vendor/markdown.js").Token} Token */
/** @typedef {import("../../vendor/markdown.js").Tokens.Code} Code */

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    // A tag in a reply is words about HTML: shown, not obeyed.
    html: ({ text }) => escape(text),
    // Loading a picture would tell a stranger's server that this reply was read.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: (token) => highlighted(token),
  },
});

const SANITIZE = {
  ALLOWED_TAGS:
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: /** @type {const} */ (true),
};

/**
 * Shows Markdown that grows. Blocks that did not change keep their elements, so that a selection in them lives on
 * and a long reply costs no more per frame than its last block.
 */
export class MarkdownView {
  /** @type {{raw: string, nodes: Node[]}[]} */
  #blocks = [];
  #links = 0;
  #root;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#root = root;
  }

  /** @param {string} text */
  show(text) {
    const tokens = parse(text);
    const links = Object.keys(tokens.links).length;
    // A link's address may come after its use, in a block of its own.
    if (links !== this.#links) this.#truncate(0);
    this.#links = links;
    this.#truncate(this.#unchanged(tokens));
    for (const token of tokens.slice(this.#blocks.length)) this.#append(token);
  }

  /**
   * How many of the blocks shown are the beginning of `tokens`.
   * @param {Token[]} tokens
   */
  #unchanged(tokens) {
    const differs = this.#blocks.findIndex(({ raw }, index) => tokens[index]?.raw !== raw);
    return differs === -1 ? this.#blocks.length : differs;
  }

  /** @param {number} length */
  #truncate(length) {
    for (const { nodes } of this.#blocks.splice(length)) {
      for (const node of nodes) this.#root.removeChild(node);
    }
  }

  /** @param {Token} token */
  #append(token) {
    const fragment = render(token);
    this.#blocks.push({ raw: token.raw, nodes: [...fragment.childNodes] });
    this.#root.append(fragment);
  }
}

/**
 * The top-level blocks of a text. One that nests deeper than the parser's stack is taken as plain text.
 * @param {string} text
 */
function parse(text) {
  try {
    return marked.lexer(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return Object.assign([plain(text)], { links: {} });
  }
}

/** @param {string} text */
function plain(text) {
  return /** @type {Code} */ ({ type: "code", raw: text, text });
}

/** @param {Token} token */
function render(token) {
  const fragment = DOMPurify.sanitize(marked.parser([token]), SANITIZE);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const code of fragment.querySelectorAll("pre > code")) frameCode(/** @type {HTMLElement} */ (code));
  for (const table of fragment.querySelectorAll("table")) scrollable(table);
  return fragment;
}

/** Puts the language and a copy button over a block of code. @param {HTMLElement} code */
function frameCode(code) {
  const pre = /** @type {HTMLElement} */ (code.parentElement);
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "code";
  const head = element("div", { class: "code-head" }, element("span", { text: language }));
  head.append(copyButton("Copy the code", () => code.textContent ?? ""));
  const frame = element("div", { class: "code" });
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  frame.append(head, pre);
}

/** A group, not a region: landmarks need names of their own, and a reply may have ten tables. @param {HTMLElement} table */
function scrollable(table) {
  const frame = element("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" });
  table.replaceWith(frame);
  frame.append(table);
}

/** @param {Code} token */
function highlighted({ text, lang }) {
  const language = (lang ?? "").trim().split(/\s/)[0].toLowerCase();
  const known = hljs.getLanguage(language) !== undefined;
  const body = known ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escape(text);
  const name = language.replaceAll(/[^a-z0-9+#.-]/g, "");
  return `<pre><code${name === "" ? "" : ` class="language-${name}"`}>${body}</code></pre>`;
}

/** @param {string} text */
function escape(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
