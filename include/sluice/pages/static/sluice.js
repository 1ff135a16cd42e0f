// Times in Airflow's time zone, Airflow's theme, links out of the frame, and refreshing the page.
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
  // Airflow keeps the zone that its user chose as JSON under this key; without one, both show the browser's.
  const ZONE = "timezone";
  const zone = (() => {
    try {
      const chosen = JSON.parse(localStorage.getItem(ZONE)) ?? undefined;
      return new Intl.DateTimeFormat(undefined, { timeZone: chosen }) && chosen;
    } catch { return undefined; } // a zone that this browser does not have
  })();
  window.sluiceZone = zone;
  const PARTS = { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
  const clock = new Intl.DateTimeFormat(undefined, { ...PARTS, timeZone: zone });
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const sinceThen = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
  const ago = (at) => {
    const seconds = Math.max((Date.now() - at) / 1000, 0);
    const [unit, length] = UNITS.find((each) => seconds >= each[1]) ?? UNITS.at(-1);
    return sinceThen.format(-Math.floor(seconds / length), unit);
  };
  const showAge = () => {
    const [read, age] = [document.querySelector(".read time"), document.querySelector(".age")];
    if (read && age) age.textContent = `(${ago(new Date(read.dateTime))})`;
  };
  setInterval(showAge, 5000);
  addEventListener("storage", (event) => { if (event.key === ZONE) location.reload(); });
  const zoned = (text) => text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g, (utc, day, time) => {
    const at = new Date(`${day}T${time}Z`);
    return isNaN(at) ? utc : clock.format(at); // a text may name a day that does not exist
  });
  // Only boxes that scroll sideways are tab stops.
  const scrolled = (box) => { box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1; };
  const sized = new ResizeObserver((found) => found.forEach((each) => scrolled(each.target)));
  // A table's page shows one part of it: that of the address, which a link anywhere may name.
  const showTab = () => {
    const tabs = [...document.querySelectorAll(".tabs a")];
    if (!tabs.length) return;
    const asked = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    const chosen = asked?.closest("[data-tab]")?.dataset.tab ?? "overview";
    for (const part of document.querySelectorAll("[data-tab]")) part.hidden = part.dataset.tab !== chosen;
    for (const tab of tabs) {
      const part = document.getElementById(tab.hash.slice(1))?.closest("[data-tab]")?.dataset.tab ?? tab.hash.slice(1);
      if (part === chosen) tab.setAttribute("aria-current", "true");
      else tab.removeAttribute("aria-current");
    }
    document.dispatchEvent(new Event("sluice:page"));
  };
  addEventListener("hashchange", showTab);
  const enhance = () => {
    for (const time of document.querySelectorAll("time")) time.textContent = clock.format(new Date(time.dateTime));
    for (const time of document.querySelectorAll(".ago time")) Object.assign(time, { title: time.textContent, textContent: ago(new Date(time.dateTime)) });
    for (const title of document.querySelectorAll("svg title")) title.textContent = zoned(title.textContent);
    for (const each of document.querySelectorAll("[title]:not(time)")) each.title = zoned(each.title);
    for (const link of document.querySelectorAll("a[data-airflow-path]")) link.href = root.dataset.airflow + link.dataset.airflowPath;
    showAge();
    document.querySelector(".again")?.removeAttribute("hidden");
    if (document.querySelector(".tabs")) showTab();
    else document.dispatchEvent(new Event("sluice:page"));
    sized.disconnect();
    for (const box of document.querySelectorAll(".wide")) sized.observe(box);
  };
  enhance();
  // The frame's sandbox blocks links out of it: follow the link in Airflow's own page.
  const navigate = (address) => {
    const anchor = outer.createElement("a");
    anchor.href = address;
    outer.body.append(anchor);
    anchor.click();
    anchor.remove();
  };
  // Where a browser does not let a page write to its clipboard, the text is selected.
  const copy = async (button) => {
    const text = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
  };
  let clicked = 0;
  document.addEventListener("click", (event) => {
    clicked = Date.now();
    if (event.target.matches("[data-copy]")) copy(event.target);
    if (event.target.matches(".again")) renewAsked();
    const link = event.target.closest("a[data-airflow-path]");
    if (link && framed) {
      event.preventDefault();
      navigate(link.href);
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches(".filter select")) event.target.form.requestSubmit();
  });
  const focusable = () => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")];
  const replacePage = (text) => {
    const found = new DOMParser().parseFromString(text, "text/html");
    const at = document.querySelector("dialog[open]") ? -1 : focusable().indexOf(document.activeElement);
    const open = [...document.querySelectorAll("details")].map((each) => each.open);
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(found.querySelector(part));
    document.querySelectorAll("details").forEach((each, i) => { if (i < open.length) each.open = open[i]; });
    // The new page may need files that this one came without, such as those of charts.
    for (const part of found.head.querySelectorAll("script, link")) {
      const from = part.matches("script") ? "src" : "href";
      if (document.querySelector(`${part.localName}[${from}="${CSS.escape(part.getAttribute(from))}"]`)) continue;
      const added = Object.assign(document.createElement(part.localName), { async: false }); // scripts in their order
      for (const { name, value } of part.attributes) added.setAttribute(name, value);
      document.head.append(added);
    }
    root.dataset.refresh = found.documentElement.dataset.refresh || 0;
    enhance();
    if (at >= 0) focusable()[at]?.focus({ preventScroll: true });
  };
  // For a dialog: the page behind it is read again. Returns the element of its "as of"; null if there was no answer.
  window.sluiceRenew = async () => {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual", signal: AbortSignal.timeout(20000) });
      const text = await answer.text();
      if (!answer.ok || !text.includes("data-airflow")) return null;
      replacePage(text);
      return document.querySelector(".read time");
    } catch { return null; }
  };
  // What is too old is read again once somebody looks: the page waits for it.
  const renewAsked = async () => {
    const before = document.querySelector(".read time")?.dateTime;
    for (let n = 0; n < 5; n++) {
      const button = document.querySelector(".again");
      Object.assign(button, { disabled: true, textContent: "Reading…" });
      const shown = await window.sluiceRenew();
      if (!shown && button.isConnected) {
        Object.assign(button, { disabled: false, textContent: "Refresh" });
        return showStale("Airflow does not answer");
      }
      if (shown?.dateTime !== before) return;
      await new Promise((done) => setTimeout(done, 2000));
    }
  };
  const showStale = (why) => {
    let banner = document.querySelector(".stale");
    if (!banner) {
      banner = Object.assign(document.createElement("p"), { className: "banner stale" });
      banner.setAttribute("role", "status");
      document.querySelector("main").prepend(banner);
    }
    banner.textContent = `This page is out of date: ${why}. It retries automatically.`;
  };
  // Do not replace the page while the user reads, types, selects, or has just clicked.
  const isIdle = () => !document.hidden && !document.querySelector("dialog[open]") && !document.activeElement.closest("form") && getSelection().isCollapsed && Date.now() - clicked > 10000;
  // Fetch instead of reload: an error or login page in its place would have no script that retries.
  // A report is no page of ours and has no script: load it.
  const refresh = async () => {
    if (isIdle()) {
      let answer, text;
      try {
        answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual", signal: AbortSignal.timeout(20000) });
        text = await answer.text();
      } catch {
        showStale("Airflow does not answer");
      }
      if (text !== undefined && isIdle()) {
        if ((answer.ok || answer.status === 404) && text.includes("data-airflow")) replacePage(text);
        else if (answer.ok) return location.reload();
        else showStale(answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403 ? "log in again" : `Airflow answered ${answer.status}`);
      }
    }
    schedule();
  };
  // Typing in the search of all tables narrows the rows at once. The address follows, so that a refresh keeps them.
  let asking = 0;
  const narrow = (box) => {
    const table = document.querySelector("table[data-searched]");
    if (!table) return;
    const wanted = box.value.trim().toLowerCase();
    let shown = 0;
    for (const part of table.tBodies) {
      let some = false;
      for (const row of part.querySelectorAll("tr:has(th[scope=row])")) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        some ||= !row.hidden;
        shown += !row.hidden;
      }
      part.hidden = !some && part.querySelector("th") !== null;
    }
    document.querySelector("[data-count]").textContent = shown.toLocaleString("en");
    const searched = (address) => {
      const url = new URL(address, location.href);
      if (wanted) url.searchParams.set("q", wanted);
      else url.searchParams.delete("q");
      return url.href;
    };
    history.replaceState(history.state, "", searched(location.href));
    for (const link of document.querySelectorAll("a[data-query]")) link.href = searched(link.href);
    clearTimeout(asking);
    if (!wanted.includes(table.dataset.searched.toLowerCase())) asking = setTimeout(fetchRows, 300, box, table);
  };
  // The page was searched for another word: the rows that it left out come from the server.
  const fetchRows = async (box, table) => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" }).catch(() => null);
    const rows = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("table[data-searched]");
    if (!rows || !table.isConnected) return;
    table.replaceWith(rows);
    enhance();
    narrow(box);
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches(".filter input[type=search]")) narrow(event.target);
  });
  const schedule = () => { const seconds = Number(root.dataset.refresh || 0); if (seconds) setTimeout(refresh, seconds * 1000); };
  schedule();
})();
