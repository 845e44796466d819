// Sorting, searching and paging of tables. Without this script all rows are there to read.
"use strict";
document.documentElement.classList.add("js"); // before the body is there: rows of later pages are never laid out

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function enhance(box, number) {
  const table = box.querySelector("table");
  const long = box.classList.contains("long");
  if (!table || (table.rows.length < 3 && !long)) return;
  const body = table.tBodies[0];
  const rows = Array.from(table.tBodies, (part) => Array.from(part.rows)).flat();
  const page = body.rows.length; // the first part of the table is the first page
  const compare = new Intl.Collator("en", { numeric: true }).compare;
  let order = rows;
  let limit = page;
  let words = [];
  let texts = null; // of the rows, in lower case, made when first searched
  const status = make("p", { className: "status" });
  status.setAttribute("role", "status");
  const more = make("button", { type: "button", textContent: `Show ${page} more` });
  const all = make("button", { type: "button", textContent: "Show all" });

  function show() {
    const hits = words.length ? order.filter((row) => words.every((word) => texts.get(row).includes(word))) : order;
    const shown = hits.slice(0, limit);
    for (const part of Array.from(table.tBodies).slice(1)) part.remove();
    body.replaceChildren(...shown);
    tell(shown.length, hits.length);
  }

  function tell(shown, hits) {
    const count = (value) => value.toLocaleString("en");
    const of = hits < rows.length ? `${count(hits)} matching of ${count(rows.length)}` : count(rows.length);
    status.textContent = `${count(shown)} of ${of} rows shown`;
    more.hidden = all.hidden = shown >= hits;
  }

  function sort(place, heading) {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = /number|measure/.test(heading.className);
    const keyed = rows.map((row) => {
      const cell = row.cells[place];
      const key = cell.dataset.key ?? cell.textContent;
      return [numeric ? parseFloat(key) : key, row];
    });
    const sign = down ? -1 : 1;
    keyed.sort(([a], [b]) => {
      if (!numeric) return sign * compare(a, b);
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // what has no number, last
      return sign * (a - b);
    });
    order = keyed.map(([, row]) => row);
    show();
  }

  Array.from(table.tHead.rows[0].cells).forEach((heading, place) => {
    const button = make("button", { type: "button", textContent: heading.textContent });
    button.addEventListener("click", () => sort(place, heading));
    heading.replaceChildren(button);
    heading.setAttribute("aria-sort", "none");
  });
  if (!long) return;

  const input = make("input", { type: "search", id: `search-${number}`, autocomplete: "off" });
  const label = make("label", { htmlFor: input.id, textContent: "Search" });
  input.addEventListener("input", () => {
    texts ??= new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    limit = page;
    show();
  });
  more.addEventListener("click", () => { limit += page; show(); });
  all.addEventListener("click", () => { limit = Infinity; show(); });
  box.querySelector(".scroll").before(make("div", { className: "tools" }, label, input, status));
  box.append(make("div", { className: "tools" }, more, all));
  tell(Math.min(limit, rows.length), rows.length);
}

addEventListener("DOMContentLoaded", () => document.querySelectorAll(".table").forEach(enhance));
