// What sets formulas. It is a bundle of its own, which the page loads when a reply has the first one: 270 KB, 80 by gzip.
// Its fonts and styles are not needed: formulas become MathML (app/page/ui/markdown/formulas.js).
import katex from "katex";

export { katex };
