/** Files in the composer: which may be attached, and how images are shown before they are sent. */

import { number, t } from "../words/translate.js";

/**
 * @typedef {object} AttachedImage
 * @property {string} name
 * @property {string} small  a small copy, which is shown before it is sent
 * @property {import("../../client/frames.js").Attachment | null} image  null while it is being uploaded
 */
/** @typedef {import("./attached-text.js").Attachment | AttachedImage} Attached */

/** The most bytes of a text file: more than most models read. */
const MAX_BYTES = 512 * 1024;
/** The most images of a message. */
export const MOST_IMAGES = 8;
const TYPES = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
/** The longer side of the small copy, in px: twice its size on the screen. */
const SIDE = 128;

/** @param {Attached} attached @returns {attached is AttachedImage} */
export function isPicture(attached) {
  return "small" in attached;
}

/** Whether an attached image is still on its way to the server. @param {Attached} attached */
export function isUploading(attached) {
  return isPicture(attached) && attached.image === null;
}

/** Whether a file is an image. SVG counts as text. @param {File} file */
export function isImage({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}

/**
 * Words for why an image can't be attached; empty if it can.
 * @param {File} file
 * @param {number | null} limit  the most bytes of an image; 0 if the model takes none, null before it is known
 */
export function whyNot({ name, size, type }, limit) {
  if (limit === null) return t("There is no connection at the moment. Try again when it is back.");
  if (limit === 0) return t("“{name}” can't be attached: this model doesn't support images.", { name });
  if (!TYPES.has(type)) return t("“{name}” can't be attached: images are PNG, JPEG, WebP or GIF.", { name });
  const most = number(Math.floor((limit / 1024 ** 2) * 10) / 10);
  return size > limit ? t("“{name}” can't be attached: an image has up to {most} MB.", { name, most }) : "";
}

/** A small copy of an image as a `data:` URL; null if the browser can't draw it. @param {Blob} file @returns {Promise<string | null>} */
export async function smallOf(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return canvas.toDataURL("image/webp", 0.8);
  } catch (error) {
    if (error instanceof DOMException) return null;
    throw error;
  }
}

/** A file's text; null if it is no text, or too long. @param {File} file */
export async function readText(file) {
  if (file.size > MAX_BYTES) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n").trimEnd();
  } catch (error) {
    if (error instanceof TypeError || error instanceof DOMException) return null; // no UTF-8, or not readable
    throw error;
  }
}
