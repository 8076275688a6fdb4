"use strict";
// Opens the hospital that the address names, and finds one by its name. Nothing is drawn here.
const hospitals = [...document.querySelectorAll("details.hospital")];

function show(found) {
  if (!found) return;
  for (let box = found; box; box = box.parentElement.closest("details")) box.open = true;
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
