import { element } from "../elements/dom.js";
import { fill } from "./inline.js";
import { later } from "./slices.js";
import { t } from "../words/translate.js";

/** @typedef {import("./blocks.js").Table["header"][number]} Cell */
/** @typedef {{frame: HTMLElement, table: HTMLTableElement, columns: HTMLTableColElement, head: HTMLTableRowElement, body: HTMLTableSectionElement}} Part */

/** Rows that are made at once. A stream brings fewer; a whole table is made in slices. */
const AT_ONCE = 20;

/** Rows of one table. Each new row lays out its whole table, so a longer table goes on in another, below the same head. */
const ROWS = 100;

/** A table. While it grows, its rows stay as they are. */
export class TableView {
  // A group, not a region: landmarks need unique names, and a reply may have ten tables.
  root = element("div", { class: "table", tabindex: 0, role: "group", "aria-label": t("Table") });
  /** @type {Part[]} */ #parts = [];
  /** @type {Cell[][]} As they are shown. */ #shown = [];
  /** @type {Cell[]} */ #head = [];
  /** @type {Cell[][]} */ #rows = [];
  /** @type {import("./inline.js").Links} */ #links = {};
  #waits = false;
  /** @type {ResizeObserver | null} */ #resized = null;

  constructor() {
    this.#part();
  }

  /** @param {import("./blocks.js").Table} block @param {import("./inline.js").Links} links */
  show({ header, rows }, links) {
    const differs = this.#shown.findIndex((row, index) => !same(row, rows[index]));
    [this.#rows, this.#links] = [rows, links];
    if (!same(this.#head, header)) {
      this.#head = header;
      this.#truncate(0);
      this.#fillRow(this.#parts[0].head, "th", header);
    } else if (differs !== -1) this.#truncate(differs);
    if (!this.#waits) this.#grow();
  }

  /** @param {number} length */
  #truncate(length) {
    while (this.#shown.length > length) {
      this.#shown.pop();
      this.#parts.at(-1)?.body.lastChild?.remove();
      if (this.#shown.length > 0 && this.#shown.length % ROWS === 0) this.#parts.pop()?.frame.remove();
    }
  }

  /** Makes some of the missing rows, and the next ones when the page is idle. */
  #grow() {
    for (const row of this.#rows.slice(this.#shown.length, this.#shown.length + AT_ONCE)) {
      const made = element("tr");
      this.#fillRow(made, "td", row);
      this.#bodyOfNext().append(made);
      this.#shown.push(row);
    }
    this.#waits = this.#shown.length < this.#rows.length;
    if (this.#waits) later.add(() => this.#grow());
  }

  #bodyOfNext() {
    const index = Math.floor(this.#shown.length / ROWS);
    if (index < this.#parts.length) return this.#parts[index].body;
    const part = this.#part();
    this.#fillRow(part.head, "th", this.#head);
    this.#align([part]);
    if (this.#resized === null) {
      this.#resized = new ResizeObserver(() => this.#align(this.#parts.slice(1)));
      this.#resized.observe(this.root);
    }
    return part.body;
  }

  #part() {
    const made = { frame: element("div", { class: "rows" }), head: element("tr"), columns: element("colgroup"), body: element("tbody"), table: element("table") };
    if (this.#parts.length > 0) made.table.append(made.columns);
    made.table.append(element("thead", {}, made.head), made.body);
    // The first one is always laid out: the columns of the others are measured on it.
    if (this.#parts.length > 1) this.#parts.at(-1)?.frame.classList.add("full");
    this.#parts.push(made);
    made.frame.append(made.table);
    this.root.append(made.frame);
    return made;
  }

  /** Lets columns begin where those of the first table do. They may be wider, since no word is broken. @param {Part[]} parts */
  #align(parts) {
    const widths = [...this.#parts[0].head.cells].map((cell) => cell.getBoundingClientRect().width);
    for (const { columns } of parts) {
      columns.replaceChildren(...widths.map(() => element("col")));
      widths.forEach((width, index) => {
        /** @type {HTMLElement} */ (columns.children[index]).style.width = `${width}px`;
      });
    }
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
