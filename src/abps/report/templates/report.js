"use strict";
// Opens the hospital that the address names, finds one by its name, moves the map, sorts the tables.
// No library: four small jobs, and nothing is drawn here that is not in the page already.
const hospitals = [...document.querySelectorAll("details.hospital")];

function show(found) {
  if (!found) return;
  found.open = true;
  found.scrollIntoView({block: "start"});
  found.querySelector("summary").focus({preventScroll: true});
}
function follow() {
  if (!location.hash) return;
  const raw = location.hash.slice(1);
  let name = raw;
  try { name = decodeURIComponent(raw); } catch { /* not encoded: as it is */ }
  show(hospitals.find(h => h.id === raw) || hospitals.find(h => h.dataset.name === name));
}
addEventListener("hashchange", follow);
follow();

for (const form of document.querySelectorAll("form.picker")) {
  const field = form.querySelector("input"), said = form.querySelector("output");
  const own = hospitals.filter(h => h.dataset.part === form.dataset.part);
  form.addEventListener("submit", event => {
    event.preventDefault();
    const word = field.value.trim().toLowerCase(), lower = h => h.dataset.name.toLowerCase();
    const hits = [...new Set(own.filter(h => lower(h) === word).concat(own.filter(h => lower(h).includes(word))))];
    if (!word || !hits.length) { said.textContent = word ? "no hospital of this name" : ""; return; }
    said.textContent = hits[0].dataset.name + (hits.length > 1 ? ` (and ${hits.length - 1} more)` : "");
    location.hash = "#" + hits[0].id;
    show(hits[0]);
  });
}

const SVG = "http://www.w3.org/2000/svg";
for (const box of document.querySelectorAll(".map")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const slider = box.querySelector("input"), said = box.querySelector("output"), plot = box.querySelector("svg");
  const n = data.centers.length, place = k => {
    const angle = 2 * Math.PI * k / n - Math.PI / 2;
    return [200 + 175 * Math.cos(angle), 200 + 175 * Math.sin(angle)];
  };
  const links = document.createElementNS(SVG, "g");
  plot.append(links);
  const nodes = data.centers.map((name, k) => {
    const dot = document.createElementNS(SVG, "circle"), title = document.createElementNS(SVG, "title");
    const [x, y] = place(k);
    dot.setAttribute("cx", x); dot.setAttribute("cy", y); dot.setAttribute("r", n > 80 ? 2.5 : 5);
    title.textContent = name; dot.append(title); plot.append(dot);
    return dot;
  });
  const draw = () => {
    const pairs = data.rounds[slider.value - 1], busy = new Set(pairs.flat());
    links.replaceChildren(...pairs.map(([a, b]) => {
      const line = document.createElementNS(SVG, "line"), [x1, y1] = place(a), [x2, y2] = place(b);
      for (const [key, value] of Object.entries({x1, y1, x2, y2})) line.setAttribute(key, value);
      return line;
    }));
    nodes.forEach((dot, k) => dot.classList.toggle("resting", !busy.has(k)));
    said.textContent = `round ${slider.value} of ${data.rounds.length}: ${pairs.length} pairs, ${n - busy.size} without a partner`;
  };
  slider.addEventListener("input", draw);
  draw();
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button"; button.append(...head.childNodes); head.append(button);
    button.addEventListener("click", () => {
      const up = head.ariaSort !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => {
        const text = row.cells[column].textContent.trim().replaceAll("\u2212", "-"), number = parseFloat(text);
        return Number.isNaN(number) ? text : number;
      };
      const rows = [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
