import { element } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {[tag: string, attributes: Record<string, string>]} Shape */

/** The icons that scripts show, drawn on 24 by 24. Those in a page from the start are in that page's own sprite. @type {Record<string, Shape[]>} */
const SHAPES = {
  copy: [
    ["rect", { x: "9", y: "9", width: "11", height: "11", rx: "2.5" }],
    ["path", { d: "M5.5 15A1.5 1.5 0 0 1 4 13.5v-8A1.5 1.5 0 0 1 5.5 4h8A1.5 1.5 0 0 1 15 5.5" }],
  ],
  check: [["path", { d: "M5 12.5l4.5 4.5L19 7.5" }]],
  trash: [["path", { d: "M4 7h16M9.5 7V4.5h5V7M6.5 7l.8 12a1 1 0 0 0 1 1h7.4a1 1 0 0 0 1-1l.8-12M10.2 11v5M13.8 11v5" }]],
  moon: [["path", { d: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z" }]],
  sun: [
    ["circle", { cx: "12", cy: "12", r: "4" }],
    ["path", { d: "M12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M18.4 5.6l-1.1 1.1M6.7 17.3l-1.1 1.1" }],
  ],
  edit: [["path", { d: "M4 20l.9-4L16.5 4.4a1.8 1.8 0 0 1 2.6 0l.5.5a1.8 1.8 0 0 1 0 2.6L8 19.1zM14.5 6.5l3 3" }]],
  again: [["path", { d: "M19.5 12a7.5 7.5 0 1 1-2.2-5.3L19.5 9M19.5 4v5h-5" }]],
  onward: [["path", { class: "solid", d: "M7 5.5v13l11-6.5z" }]],
  back: [["path", { d: "M14.5 6l-6 6 6 6" }]],
  forward: [["path", { d: "M9.5 6l6 6-6 6" }]],
  alert: [
    ["circle", { cx: "12", cy: "12", r: "9" }],
    ["path", { d: "M12 7.5v5.5M12 16.3v.2" }],
  ],
  tool: [["path", { d: "M14.5 6.5a4 4 0 0 1 5-3.8l-2.7 2.7.9 2.9 2.9.9 2.7-2.7a4 4 0 0 1-5.6 4.5L9.5 19.2a2.3 2.3 0 0 1-3.3-3.3l8.2-8.2a4 4 0 0 1 .1-1.2z", transform: "translate(-1.5 0)" }]],
  attach: [["path", { d: "M19 11.5l-7 7a4.6 4.6 0 0 1-6.5-6.5l7.5-7.5a3 3 0 0 1 4.3 4.3l-7.2 7.2a1.5 1.5 0 0 1-2.2-2.1l6.6-6.6" }]],
  microphone: [
    ["rect", { x: "9", y: "3.5", width: "6", height: "11", rx: "3" }],
    ["path", { d: "M5.500 11.500a6.500 6.500 0 0 0 13 0M12 18v3" }],
  ],
  translate: [["path", { d: "M4 6h9M8.500 4v2M11.500 6c-.8 3.400-3.300 6.300-6.500 7.800M6.500 9c1 2 2.700 3.700 4.800 4.700M12 20l4-9.500 4 9.500M13.300 17h5.400" }]],
  close: [["path", { d: "M6 6l12 12M18 6L6 18" }]],
};

/** One of the icons. @param {string} name */
export function icon(name) {
  const svg = shape("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" });
  svg.append(...SHAPES[name].map(([tag, attributes]) => shape(tag, attributes)));
  return svg;
}

/** A button that shows an icon. @param {string} name @param {string} label @param {Record<string, import("./dom.js").Value>} attributes */
export function iconButton(name, label, attributes) {
  return element("button", { class: "quiet", type: "button", "aria-label": label, ...attributes }, icon(name));
}

/** @param {string} tag @param {Record<string, string>} attributes */
function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
