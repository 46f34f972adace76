/** Which items of a long list are in the document. Pure: sizes and a place in, spans out. */

/** @typedef {import("./sizes.js").Sizes} Sizes */
/** @typedef {{from: number, to: number}} Span  the items from one to before another */
/**
 * What is read: an item, and where it begins below the top of the view, in px (less than 0 where it begins above it).
 * @typedef {{index: number, top: number}} Place
 */

/**
 * The items that cover the view around a place, and as many above and below it as are wanted: the nearest first.
 * @param {Place} place
 * @param {number} view      the height of the view, in px
 * @param {Sizes} sizes
 * @param {{margin: number, nodes: number}} wanted  px on each side of the view; and of how many nodes no more is added to them
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
 * The next span on the way to the one that is wanted: what is needed at once, of the rest a few items on each side, so
 * that no frame has to make many of them.
 * @param {Span} current
 * @param {{needed: Span, wanted: Span, step: number}} aim  `wanted` has all of `needed`
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
 * A span and single items beside it, as spans in order that touch nowhere.
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
