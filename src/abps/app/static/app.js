// Follow a running job; load the page again when it ends. Without scripts the page can be loaded by hand.
for (const box of document.querySelectorAll("[data-progress]")) {
  const timer = setInterval(async () => {
    try {
      const found = (await (await fetch(box.dataset.progress)).json())[box.dataset.job];
      if (found.state !== "running") { clearInterval(timer); location.reload(); return; }
      if (found.line) box.querySelector(".line").textContent = found.line;
      const bar = box.querySelector("progress");
      if (found.total) { bar.max = found.total; bar.value = found.done; }
    } catch { /* the server is away for a moment */ }
  }, 1000);
}
// Show a running job as it goes on, without losing the place on the page.
for (const box of document.querySelectorAll("[data-live]")) {
  setInterval(async () => {
    try {
      const text = await (await fetch(location.href)).text();
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("[data-live]");
      if (fresh && fresh.innerHTML !== box.innerHTML) box.replaceChildren(...fresh.childNodes);
    } catch { /* the server is away for a moment */ }
  }, 2000);
}
