/** The most texts that are kept, and the most UTF-16 units of all together. The oldest go. */
const MOST = 100;
const MOST_UNITS = 200_000;

/** @typedef {[conversationId: string, text: string]} Kept */
/**
 * Where texts are kept.
 * @typedef {object} Places
 * @property {Storage | null} lasting
 * @property {Storage | null} session   forgets with the tab
 * @property {() => boolean} forTab     whether texts are now kept for this tab only
 */
/** @typedef {{most: number, units: number}} Bounds */

/**
 * The user's texts by conversation, such as unsent messages. They outlive a reload. If the key goes with the tab, so do
 * they: whoever opens the browser next must not read them.
 */
export class KeptTexts {
  #name;
  #lasting;
  #session;
  #forTab;
  /** @type {Bounds} */ #bounds;

  /**
   * @param {string} name  their name in the storage
   * @param {Places & {most?: number, mostUnits?: number}} options
   */
  constructor(name, { lasting, session, forTab, most = MOST, mostUnits = MOST_UNITS }) {
    this.#name = name;
    this.#bounds = { most, units: mostUnits };
    this.#lasting = lasting;
    this.#session = session;
    this.#forTab = forTab;
  }

  /** The text of a conversation; empty if there is none. @param {string} conversationId */
  of(conversationId) {
    const texts = [...read(this.#session, this.#name), ...read(this.#lasting, this.#name)];
    return texts.find(([id]) => id === conversationId)?.[1] ?? "";
  }

  /** Replaces a conversation's text. An empty one is removed. @param {string} conversationId @param {string} text */
  keep(conversationId, text) {
    const [here, there] = this.#forTab() ? [this.#session, this.#lasting] : [this.#lasting, this.#session];
    put(there, this.#name, [conversationId, ""], this.#bounds);
    put(here, this.#name, [conversationId, text], this.#bounds);
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

/** What was read last under each name, since it is read far more often than it changes. @type {Map<string, {text: string, kept: Kept[]}>} */
const lastRead = new Map();

/** @param {Storage | null} storage @param {string} name @returns {readonly Kept[]} the newest last */
function read(storage, name) {
  const text = storage?.getItem(name) ?? "";
  if (text === "") return [];
  const last = lastRead.get(name);
  if (last?.text === text) return last.kept;
  const kept = parsed(text);
  lastRead.set(name, { text, kept });
  return kept;
}

/** @param {string} text @returns {Kept[]} */
function parsed(text) {
  try {
    const kept = JSON.parse(text);
    return Array.isArray(kept) ? kept : [];
  } catch (error) {
    if (error instanceof SyntaxError) return []; // Another program wrote it, or it was cut off.
    throw error;
  }
}

/**
 * @param {Storage | null} storage
 * @param {string} name
 * @param {Kept} text
 * @param {Bounds} bounds
 */
function put(storage, name, [conversationId, text], bounds) {
  const kept = read(storage, name);
  const others = kept.filter(([id]) => id !== conversationId);
  if (text === "" && others.length === kept.length) return;
  // A text above the limit for all is not kept, and removes no other.
  const none = text === "" || text.length > bounds.units;
  write(storage, name, none ? others : bounded([...others, [conversationId, text]], bounds));
}

/** The newest texts that fit. @param {Kept[]} texts @param {Bounds} bounds */
function bounded(texts, { most, units: mostUnits }) {
  /** @type {Kept[]} */ const kept = [];
  let units = 0;
  for (const text of texts.slice(-most).reverse()) {
    units += text[1].length;
    if (units > mostUnits) break;
    kept.unshift(text);
  }
  return kept;
}

/** @param {Storage | null} storage @param {string} name @param {Kept[]} texts */
function write(storage, name, texts) {
  try {
    storage?.setItem(name, JSON.stringify(texts));
  } catch (error) {
    // The browser has no room left. What is on the page stays there until it is closed.
    if (!(error instanceof DOMException)) throw error;
  }
}
