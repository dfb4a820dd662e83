"use strict";
// A table and its rows, of which a long one shows the first. Those below lie in the page as columns of texts, and become
// elements once they are shown; the filter and the order are of all of them.
class LongTable {
  constructor(element) {
    this.element = element;
    this.later = document.getElementById(element.id.replace("table-", "later-"));
    this.most = this.later ? element.tBodies[0].rows.length : Infinity;
    this.passes = () => true;
  }

  get rows() {
    this.known ??= [...this.element.tBodies[0].rows].map((row) => new ShownRow(row)).concat(this.laterRows());
    return this.known;
  }

  laterRows() {
    if (!this.later) return [];
    const told = JSON.parse(this.later.textContent);
    const classes = [...this.element.tHead.rows[0].cells].map((head) => head.className);
    return Array.from({ length: told.count }, (_, at) => new LaterRow(told, classes, at));
  }

  show() {
    const found = this.rows.filter((row) => this.passes(row));
    this.element.tBodies[0].replaceChildren(...found.slice(0, this.most).map((row) => row.element));
    return found.length;
  }

  sortBy(head) {
    const column = head.cellIndex;
    const isNumber = head.classList.contains("number");
    const [first, second] = isNumber ? ["descending", "ascending"] : ["ascending", "descending"];
    const order = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of head.parentElement.children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    if (isNumber) this.rows.sort((left, right) => compareNumbers(left.sortOf(column), right.sortOf(column), sign));
    else this.rows.sort((left, right) => sign * alphabet.compare(left.textOf(column), right.textOf(column)));
    this.show();
  }
}

class ShownRow {
  constructor(element) { Object.assign(this, { element, text: element.textContent.toLowerCase() }); }
  textOf(column) { return this.element.cells[column].textContent; }
  sortOf(column) { return Number(this.element.cells[column].dataset.sort); }
}

class LaterRow {
  constructor(told, classes, at) { Object.assign(this, { told, classes, at }); }
  textOf(column) {
    const { texts } = this.told.columns[column];
    return Array.isArray(texts) ? texts[this.at] : texts;
  }
  noteOf(column) { return this.told.columns[column].notes?.[this.at] ?? ""; }
  sortOf(column) { return this.told.columns[column].sorts?.[this.at] ?? NaN; }
  get text() {
    this.joined ??= this.told.columns.map((_, column) => this.textOf(column) + this.noteOf(column)).join("").toLowerCase();
    return this.joined;
  }
  get element() {
    this.made ??= this.make();
    return this.made;
  }

  make() {
    const row = document.createElement("tr");
    if (this.told.marked.includes(this.at)) row.className = "marked";
    this.classes.forEach((name, column) => {
      const cell = row.insertCell();
      if (name) cell.className = name;
      this.fill(cell, this.textOf(column));
      if (!this.noteOf(column)) return;
      const note = document.createElement("span");
      note.className = "under";
      this.fill(note, this.noteOf(column));
      cell.append(note);
    });
    return row;
  }

  fill(place, text) {
    const { longest, shown } = this.told;
    if (text.length <= longest) { place.textContent = text; return; }
    const [details, summary] = ["details", "summary"].map((name) => document.createElement(name));
    details.className = "long";
    summary.textContent = `${text.slice(0, shown)} …`;
    details.append(summary, text.slice(shown));
    place.append(details);
  }
}

const alphabet = new Intl.Collator("en", { numeric: true });

function compareNumbers(a, b, sign) {
  const isAbsent = (number) => !Number.isFinite(number);
  if (isAbsent(a) || isAbsent(b)) return isAbsent(a) - isAbsent(b); // absent numbers stay below
  return sign * (a - b);
}

// Sort a table by a column: numbers by their value, text by the alphabet; a second click turns the order round.
const tables = new Map();
for (const element of document.querySelectorAll("table.sortable")) {
  const table = new LongTable(element);
  tables.set(element.id, table);
  for (const button of element.querySelectorAll("th button")) button.addEventListener("click", () => table.sortBy(button.parentElement));
}

// Show the rows that hold the text in any column, and the chosen value in the columns that offer a choice.
for (const tools of document.querySelectorAll(".tools")) {
  const table = tables.get(tools.dataset.table);
  const search = tools.querySelector("input");
  const choices = [...tools.querySelectorAll("select")];
  const all = tools.querySelector("button.all");
  const tell = (found) => {
    const counted = found === table.rows.length ? `${found} rows` : `${found} of ${table.rows.length} rows`;
    tools.querySelector("output").textContent = found > table.most ? `${counted}, the first ${table.most} shown` : counted;
    if (all) all.hidden = found <= table.most;
  };
  const filter = () => {
    const wanted = search.value.toLowerCase();
    const chosen = choices.filter((choice) => choice.value);
    table.passes = (row) =>
      chosen.every((choice) => row.textOf(choice.dataset.column) === choice.value) && (!wanted || row.text.includes(wanted));
    tell(table.show());
  };
  search.addEventListener("input", filter);
  for (const choice of choices) choice.addEventListener("change", filter);
  if (!all) continue;
  all.addEventListener("click", () => { table.most = Infinity; filter(); });
  tools.querySelector("output").textContent += `, the first ${table.most} shown`;
}

const themeButton = document.getElementById("theme");
const themes = ["system", "light", "dark"];
const themeNow = () => document.documentElement.dataset.theme ?? "system";
const showTheme = () => { themeButton.textContent = `Theme: ${themeNow()}`; };
themeButton.addEventListener("click", () => {
  const next = themes[(themes.indexOf(themeNow()) + 1) % themes.length];
  applyTheme(next);
  remembered.set(next);
  showTheme();
});
showTheme();

// The legend is open where there is room for it; on paper everything is open.
const legendOfLayouts = document.getElementById("legend");
if (legendOfLayouts && document.documentElement.clientWidth >= 900) legendOfLayouts.open = true;
addEventListener("beforeprint", () => { for (const closed of document.querySelectorAll("details:not([open])")) closed.open = true; });
