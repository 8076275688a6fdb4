// Follow a running job; load the page again when it ends. Without scripts the page can be loaded by hand.
for (const box of document.querySelectorAll("[data-progress]")) {
  const timer = setInterval(async () => {
    try {
      const found = (await (await fetch(box.dataset.progress)).json())[box.dataset.job];
      if (found.state !== "running") { clearInterval(timer); location.reload(); return; }
      box.querySelector(".line").textContent = found.line;
      const bar = box.querySelector("progress");
      if (found.total) { bar.max = found.total; bar.value = found.done; }
    } catch { /* the server is away for a moment */ }
  }, 1000);
}
