// A page that is served while its sweep runs: it asks for news, and loads itself anew without losing its place.
const keptPlace = "trisweep-live-place";
const pollMilliseconds = 2000;
const status = document.getElementById("live");
history.scrollRestoration = "manual";

function keepPlace() {
  const tools = [...document.querySelectorAll(".tools")].map((each) => ({
    table: each.dataset.table, values: [...each.querySelectorAll("input, select")].map((field) => field.value),
  }));
  const sorted = [...document.querySelectorAll('th[aria-sort$="cending"]')].map((head) => ({
    table: head.closest("table").id, column: head.cellIndex, order: head.getAttribute("aria-sort"),
  }));
  const field = document.activeElement?.closest(".tools");
  const focused = field && { table: field.dataset.table, at: [...field.querySelectorAll("input, select")].indexOf(document.activeElement) };
  const open = [...document.querySelectorAll("details[open][id]")].map((each) => each.id);
  const whole = [...tables.values()].filter((table) => table.most === Infinity).map((table) => table.element.id);
  sessionStorage.setItem(keptPlace, JSON.stringify({ scroll: scrollY, tools, sorted, focused, open, whole }));
}

function restorePlace() {
  const kept = JSON.parse(sessionStorage.getItem(keptPlace) ?? "null");
  sessionStorage.removeItem(keptPlace);
  if (!kept) return;
  const fieldsOf = (table) => [...document.querySelectorAll(`.tools[data-table="${CSS.escape(table)}"] :is(input, select)`)];
  for (const id of kept.whole) if (tables.has(id)) tables.get(id).most = Infinity;
  for (const { table, values } of kept.tools) fieldsOf(table).forEach((field, at) => {
    field.value = values[at] ?? "";
    field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
  });
  for (const { table, column, order } of kept.sorted) {
    const head = document.getElementById(table)?.tHead?.rows[0].cells[column];
    for (let clicks = 0; head && clicks < 2 && head.getAttribute("aria-sort") !== order; clicks++) head.querySelector("button").click();
  }
  for (const id of kept.open) document.getElementById(id)?.setAttribute("open", "");
  if (kept.focused) fieldsOf(kept.focused.table)[kept.focused.at]?.focus({ preventScroll: true });
  // Plots have their height only once they are drawn.
  const scroll = () => (document.documentElement.dataset.plots === "drawn" ? scrollTo(0, kept.scroll) : setTimeout(scroll, 50));
  scroll();
}

async function askForNews() {
  try {
    const news = await (await fetch("state", { cache: "no-store" })).json();
    status.textContent = news.text;
    if (news.version !== Number(status.dataset.version)) {
      keepPlace();
      location.reload();
      return;
    }
  } catch {
    status.textContent = "The command that served this page has ended; the page shows what was read last.";
  }
  setTimeout(askForNews, pollMilliseconds);
}

restorePlace();
askForNews();
