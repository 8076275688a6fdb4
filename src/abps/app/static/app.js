// Follow a running job: every two seconds take the fresh part of the page; when the job has ended, all of it.
// Without scripts the page can be loaded by hand.
for (const box of document.querySelectorAll("[data-live]")) {
  setInterval(async () => {
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
      if (!fresh) location.reload();
      else if (fresh.innerHTML !== box.innerHTML) box.replaceChildren(...fresh.childNodes);
    } catch { /* the server is away for a moment */ }
  }, 2000);
}
