// The types of formulas.js, for `npm run types` in page/ only; no browser loads this file.
import katex from "katex";
export { katex };
