// Tables whose rows stay in place: what did not change is not touched.

import { byName, make, name, setText } from "./format.js";
import { Plot } from "./plots.js";

const ROWS_SHOWN = 25;
const ROWS_AT_ONCE = 10;

export class Table {
  // columns: { title, cell(row) -> text or [text, class], by(row) to sort, num, wide, plot(row) -> points }
  constructor(section, columns, { key, rank = () => 0, state = () => "", label, hideEmpty = true }) {
    Object.assign(this, { columns, key, rank, state, hideEmpty });
    this.section = section;
    this.counted = section.querySelector(".count");
    this.rows = new Map();
    this.shown = [];
    this.sorted = null;
    this.all = false;
    this.node = make("table");
    this.node.append(make("caption", "skip", label));
    this.head = make("tr");
    this.body = make("tbody");
    columns.forEach((column, n) => this.head.append(this.title(column, n)));
    const head = make("thead");
    head.append(this.head);
    this.node.append(head, this.body);
    const box = section.querySelector(".table");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", label);
    this.more = make("button", "more");
    this.more.type = "button";
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.redraw();
    });
    this.leftOut = make("p", "left-out");
    box.append(this.node);
    box.after(this.more, this.leftOut);
  }

  title(column, n) {
    const cell = make("th", classOf(column));
    cell.scope = "col";
    if (!column.by) {
      cell.textContent = column.title;
      return cell;
    }
    const button = make("button", "", column.title);
    button.type = "button";
    button.addEventListener("click", () => {
      const down = this.sorted?.n === n ? !this.sorted.down : Boolean(column.num);
      this.sorted = this.sorted?.n === n && this.sorted.turned ? null : { n, down, turned: this.sorted?.n === n };
      [...this.head.children].forEach((other) => other.removeAttribute("aria-sort"));
      if (this.sorted) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      this.redraw();
    });
    cell.append(button);
    return cell;
  }

  show(rows, filter = "", leftOut = 0) {
    this.last = [rows, filter, leftOut];
    const total = rows.length + leftOut;
    this.section.hidden = this.hideEmpty && !total;
    setText(this.counted, String(total));
    let wanted = rows.map((row) => [this.key(row), row]);
    if (filter) wanted = wanted.filter(([key]) => key.toLowerCase().includes(filter));
    wanted.sort(this.order());
    const found = wanted.length;
    if (!this.all) wanted = wanted.slice(0, ROWS_SHOWN);
    this.place(wanted);
    this.more.hidden = found <= ROWS_SHOWN;
    setText(this.more, this.all ? "Show fewer" : `Show all ${found}`);
    this.leftOut.hidden = !leftOut;
    setText(this.leftOut, `${leftOut} more have no place on this page.`);
  }

  redraw() {
    this.show(...this.last);
    for (const _ of this.fills());
  }

  order() {
    if (!this.sorted) return (a, b) => this.rank(a[1]) - this.rank(b[1]) || compare(a[0], b[0]);
    const { by } = this.columns[this.sorted.n];
    const sign = this.sorted.down ? -1 : 1;
    return (a, b) => sign * compare(by(a[1]), by(b[1])) || compare(a[0], b[0]);
  }

  place(wanted) {
    const kept = new Set(wanted.map(([key]) => key));
    for (const [key, row] of this.rows) {
      if (kept.has(key)) continue;
      row.plots.forEach((plot) => plot?.drop());
      row.node.remove();
      this.rows.delete(key);
    }
    this.shown = wanted.map(([key]) => key);
    let before = this.body.firstChild;
    for (const [key, data] of wanted) {
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = this.row()));
      row.data = data;
      if (row.node === before) before = before.nextSibling;
      else this.body.insertBefore(row.node, before);
    }
  }

  // What is left to do after `show`, in pieces that each take a moment.
  *fills() {
    for (const [n, key] of this.shown.entries()) {
      const row = this.rows.get(key);
      if (row) this.fill(row, row.data);
      if (n % ROWS_AT_ONCE === ROWS_AT_ONCE - 1) yield;
    }
  }

  row() {
    const node = make("tr"), plots = [];
    this.columns.forEach((column, n) => {
      const cell = make(n ? "td" : "th", classOf(column));
      if (!n) cell.scope = "row";
      if (column.plot) {
        plots[n] = new Plot(column.kind);
        cell.append(plots[n].node);
      }
      node.append(cell);
    });
    return { node, plots, cells: [...node.children] };
  }

  fill(row, data) {
    const state = this.state(data);
    if (row.node.className !== state) row.node.className = state;
    this.columns.forEach((column, n) => {
      const cell = row.cells[n];
      if (column.plot) return row.plots[n].show(column.plot(data));
      const made = column.cell(data);
      const [text, className = ""] = Array.isArray(made) ? made : [made];
      const shown = name(text);
      setText(cell, shown);
      const wanted = `${classOf(column)} ${className}`.trim();
      if (cell.className !== wanted) cell.className = wanted;
      if ((!n || column.text) && cell.title !== shown) cell.title = shown;
    });
  }
}

const classOf = (column) => [column.num && "num", column.wide && "wide", column.text && "text"].filter(Boolean).join(" ");
const compare = (a, b) => (typeof a === "number" ? (a ?? 0) - (b ?? 0) : byName(String(a), String(b)));
