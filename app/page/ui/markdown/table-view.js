import { element } from "../elements/dom.js";
import { fill } from "./inline.js";
import { later } from "./slices.js";
import { t } from "../words/translate.js";

/** @typedef {import("./blocks.js").Table["header"][number]} Cell */

/** Rows that are made at once. A stream brings fewer; a whole table is made in slices. */
const AT_ONCE = 20;

/** A table. While it grows, its rows stay as they are. */
export class TableView {
  #head = element("tr");
  #body = element("tbody");
  // A group, not a region: landmarks need unique names, and a reply may have ten tables.
  root = element(
    "div",
    { class: "table", tabindex: 0, role: "group", "aria-label": t("Table") },
    element("table", {}, element("thead", {}, this.#head), this.#body),
  );
  /** @type {Cell[]} */ #header = [];
  /** @type {Cell[][]} As they are shown. */ #shown = [];
  /** @type {Cell[][]} */ #rows = [];
  /** @type {import("./inline.js").Links} */ #links = {};
  #waits = false;

  /** @param {import("./blocks.js").Table} block @param {import("./inline.js").Links} links */
  show({ header, rows }, links) {
    [this.#rows, this.#links] = [rows, links];
    const isOther = !same(this.#header, header);
    if (isOther) this.#fillRow(this.#head, "th", (this.#header = header));
    const differs = isOther ? 0 : this.#shown.findIndex((row, index) => !same(row, rows[index]));
    if (differs !== -1) {
      this.#shown.splice(differs);
      while (this.#body.rows.length > differs) this.#body.deleteRow(-1);
    }
    if (!this.#waits) this.#grow();
  }

  /** Makes some of the missing rows, and the next ones when the page is idle. */
  #grow() {
    for (const row of this.#rows.slice(this.#shown.length, this.#shown.length + AT_ONCE)) {
      this.#fillRow(this.#body.insertRow(), "td", row);
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
