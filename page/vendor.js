// What the page needs of other projects to show a reply, in one module: a Markdown parser and a sanitizer.
export { Marked } from "marked";
export { default as DOMPurify } from "dompurify";
