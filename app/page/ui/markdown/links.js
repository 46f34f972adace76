/** The links of a text by their labels. A label may be used before the line that defines it. */
export class Links {
  /** By labels, in the form that the parser of lines takes. @type {import("./inline.js").Links} */
  known = Object.create(null);
  /** Whether a definition came, changed or went since it was last read. */
  stale = false;

  /**
   * Takes all definitions, in the order of the text. Of two for one label the first counts.
   * @param {Iterable<import("./blocks.js").Definition>} definitions
   * @returns {Set<string>} the labels whose links have changed
   */
  take(definitions) {
    const before = this.known;
    this.known = Object.create(null);
    for (const { tag, href, title = "" } of definitions) this.known[tag] ??= { href, title };
    this.stale = false;
    const labels = new Set([...Object.keys(before), ...Object.keys(this.known)]);
    return new Set([...labels].filter((label) => !same(before[label], this.known[label])));
  }

  get any() {
    return Object.keys(this.known).length > 0;
  }
}

/** Whether a text may use one of the labels. @param {string} text @param {Set<string>} labels */
export function mentions(text, labels) {
  for (const [, label] of text.matchAll(/\[((?:\\.|[^[\]\\]){1,999})\]/g)) {
    if (labels.has(label.replaceAll(/\s+/g, " ").toLowerCase())) return true;
  }
  return false;
}

/** @param {{href: string, title: string} | undefined} one @param {{href: string, title: string} | undefined} other */
function same(one, other) {
  return one?.href === other?.href && one?.title === other?.title;
}
