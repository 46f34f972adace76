// What the page needs from other projects to show a reply: a Markdown parser and a sanitizer.
export { Marked } from "marked";
export { default as DOMPurify } from "dompurify";
