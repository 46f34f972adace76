import { element } from "../elements/dom.js";
import { fill } from "./inline.js";
import { later } from "./slices.js";
import { t } from "../words/translate.js";

/** @typedef {import("./blocks.js").Table["header"][number]} Cell */

/** Rows that are made at once. A stream brings fewer; a whole table is made in slices. */
const AT_ONCE = 20;

/** A table. While it grows, its rows stay as they are. */
export class TableView {
  // A group, not a region: landmarks need unique names, and a reply may have ten tables.
  root = element("div", { class: "table", tabindex: 0, role: "group", "aria-label": t("Table") });
  #headRow = element("tr");
  #body = element("tbody");
  /** @type {Cell[][]} As they are shown. */ #shown = [];
  /** @type {Cell[]} */ #head = [];
  /** @type {Cell[][]} */ #rows = [];
  /** @type {import("./inline.js").Links} */ #links = {};
  #waits = false;

  constructor() {
    this.root.append(element("table", {}, element("thead", {}, this.#headRow), this.#body));
  }

  /** @param {import("./blocks.js").Table} block @param {import("./inline.js").Links} links */
  show({ header, rows }, links) {
    const differs = this.#shown.findIndex((row, index) => !same(row, rows[index]));
    [this.#rows, this.#links] = [rows, links];
    if (!same(this.#head, header)) this.#begin(header);
    else if (differs !== -1) this.#truncate(differs);
    if (!this.#waits) this.#grow();
  }

  /** @param {Cell[]} head */
  #begin(head) {
    this.#head = head;
    this.#truncate(0);
    this.#fillRow(this.#headRow, "th", head);
  }

  /** @param {number} length */
  #truncate(length) {
    this.#shown.splice(length);
    while (this.#body.rows.length > length) this.#body.lastChild?.remove();
  }

  /** Makes some of the missing rows, and the next ones when the page is idle. */
  #grow() {
    for (const row of this.#rows.slice(this.#shown.length, this.#shown.length + AT_ONCE)) {
      const made = element("tr");
      this.#fillRow(made, "td", row);
      this.#body.append(made);
      this.#shown.push(row);
    }
    this.#waits = this.#shown.length < this.#rows.length;
    if (this.#waits) later.add(() => this.#grow());
  }

  /** @param {HTMLTableRowElement} row @param {"th" | "td"} tag @param {Cell[]} cells */
  #fillRow(row, tag, cells) {
    row.replaceChildren(
      ...cells.map(({ text, align }) => {
        const cell = element(tag, { align });
        fill(cell, text, this.#links);
        return cell;
      }),
    );
  }
}

/** @param {Cell[]} one @param {Cell[] | undefined} other */
function same(one, other) {
  return one.length === other?.length && one.every(({ text, align }, index) => text === other[index].text && align === other[index].align);
}
