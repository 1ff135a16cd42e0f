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
  for (const time of document.querySelectorAll("time")) time.textContent = zone.format(new Date(time.dateTime));
  for (const link of document.querySelectorAll("a[data-airflow-path]")) link.href = root.dataset.airflow + link.dataset.airflowPath;
  // What scrolls sideways must be reached by keyboard as well; what does not is no stop on the way.
  const scrolled = (box) => { box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1; };
  const sized = new ResizeObserver((found) => found.forEach((each) => scrolled(each.target)));
  for (const box of document.querySelectorAll(".wide")) sized.observe(box);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow-path]");
    if (link && framed) {
      // The frame's sandbox lets no link out of it: one that Airflow's own page follows does.
      event.preventDefault();
      const anchor = outer.createElement("a");
      anchor.href = link.href;
      outer.body.append(anchor);
      anchor.click();
      anchor.remove();
    }
    const copy = event.target.closest("button.copy");
    if (copy) navigator.clipboard.writeText(copy.dataset.copy).then(() => { copy.textContent = "Copied"; });
  });
  const select = document.querySelector(".filter select");
  if (select) select.addEventListener("change", () => select.form.requestSubmit());
  const again = Number(root.dataset.again || 0);
  const calm = () => !document.hidden && !document.activeElement.closest("form") && getSelection().isCollapsed;
  if (again) setInterval(() => { if (calm()) location.reload(); }, again * 1000);
})();
