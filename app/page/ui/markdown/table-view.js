import { element } from "../elements/dom.js";
import { fill } from "./inline.js";
import { cellsOf } from "./blocks/lines.js";
import { mentions } from "./links.js";
import { later } from "./slices.js";
import { t } from "../words/translate.js";

/** Rows that are made at once. What a stream brings is less; a whole table comes in slices. */
const AT_ONCE = 20;

/** A table. Rows that it has stay as they are while it grows. */
export class TableView {
  #head = element("tr");
  #body = element("tbody");
  #table = element("table", {}, element("thead", {}, this.#head), this.#body);
  // A group, not a region: landmarks need names of their own, and a reply may have ten tables.
  root = element("div", { class: "table", tabindex: 0, role: "group", "aria-label": t("Table") }, this.#table);
  /** @type {string[]} As they are shown. */ #shown = [];
  /** @type {import("./blocks/leaves.js").Table} */ #block = { kind: "table", head: [], alignments: [], rows: [] };
  #key = "";
  #links;
  #waits = false;

  /** @param {import("./links.js").Links} links */
  constructor(links) {
    this.#links = links;
  }

  /** @param {import("./blocks/leaves.js").Table} block */
  show(block) {
    this.#block = block;
    const key = JSON.stringify([block.head, block.alignments]);
    if (key !== this.#key) this.#begin();
    this.#key = key;
    const differs = this.#shown.findIndex((row, index) => row !== block.rows[index]);
    this.#truncate(differs === -1 ? this.#shown.length : differs);
    if (!this.#waits) this.#grow();
  }

  /** @param {Set<string>} labels */
  relink(labels) {
    if (this.#block.head.some((cell) => mentions(cell, labels))) this.#begin();
    const first = this.#shown.findIndex((row) => mentions(row, labels));
    if (first !== -1) this.#truncate(first);
    if (!this.#waits) this.#grow();
  }

  #begin() {
    this.#truncate(0);
    this.#fillRow(this.#head, "th", this.#block.head);
  }

  /** @param {number} length */
  #truncate(length) {
    for (const _ of this.#shown.splice(length)) this.#body.lastChild?.remove();
  }

  /** Makes some of the rows that are missing; the next ones in a quiet moment. */
  #grow() {
    const { rows, head } = this.#block;
    for (const row of rows.slice(this.#shown.length, this.#shown.length + AT_ONCE)) {
      const cells = cellsOf(row);
      const made = element("tr");
      this.#fillRow(made, "td", head.map((_, index) => cells[index] ?? ""));
      this.#body.append(made);
      this.#shown.push(row);
    }
    this.#waits = this.#shown.length < rows.length;
    if (this.#waits) later.add(() => this.#grow());
  }

  /** @param {HTMLTableRowElement} row @param {"th" | "td"} tag @param {string[]} cells */
  #fillRow(row, tag, cells) {
    row.replaceChildren(...cells.map((text, index) => this.#cell(tag, text, this.#block.alignments[index])));
  }

  /** @param {"th" | "td"} tag @param {string} text @param {string | null} align */
  #cell(tag, text, align) {
    const cell = element(tag, { align });
    fill(cell, text, this.#links.known);
    return cell;
  }
}
