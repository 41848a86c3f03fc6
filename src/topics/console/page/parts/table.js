// A table that shows any number of rows: only those in view are in the document.
//
//     const table = new Table({ label: "Topics", columns, rowKey: (row) => row.topic, onOpen, empty });
//     table.setRows(rows); view.list = table; view.root.append(table.element);
//
// A column is { name, label, cell(row), width, align: "right", sortable, hideNarrow }. `cell` returns text or a node; `width`
// is a track of a CSS grid. `onSort(name, isDescending)` is called for a click on a sortable column. `onNearEnd()` is called when
// the last rows are in view: for lists that come in pages. `fullRow(row)` returns the content of a row without columns, such as
// a gap between records, or null for usual rows. With `rowsMax` the table is as high as its rows, up to that number; else as high as its
// place.

import { clear, h } from "../core/dom.js";

const ROW_PX = 36;
// The head with its line, and the border.
const HEAD_PX = 38;
const SPARE_ROWS = 8;

export class Table {
  #columns;
  #rows = [];
  #first = -1;
  #last = -1;
  #selectedKey = null;
  #sort = { name: null, isDescending: false };
  #options;
  #rowByKey = new Map();

  constructor(options) {
    this.#options = options;
    this.#columns = options.columns;
    this.#sort = { name: options.sort ?? null, isDescending: options.isDescending ?? false };
    this.headRow = h("div.table-head", { role: "row" });
    this.body = h("div.table-rows", { role: "presentation" });
    this.scroller = h("div.table-scroller", { tabindex: "0", role: "rowgroup", "aria-label": `${options.label}: rows` }, this.body);
    this.emptyPlace = h("div", { hidden: true });
    this.element = h("div.table", { class: options.class ?? "" }, [
      h("div.table-grid", { role: "table", "aria-label": options.label }, [h("div", { role: "rowgroup" }, this.headRow), this.scroller]),
      this.emptyPlace,
    ]);
    this.#drawHead();
    this.scroller.addEventListener("scroll", () => this.#draw(), { passive: true });
    new ResizeObserver(() => this.#draw(true)).observe(this.scroller);
  }

  get rows() {
    return this.#rows;
  }

  /** Shows these rows. The place that is scrolled to, and the selected row, stay. */
  setRows(rows) {
    this.#rows = rows;
    this.element.querySelector(".table-grid").setAttribute("aria-rowcount", String(rows.length + 1));
    const isEmpty = rows.length === 0 && this.#options.empty !== undefined;
    this.emptyPlace.hidden = !isEmpty;
    this.scroller.hidden = isEmpty;
    if (isEmpty) clear(this.emptyPlace, this.#options.empty());
    const { rowsMax } = this.#options;
    if (rowsMax) this.element.style.height = isEmpty ? "auto" : `${Math.min(Math.max(rows.length, 1), rowsMax) * ROW_PX + HEAD_PX}px`;
    this.#draw(true);
  }

  /** Draws the rows in view again, after a row was changed. */
  redraw() {
    this.#draw(true);
  }

  /** Rows in view. */
  inView() {
    return this.#rows.slice(Math.max(this.#first, 0), this.#last);
  }

  sortBy(name, isDescending) {
    this.#sort = { name, isDescending };
    this.#drawHead();
  }

  /** Selects the next (1) or previous (-1) row. */
  move(step) {
    const place = this.#rows.findIndex((row) => this.#options.rowKey(row) === this.#selectedKey);
    const next = place < 0 ? this.#first + (step > 0 ? 0 : 1) : place + step;
    if (next < 0 || next >= this.#rows.length) return;
    this.#selectedKey = this.#options.rowKey(this.#rows[next]);
    this.#reveal(next);
    this.#draw(true);
  }

  open() {
    const row = this.#rows.find((each) => this.#options.rowKey(each) === this.#selectedKey);
    if (row !== undefined) this.#options.onOpen?.(row);
  }

  select(key) {
    this.#selectedKey = key;
    const place = this.#rows.findIndex((row) => this.#options.rowKey(row) === key);
    if (place >= 0) this.#reveal(place);
    this.#draw(true);
  }

  #reveal(place) {
    const top = place * ROW_PX;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW_PX > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW_PX - clientHeight;
  }

  #drawHead() {
    const tracks = this.#columns.map((column) => column.width ?? "1fr");
    this.element.style.setProperty("--columns", tracks.join(" "));
    const narrow = this.#columns.filter((column) => !column.hideNarrow).map((column) => column.narrowWidth ?? column.width ?? "1fr");
    this.element.style.setProperty("--narrow-columns", narrow.join(" "));
    clear(this.headRow, this.#columns.map((column) => this.#headCell(column)));
  }

  #headCell(column) {
    const isSorted = this.#sort.name === column.name;
    const direction = isSorted ? (this.#sort.isDescending ? "descending" : "ascending") : undefined;
    const mark = isSorted ? h("span.sort-mark", { "aria-hidden": "true" }, this.#sort.isDescending ? "↓" : "↑") : null;
    const label = column.sortable ? h("button.sort", { type: "button", onclick: () => this.#changeSort(column) }, [column.label, mark]) : h("span", column.label);
    return h("div.cell", { role: "columnheader", class: cellClass(column), "aria-sort": direction, title: column.title }, label);
  }

  #changeSort(column) {
    const isDescending = this.#sort.name === column.name ? !this.#sort.isDescending : (column.sortsDescending ?? false);
    this.sortBy(column.name, isDescending);
    this.#options.onSort?.(column.name, isDescending);
  }

  #draw(isForced = false) {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(Math.floor(scrollTop / ROW_PX) - SPARE_ROWS, 0);
    const last = Math.min(Math.ceil((scrollTop + clientHeight) / ROW_PX) + SPARE_ROWS, this.#rows.length);
    if (!isForced && first === this.#first && last === this.#last) return;
    this.#first = first;
    this.#last = last;
    this.body.style.height = `${this.#rows.length * ROW_PX}px`;
    const drawn = [];
    const kept = new Map();
    for (let place = first; place < last; place += 1) {
      const row = this.#rows[place];
      const key = this.#options.rowKey(row);
      // Elements stay, so that a click or the focus on a link survives a refresh.
      const element = this.#rowByKey.get(key) ?? this.#rowElement(key);
      this.#fill(element, row, place);
      kept.set(key, element);
      drawn.push(element);
    }
    for (const [key, element] of this.#rowByKey) if (!kept.has(key)) element.remove();
    this.#rowByKey = kept;
    drawn.forEach((element, place) => {
      if (this.body.children[place] !== element) this.body.insertBefore(element, this.body.children[place] ?? null);
    });
    if (last >= this.#rows.length - SPARE_ROWS) this.#options.onNearEnd?.();
  }

  #rowElement(key) {
    return h("div.table-row", {
      role: "row",
      onclick: (event) => {
        if (event.target.closest("a, button, input")) return;
        this.#selectedKey = key;
        this.#draw(true);
        this.open();
      },
    });
  }

  #fill(element, row, place) {
    element.style.transform = `translateY(${place * ROW_PX}px)`;
    element.setAttribute("aria-rowindex", String(place + 2));
    const isSelected = this.#options.rowKey(row) === this.#selectedKey;
    element.classList.toggle("selected", isSelected);
    element.classList.toggle("opens", this.#options.onOpen !== undefined);
    const full = this.#options.fullRow?.(row) ?? null;
    element.classList.toggle("full", full !== null);
    if (full !== null) {
      element.replaceChildren(h("div.cell", { role: "cell" }, full));
      return;
    }
    this.#columns.forEach((column, number) => {
      const content = column.cell(row);
      const cell = element.children[number] ?? element.appendChild(h("div.cell", { role: "cell", class: cellClass(column) }));
      if (content instanceof Node) {
        if (cell.firstChild === null || !cell.firstChild.isEqualNode(content)) cell.replaceChildren(content);
      } else {
        const text = content === null || content === undefined ? "" : String(content);
        if (cell.childElementCount > 0 || cell.textContent !== text) cell.textContent = text;
      }
    });
  }
}

function cellClass(column) {
  return `${column.align === "right" ? "right" : ""} ${column.hideNarrow ? "hide-narrow" : ""}`;
}
