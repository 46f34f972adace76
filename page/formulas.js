// Typesets formulas. The page loads this bundle when a reply has its first formula: 270 KB, 80 KB by gzip.
// Its fonts and styles are not needed, since formulas become MathML (app/page/ui/markdown/formulas.js).
import katex from "katex";

export { katex };
