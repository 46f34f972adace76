// The types of markdown.js, for `npm run types` in page/ only; no browser loads this file.
export { Marked } from "marked";
export type { Token, Tokens, TokensList } from "marked";
export { default as DOMPurify } from "dompurify";
