/**
 * Texts that are attached to a message, as part of its text: the model reads them, the history keeps them, and any client can
 * show them. Each follows the message, under its name, between fences that are longer than any in it. Pure.
 */

/** @typedef {{name: string, text: string}} Attachment */

const FENCED = /^\n*\[([^\n\]]{1,200})\]\n(~{4,})\n([\s\S]*?)\n\2(?=\n|$)/;
const START = /(?:^|\n\n)(?=\[[^\n\]]{1,200}\]\n~{4,}\n)/;

/**
 * A message with its attachments.
 * @param {string} text
 * @param {Attachment[]} attachments
 */
export function withAttachments(text, attachments) {
  return joined(text, attachments.map(fenced));
}

/** A message with texts that are fenced already. @param {string} text @param {string[]} parts */
export function joined(text, parts) {
  return [text, ...parts].filter((part) => part !== "").join("\n\n");
}

/**
 * Separates a message from its attachments. What only looks like an attachment is text.
 * @param {string} content
 * @returns {{text: string, attachments: Attachment[]}}
 */
export function apart(content) {
  const start = content.search(START);
  const none = { text: content, attachments: [] };
  if (start === -1) return none;
  /** @type {Attachment[]} */ const attachments = [];
  let rest = content.slice(start);
  for (let found = FENCED.exec(rest); found !== null; found = FENCED.exec(rest)) {
    attachments.push({ name: found[1], text: found[3] });
    rest = rest.slice(found[0].length);
  }
  return rest.trim() === "" ? { text: content.slice(0, start), attachments } : none;
}

/** An attachment as it follows a message. @param {Attachment} attachment */
export function fenced({ name, text }) {
  let longest = 3;
  for (const [run] of text.matchAll(/^~+/gm)) longest = Math.max(longest, run.length);
  const fence = "~".repeat(longest + 1);
  return `[${named(name)}]\n${fence}\n${text}\n${fence}`;
}

/** A name that fits its line. @param {string} name */
function named(name) {
  return name.replaceAll(/[\n\r[\]]/g, " ").slice(0, 200).trim() || "text";
}
