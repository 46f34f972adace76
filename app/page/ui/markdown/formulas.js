import { DOMPurify } from "../../vendor/markdown.js";
import { element } from "../elements/dom.js";
import { later } from "./slices.js";
import { t } from "../words/translate.js";

/**
 * Formulas in TeX. They are shown as written until the bundle that sets them has come, and if it can't read one. They become
 * MathML, which browsers lay out with a system font, and which screen readers know. So no fonts are needed, and no styles
 * within elements, which the page's policy forbids.
 */

/** @typedef {{raw: string, text: string, display: boolean}} Found */

/** A short TeX formula can ask for a lot of work. */
const MAX_UNITS = 4000;
const OPTIONS = {
  output: /** @type {const} */ ("mathml"),
  throwOnError: true,
  strict: /** @type {const} */ ("ignore"),
  trust: false,
  maxExpand: 300,
  maxSize: 10,
};
const MATHML = {
  ALLOWED_TAGS: `math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub
    msubsup msup mtable mtd mtext mtr munder munderover none semantics #text`.split(/\s+/),
  ALLOWED_ATTR: `accent accentunder columnalign columnlines columnspacing depth display displaystyle fence height linethickness lspace
    mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel
    separator side stretchy symmetric voffset width xmlns`.split(/\s+/),
  RETURN_DOM_FRAGMENT: /** @type {const} */ (true),
};
/** What is left out: screen readers would read its TeX too, and the page's policy refuses styles of boxes. */
const LEFT_OUT = /<annotation[\s\S]*<\/annotation>| style="[^"]*"/g;
/** Formulas that were set lately: they are not set again with each word of a growing paragraph. */
const KEPT = 300;

/** @type {Map<string, DocumentFragment | null>} Null: it can't be read. */
const kept = new Map();
/** @type {typeof import("../../vendor/formulas.js").katex | null} */
let katex = null;
/** @type {Promise<void> | null} */
let loading = null;

const DOLLARS = /^\$\$(?!\$)([^`]+?)\$\$/;
const BRACKETS = /^\\\[([\s\S]+?)\\\]/;
const PARENTHESES = /^\\\(([\s\S]+?)\\\)/;
const DOLLAR = /^\$(?![\s$])((?:\\[\s\S]|[^\\$`])*?(?:\\[^\s]|[^\\$`\s]))\$(?![A-Za-z0-9$])/;
/** "$5 and 10$" are prices. */
const PRICE = /^\d[\d.,]*[kKmMbB]?(?:\s*[,;:.–-])?\s+\p{L}{2,}/u;
/** What brackets have to contain to be a formula instead of escaped brackets. */
const FORMULA_LIKE = /[\\^_={}<>+*/|]|^\s*[\p{L}\d]\s*$/u;

/**
 * The formula at the beginning of a text; null if there is none.
 * @param {string} text
 * @returns {Found | null}
 */
export function formulaAt(text) {
  if (text.startsWith("$$")) return found(DOLLARS.exec(text), true);
  if (text.startsWith("$")) {
    const formula = found(DOLLAR.exec(text), false);
    return formula !== null && PRICE.test(formula.text) ? null : formula;
  }
  if (text.startsWith("\\[")) return likely(found(BRACKETS.exec(text), true));
  if (text.startsWith("\\(")) return likely(found(PARENTHESES.exec(text), false));
  return null;
}

/** @param {RegExpExecArray | null} match @param {boolean} display @returns {Found | null} */
function found(match, display) {
  return match === null || match[1].trim() === "" ? null : { raw: match[0], text: match[1].trim(), display };
}

/** @param {Found | null} formula */
function likely(formula) {
  return formula !== null && FORMULA_LIKE.test(formula.text) ? formula : null;
}

/**
 * An element that shows a formula: as written, until it is set.
 * @param {Found} formula
 * @returns {HTMLElement}
 */
export function formulaElement({ raw, text, display }) {
  // A formula of its own may be wider than the page, so the keyboard can scroll it.
  const alone = { class: "formula display", tabindex: 0, role: "group", "aria-label": t("Formula") };
  const root = element("span", { ...(display ? alone : { class: "formula" }), text: raw });
  const key = `${display ? "=" : "-"}${text}`;
  const set = kept.get(key);
  if (set) root.replaceChildren(set.cloneNode(true));
  else if (set === undefined && text.length <= MAX_UNITS) ask(root, key);
  return root;
}

/** @param {HTMLElement} root @param {string} key */
function ask(root, key) {
  if (katex !== null) return later.add(() => set(root, key));
  loading ??= load();
  later.hold(loading.then(() => later.add(() => set(root, key))));
}

async function load() {
  try {
    ({ katex } = await import("../../vendor/formulas.js"));
  } catch {
    loading = null; // the network failed; the next formula tries again
  }
}

/** @param {HTMLElement} root @param {string} key */
function set(root, key) {
  if (katex === null) return;
  if (!kept.has(key)) keep(key, mathOf(key.slice(1), key.startsWith("=")));
  const math = kept.get(key);
  if (!math) return;
  root.replaceChildren(math.cloneNode(true));
}

/** @param {string} key @param {DocumentFragment | null} math */
function keep(key, math) {
  kept.set(key, math);
  if (kept.size > KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
}

/** @param {string} text @param {boolean} displayMode @returns {DocumentFragment | null} */
function mathOf(text, displayMode) {
  try {
    const html = /** @type {NonNullable<typeof katex>} */ (katex).renderToString(text, { ...OPTIONS, displayMode });
    return DOMPurify.sanitize(html.replace(LEFT_OUT, ""), MATHML);
  } catch {
    return null;
  }
}
