import { DOMPurify } from "../../vendor/markdown.js";
import { copyButton } from "../elements/copy-button.js";
import { element } from "../elements/dom.js";
import { hasLongLine, pieceEnd } from "./pieces.js";
import { later } from "./slices.js";
import { t } from "../words/translate.js";

/** The longest text node: a longer one would be laid out again with each new word. */
const MAX_NODE_UNITS = 1000;
/** The longest string or comment with one colour: a longer one goes on in another. */
const MAX_CONTEXT_UNITS = 6000;

/**
 * A piece: some lines that are laid out and coloured separately.
 * @typedef {object} Piece
 * @property {number} start
 * @property {number} end
 * @property {boolean} full       whether more code follows it
 * @property {number} context     where reading has to begin for its colours
 * @property {number} coloured    the end of its coloured part
 * @property {HTMLElement} root
 */

/** A code block: its language, a button to copy it, and lines that are coloured while the page is idle. */
export class CodeView {
  #name = element("span");
  #code = element("code");
  #text = "";
  #language = "";
  /** @type {Piece[]} */ #pieces = [];
  #waits = false;

  constructor() {
    const copy = copyButton(t("Copy the code"), () => this.#text);
    const head = element("div", { class: "code-head" }, this.#name, copy);
    this.root = element("div", { class: "code", dir: "ltr" }, head, element("pre", { tabindex: 0 }, this.#code));
    this.#setLanguage("");
  }

  /** @param {import("./blocks.js").Code} block */
  show({ lang, text }) {
    const language = languageOf(lang ?? "");
    if (language !== this.#language) this.#setLanguage(language);
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#truncate(text);
    this.#append(text);
    this.#text = text;
    this.#askForColours();
  }

  /** @param {string} language */
  #setLanguage(language) {
    this.#language = language;
    this.#name.textContent = language === "" ? "code" : language;
    if (language === "") this.#code.removeAttribute("class");
    else this.#code.className = `language-${language}`;
    this.#truncate("");
  }

  /** Keeps the whole pieces that are the beginning of another text, too. @param {string} text */
  #truncate(text) {
    const same = (/** @type {Piece} */ { start, end, full }) => full && text.slice(start, end) === this.#text.slice(start, end);
    const differs = this.#pieces.findIndex((piece) => !same(piece));
    if (differs === -1) return;
    for (const { root } of this.#pieces.splice(differs)) root.remove();
    this.#text = this.#text.slice(0, this.#pieces.at(-1)?.end ?? 0);
  }

  /** @param {string} text  the shown text, and more */
  #append(text) {
    for (let at = this.#text.length; at < text.length; ) {
      const piece = this.#openPiece(at);
      const end = pieceEnd(text, piece.start);
      piece.full = end !== null;
      piece.end = end ?? text.length;
      write(piece.root, text.slice(at, piece.end));
      at = piece.end;
    }
  }

  /** @param {number} at */
  #openPiece(at) {
    const last = this.#pieces.at(-1);
    if (last !== undefined && !last.full) return last;
    const piece = { start: at, end: at, full: false, context: at, coloured: at, root: element("span", { class: "piece" }) };
    this.#code.append(piece.root);
    this.#pieces.push(piece);
    return piece;
  }

  #askForColours() {
    if (this.#waits || this.#language === "") return;
    this.#waits = true;
    if (highlighter !== null) return later.add(() => this.#colour());
    const loading = loadHighlighter().then(
      () => later.add(() => this.#colour()),
      () => (this.#waits = false),
    );
    later.hold(loading);
  }

  /** Colours one piece. The next one gets a job of its own, since its colours depend on what this one leaves open. */
  #colour() {
    this.#waits = false;
    const index = this.#pieces.findIndex(({ coloured, end }) => coloured < end);
    if (index === -1 || highlighter?.getLanguage(this.#language) === undefined) return;
    const piece = this.#pieces[index];
    const context = contextAfter(this.#pieces[index - 1]) ?? piece.start;
    piece.coloured = piece.end;
    piece.context = this.#paint(piece, context) ? context : piece.end;
    this.#askForColours();
  }

  /** Colours a piece; returns whether a string or comment is open at its end. @param {Piece} piece @param {number} context */
  #paint({ start, end, root }, context) {
    const code = this.#text.slice(start, end);
    if (hasLongLine(code)) {
      if (root.firstElementChild !== null) root.replaceChildren(code); // it was short when it was coloured
      return false;
    }
    const hljs = /** @type {Highlighter} */ (highlighter);
    const { value, _top: top } = hljs.highlight(this.#text.slice(context, end), { language: this.#language, ignoreIllegals: true });
    root.replaceChildren(painted(value, start - context));
    return top !== undefined && top !== hljs.getLanguage(this.#language);
  }
}

/** Where reading has to begin for what follows a piece; null at the beginning. @param {Piece | undefined} piece */
function contextAfter(piece) {
  if (piece === undefined) return null;
  return piece.end - piece.context > MAX_CONTEXT_UNITS ? piece.end : piece.context;
}

/** Appends text. @param {HTMLElement} root @param {string} text */
function write(root, text) {
  const last = root.lastChild;
  if (last instanceof Text && last.length < MAX_NODE_UNITS) last.appendData(text);
  else root.append(text);
}

/** The name of the language behind a code block's fence; empty if there is none. @param {string} info */
function languageOf(info) {
  return info.trim().split(/\s/)[0].toLowerCase().replaceAll(/[^a-z0-9+#.-]/g, "");
}

/** highlight.js's output: elements that have only classes and text, whatever the code says. */
const SANITIZE = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: /** @type {const} */ (true) };

/** Code in colours. @param {string} html @param {number} skipped  characters at the beginning that are left out */
function painted(html, skipped) {
  const root = DOMPurify.sanitize(html, SANITIZE);
  const shown = document.createRange();
  shown.selectNodeContents(root);
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  let left = skipped;
  while (texts.nextNode() !== null) {
    const { length } = /** @type {Text} */ (texts.currentNode);
    if (left < length) {
      shown.setStart(texts.currentNode, left);
      break;
    }
    left -= length;
  }
  return shown.extractContents();
}

/**
 * The highlighter is a quarter of all that the page loads, and a first visit does not need it. It is loaded when code is
 * first shown, or when the browser is idle.
 */

/** @typedef {typeof import("../../vendor/highlight.js").hljs} Highlighter */

/** @type {Highlighter | null} */ let highlighter = null;
/** @type {Promise<void> | null} */ let coming = null;

/** Loads the highlighter, once. Rejects if the network fails; the next call tries again. */
function loadHighlighter() {
  coming ??= import("../../vendor/highlight.js").then(({ hljs }) => void (highlighter = hljs)).catch((error) => {
    coming = null;
    throw error;
  });
  return coming;
}

/** Loads it when the browser is idle. If that fails, the first code that is shown tries again. */
export function preloadHighlighter() {
  const whenIdle = globalThis.requestIdleCallback ?? ((/** @type {() => void} */ act) => setTimeout(act));
  whenIdle(() => void loadHighlighter().catch(() => {}));
}
