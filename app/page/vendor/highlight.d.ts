// The types of highlight.js, for `npm run types` in page/ only; no browser loads this file.
import hljs from "highlight.js/lib/core";
export { hljs };
