/** Decides which items of a long list are in the document. Pure: sizes and a place in, spans out. */

/** @typedef {import("./sizes.js").Sizes} Sizes */
/** @typedef {{from: number, to: number}} Span  the items from `from` to before `to` */
/**
 * The place that is read: an item, and its beginning below the top of the view, in px (negative if it begins above).
 * @typedef {{index: number, top: number}} Place
 */

/**
 * The items that cover the view around a place, and the wanted ones above and below it, the nearest first.
 * @param {Place} place
 * @param {number} view      the height of the view, in px
 * @param {Sizes} sizes
 * @param {{margin: number, nodes: number}} wanted  `margin`: px on each side of the view; `nodes`: from this number on no item is added
 * @returns {Span}
 */
export function spanAround({ index, top }, view, sizes, { margin, nodes }) {
  const span = { from: index, to: index };
  let [above, below, held] = [-top, top - view, 0];
  for (;;) {
    const [up, down] = [span.from > 0 ? above : Infinity, span.to < sizes.count ? below : Infinity];
    const least = Math.min(up, down);
    if (least === Infinity || least >= margin || (least > 0 && held >= nodes)) return span;
    const next = up < down ? span.from - 1 : span.to;
    const size = sizes.of(next);
    held += size.nodes;
    if (up < down) [span.from, above] = [next, above + size.height];
    else [span.to, below] = [next + 1, below + size.height];
  }
}

/**
 * The next span on the way to the wanted one: what is needed at once, and a few more items on each side, so that no frame
 * makes many items.
 * @param {Span} current
 * @param {{needed: Span, wanted: Span, step: number}} aim  `wanted` includes `needed`
 * @returns {Span}
 */
export function nextSpan(current, { needed, wanted, step }) {
  const apart = current.to < needed.from || current.from > needed.to || current.from === current.to;
  const { from, to } = apart ? needed : current;
  return {
    from: Math.min(needed.from, Math.max(wanted.from, from - step)),
    to: Math.max(needed.to, Math.min(wanted.to, to + step)),
  };
}

/**
 * A span and single items beside it, as separate spans in order.
 * @param {Span} span
 * @param {number[]} pinned
 * @returns {Span[]}
 */
export function runsOf(span, pinned) {
  const outside = pinned.filter((index) => index < span.from || index >= span.to);
  const spans = [span, ...outside.map((index) => ({ from: index, to: index + 1 }))].sort((one, other) => one.from - other.from);
  /** @type {Span[]} */ const runs = [];
  for (const { from, to } of spans) {
    const last = runs.at(-1);
    if (last !== undefined && last.to >= from) last.to = Math.max(last.to, to);
    else runs.push({ from, to });
  }
  return runs;
}
