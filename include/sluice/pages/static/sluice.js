// What HTML alone can't: the viewer's zone, Airflow's theme and its links out of the frame, copying, looking again.
"use strict";
(() => {
  const root = document.documentElement;
  const outer = (() => { try { return window.parent.document; } catch { return document; } })();
  const framed = outer !== document;
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => root.classList.toggle("dark", framed ? outer.documentElement.classList.contains("dark") : scheme.matches);
  paint();
  if (framed) new MutationObserver(paint).observe(outer.documentElement, { attributes: true, attributeFilter: ["class"] });
  else scheme.addEventListener("change", paint);
  const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  // What scrolls sideways must be reached by keyboard as well; what does not is no stop on the way.
  const scrolled = (box) => { box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1; };
  const sized = new ResizeObserver((found) => found.forEach((each) => scrolled(each.target)));
  const dress = () => {
    for (const time of document.querySelectorAll("time")) time.textContent = zone.format(new Date(time.dateTime));
    for (const link of document.querySelectorAll("a[data-airflow-path]")) link.href = root.dataset.airflow + link.dataset.airflowPath;
    sized.disconnect();
    for (const box of document.querySelectorAll(".wide")) sized.observe(box);
  };
  dress();
  const copied = (text) => {
    // Without TLS a browser has no clipboard for scripts, but for what is selected.
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const at = document.activeElement;
    const box = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    at?.focus({ preventScroll: true }); // who came by keyboard goes on from there
    return done ? Promise.resolve() : Promise.reject();
  };
  // The frame's sandbox lets no link out of it: one that Airflow's own page follows does.
  const leave = (address) => {
    const anchor = outer.createElement("a");
    anchor.href = address;
    outer.body.append(anchor);
    anchor.click();
    anchor.remove();
  };
  let clicked = 0;
  document.addEventListener("click", (event) => {
    clicked = Date.now();
    const link = event.target.closest("a[data-airflow-path]");
    if (link && framed) {
      event.preventDefault();
      leave(link.href);
    }
    const copy = event.target.closest("button.copy");
    if (copy) copied(copy.dataset.copy).then(() => {
      copy.textContent = "Copied";
      if (copy.dataset.airflowPath) leave(root.dataset.airflow + copy.dataset.airflowPath);
    }, () => { copy.textContent = "Select it by hand"; });
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches(".filter select")) event.target.form.requestSubmit();
  });
  const focusable = () => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")];
  const renew = (text) => {
    const found = new DOMParser().parseFromString(text, "text/html");
    const at = focusable().indexOf(document.activeElement);
    const open = [...document.querySelectorAll("details")].map((each) => each.open);
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(found.querySelector(part));
    document.querySelectorAll("details").forEach((each, i) => { if (i < open.length) each.open = open[i]; });
    root.dataset.again = found.documentElement.dataset.again || 0;
    dress();
    if (at >= 0) focusable()[at]?.focus({ preventScroll: true });
  };
  const missed = (why) => {
    let banner = document.querySelector(".missed");
    if (!banner) {
      banner = Object.assign(document.createElement("p"), { className: "banner missed" });
      banner.setAttribute("role", "status");
      document.querySelector("main").prepend(banner);
    }
    banner.textContent = `This page is not up to date: ${why}. It looks again by itself.`;
  };
  // Nor what was just clicked, which may tell how that went.
  const calm = () => !document.hidden && !document.activeElement.closest("form") && getSelection().isCollapsed && Date.now() - clicked > 10000;
  // Not by loading the page again: what then comes in its place, an error or a login, would have no script to look again.
  // What is there and is no page of ours, a report that was written meanwhile, is loaded: it runs no script, and needs none.
  const look = async () => {
    if (calm()) {
      let answer, text;
      try {
        answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual", signal: AbortSignal.timeout(20000) });
        text = await answer.text();
      } catch {
        missed("Airflow does not answer");
      }
      if (text !== undefined && calm()) {
        if ((answer.ok || answer.status === 404) && text.includes("data-airflow")) renew(text);
        else if (answer.ok) return location.reload();
        else missed(answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403 ? "log in again" : `Airflow answered ${answer.status}`);
      }
    }
    later();
  };
  const later = () => { const again = Number(root.dataset.again || 0); if (again) setTimeout(look, again * 1000); };
  later();
})();
