/** So many texts are kept at most, and so many UTF-16 units of all of them together: the oldest go. */
const MOST = 100;
const MOST_UNITS = 200_000;

/** @typedef {[conversationId: string, text: string]} Kept */

/**
 * Texts of the user's by conversation, such as what was written and not sent yet: they outlive a reload. Where the key goes
 * with the tab, so do they: whoever opens the browser next is not to read them.
 */
export class KeptTexts {
  #name;
  #lasting;
  #session;
  #forTab;

  /**
   * @param {string} name                      under which they are in the storage
   * @param {object} options
   * @param {Storage | null} options.lasting
   * @param {Storage | null} options.session   forgets with the tab
   * @param {() => boolean} options.forTab     whether what is written now is for this tab alone
   */
  constructor(name, { lasting, session, forTab }) {
    this.#name = name;
    this.#lasting = lasting;
    this.#session = session;
    this.#forTab = forTab;
  }

  /** The text of a conversation; empty where there is none. @param {string} conversationId */
  of(conversationId) {
    const texts = [...read(this.#session, this.#name), ...read(this.#lasting, this.#name)];
    return texts.find(([id]) => id === conversationId)?.[1] ?? "";
  }

  /** Keeps a text in the place of the one before; an empty one is none. @param {string} conversationId @param {string} text */
  keep(conversationId, text) {
    const [here, there] = this.#forTab() ? [this.#session, this.#lasting] : [this.#lasting, this.#session];
    put(there, this.#name, [conversationId, ""]);
    put(here, this.#name, [conversationId, text]);
  }

  /** @param {string} conversationId */
  forget(conversationId) {
    this.keep(conversationId, "");
  }

  clear() {
    this.#session?.removeItem(this.#name);
    this.#lasting?.removeItem(this.#name);
  }
}

/** @param {Storage | null} storage @param {string} name @returns {Kept[]} the newest last */
function read(storage, name) {
  try {
    const kept = JSON.parse(storage?.getItem(name) ?? "[]");
    return Array.isArray(kept) ? kept : [];
  } catch (error) {
    if (error instanceof SyntaxError) return []; // Another program's, or cut off.
    throw error;
  }
}

/**
 * @param {Storage | null} storage
 * @param {string} name
 * @param {Kept} text
 */
function put(storage, name, [conversationId, text]) {
  const kept = read(storage, name);
  const others = kept.filter(([id]) => id !== conversationId);
  if (text === "" && others.length === kept.length) return;
  write(storage, name, text === "" ? others : bounded([...others, [conversationId, text]]));
}

/** The newest of them that fit. @param {Kept[]} texts */
function bounded(texts) {
  /** @type {Kept[]} */ const kept = [];
  let units = 0;
  for (const text of texts.slice(-MOST).reverse()) {
    units += text[1].length;
    if (units > MOST_UNITS) break;
    kept.unshift(text);
  }
  return kept;
}

/** @param {Storage | null} storage @param {string} name @param {Kept[]} texts */
function write(storage, name, texts) {
  try {
    storage?.setItem(name, JSON.stringify(texts));
  } catch (error) {
    // A browser that has no room left: what is on the page is still there until it is closed.
    if (!(error instanceof DOMException)) throw error;
  }
}
