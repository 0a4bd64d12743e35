// Puts the page's newest content in the place of what is shown. Without this, the page loads itself.
"use strict";
async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/", { headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = page.querySelector("main");
      if (!answer.ok || !main || !document.querySelector("main[data-live]")) return location.reload();
      document.querySelector("main").replaceWith(main);
    } catch {
      document.querySelector("#state").textContent = "the control plane does not answer";
    }
  }
  setTimeout(refresh, 2000);
}
setTimeout(refresh, 2000);
