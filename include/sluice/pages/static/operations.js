// The dialogs of the buttons: a dry run, a reason, and a request to Airflow's own API with the viewer's session.
"use strict";
(() => {
  const root = document.documentElement;
  const POLL_MS = 2000, FOLLOW_MS = 1000, ATTEMPTS = 30, RENEWALS = 20;
  const GOING_ON = ["queued", "running"], MAX_REASON = 500;
  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const pause = (ms = POLL_MS) => new Promise((done) => setTimeout(done, ms));

  // Airflow's session is a cookie, and JSON is a type that no form of another site can send.
  const ask = async (method, address, body) => {
    let answer;
    try {
      answer = await fetch(address, {
        method, redirect: "error", signal: AbortSignal.timeout(30000), body: body && JSON.stringify(body),
        headers: { Accept: "application/json", ...(body && { "Content-Type": "application/json" }) },
      });
    } catch {
      throw new Error("Airflow does not answer. Try again.");
    }
    const text = await answer.text();
    if (answer.ok) return JSON.parse(text || "null");
    throw Object.assign(new Error(explain(answer.status, text)), { status: answer.status });
  };
  const explain = (status, text) => {
    if (status === 401) return "Your login has ended. Log in to Airflow again.";
    let detail;
    try { detail = JSON.parse(text).detail; } catch { detail = undefined; }
    if (Array.isArray(detail)) detail = detail.map((each) => each.msg).join("; ");
    return `Airflow answered ${status}: ${typeof detail === "string" ? detail : detail?.reason ?? "no reason given"}`;
  };

  const plain = (text) => text.replaceAll("`", "");
  // Airflow's provider puts the whole command before what matters.
  const shorten = (text) => {
    const [, code, output] = text.match(/^Cannot execute: .*?Error code is: (-?\d+)(.*)/s) ?? [];
    const last = output?.trim().split("\n").at(-1);
    const found = code ? `spark-submit ended with code ${code}. Its last line: ${last}` : plain(text).replace(/\s+/g, " ").trim();
    return found.length > MAX_REASON ? `${found.slice(0, MAX_REASON)}…` : found;
  };
  // What the log of a failed task says: of the table's own task, or of the first that failed. Null if it says nothing.
  const readReason = async (run, table) => {
    const { task_instances: failed } = await ask("GET", `${run}/taskInstances?state=failed`);
    failed.sort((one, other) => new Date(one.end_date) - new Date(other.end_date));
    const { task_id: task, map_index: index, try_number: attempt } = failed.find((each) => each.task_id === table) ?? failed[0];
    const log = `${run}/taskInstances/${encodeURIComponent(task)}/logs/${attempt}?map_index=${index}`;
    const errors = (await ask("GET", log)).content.filter((each) => ["error", "critical"].includes(each.level));
    // What a task writes to standard error has this level as well: the exception comes first.
    const [raised] = errors.findLast((each) => each.error_detail?.length)?.error_detail ?? [];
    const text = shorten(raised ? raised.exc_value || raised.exc_type : errors.at(-1)?.event ?? "");
    return text && { task, text, path: `/tasks/${encodeURIComponent(task)}${index < 0 ? "" : `/mapped/${index}`}` };
  };

  const INPUTS = {
    area: () => element("textarea", { rows: 2 }),
    ranges: () => element("textarea", { rows: 2, spellcheck: false }),
    choice: (field) => element("select", {}, ...field.options.map((each) => element("option", { value: each, textContent: each }))),
    flag: () => element("input", { type: "checkbox" }),
    time: () => element("input", { type: "datetime-local", step: 1 }),
    text: () => element("input", { type: "text" }),
  };
  const addField = (field) => {
    const input = INPUTS[field.kind](field);
    const id = `field-${field.name}`;
    Object.assign(input, { id, name: field.name, required: field.required });
    if (field.kind !== "flag") input.value = field.value;
    if (field.required) input.minLength = 3;
    const hint = element("small", { id: `${id}-hint`, textContent: field.hint });
    if (field.hint) input.setAttribute("aria-describedby", hint.id);
    const label = element("label", { htmlFor: id, textContent: field.label });
    const shown = field.kind === "flag" ? [input, label] : [label, input];
    return element("div", { className: `field ${field.kind}` }, ...shown, ...(field.hint ? [hint] : []));
  };
  // The values as the form of the DAG takes them. What is not valid JSON is said at its field.
  const readFields = (operation, form) => {
    const values = {};
    for (const { name, kind } of operation.fields) {
      const input = form.elements[name];
      const text = input.value.trim();
      if (kind === "flag") values[name] = input.checked;
      else if (kind === "time") values[name] = text ? new Date(`${text}Z`).toISOString() : null;
      else if (kind !== "ranges") values[name] = text;
      else {
        input.setCustomValidity("");
        try { values[name] = text ? JSON.parse(text) : {}; }
        catch { input.setCustomValidity('Write it as {"0": [100, 5000]}.'); }
      }
    }
    return values;
  };

  // sent: it is sent as it is, without its fields.
  const open = (asked, sent = false) => {
    const operation = sent ? { ...asked, fields: [] } : asked;
    const said = element("p", { className: "said-now" });
    said.setAttribute("role", "status");
    const lines = element("pre", { className: "dry-run", tabIndex: 0 });
    lines.setAttribute("role", "region");
    lines.setAttribute("aria-label", "Dry run");
    const submit = element("button", { type: "submit", className: "primary", textContent: operation.submit });
    const close = element("button", { type: "button", textContent: "Cancel" });
    const checked = element("small", { className: "checked" });
    const heading = element("h2", { id: "dialog-title", textContent: operation.title });
    const fields = element("fieldset", {}, ...operation.fields.map(addField));
    // Otherwise nothing that is filled in changes the dry run: it is shown at once, above the fields.
    const chosen = operation.fields.some((field) => !["why", "accept_loss", "republish"].includes(field.name));
    const again = element("button", { type: "button", textContent: chosen ? "Dry run" : "Try again", hidden: !chosen });
    const shown = operation.dry_run ? [lines, checked] : [];
    const form = element(
      "form", { method: "dialog" }, heading, ...operation.text.map((text) => element("p", { textContent: text })),
      ...(chosen ? [fields, ...shown] : [...shown, fields]), said,
      element("p", { className: "buttons" }, submit, ...(operation.dry_run ? [again] : []), close),
    );
    const dialog = element("dialog", {}, form);
    dialog.setAttribute("aria-labelledby", heading.id);
    let pinned = {}, done = false, renewed = false;

    const say = (text, tone = "") => { said.className = `said-now ${tone}`; said.replaceChildren(text); };
    const dryRun = async () => {
      const given = readFields(operation, form);
      if (![...form.elements].every((each) => each.name === "why" || each.reportValidity())) return;
      lines.textContent = "Reading…";
      checked.textContent = "";
      again.hidden = !chosen;
      submit.disabled = !chosen; // until it is shown what would be done
      const query = new URLSearchParams({ dag: operation.dag, form: JSON.stringify({ ...operation.conf, ...given }) });
      const address = `${root.dataset.base}/api/tables/${encodeURIComponent(operation.table)}/dry-run?${query}`;
      for (let n = 0; n < ATTEMPTS && dialog.open; n++) {
        try {
          const found = await ask("GET", address);
          pinned = found.pinned;
          lines.textContent = plain(found.error ?? found.lines.join("\n"));
          lines.classList.toggle("bad", Boolean(found.error));
          checked.textContent = `Dry run of ${new Date(found.at ?? Date.now()).toLocaleTimeString(undefined, { timeZone: window.sluiceZone })}. It changes nothing.`;
          again.hidden = !chosen && !found.error;
          submit.disabled = false;
          return;
        } catch (error) {
          if (error.status !== 503) return failed(error.message);
          await pause(); // it is being read
        }
      }
      failed("No answer. Try again.");
    };
    const failed = (text) => { lines.textContent = text; again.hidden = submit.disabled = false; };
    // What asks for nothing that must be filled in is sent by this click.
    const next = () => {
      const follows = operation.then;
      const direct = !follows.dry_run && !follows.fields.some((field) => field.required);
      const button = element("button", { type: "button", textContent: direct ? follows.submit : follows.label });
      button.addEventListener("click", () => {
        done = false; // a reload would close the next dialog
        dialog.close();
        open(follows, direct);
      });
      return button;
    };
    const after = () => [...(operation.outcome ? [` ${operation.outcome}`] : []), ...(operation.then ? [" ", next()] : [])];
    // The server reads again what a run has changed; where that takes long, the first answers are of before its end.
    const renew = async (end) => {
      for (let n = 0; n < RENEWALS && dialog.open; n++) {
        const shown = await window.sluiceRenew();
        renewed = Boolean(shown) && !(new Date(shown.dateTime) < new Date(end));
        if (renewed) return said.append(` The page behind shows the state as of ${shown.textContent}.`);
        await pause(FOLLOW_MS);
      }
    };
    // As text only: a log holds what others wrote.
    const tellReason = async (address, path) => {
      const reason = await readReason(address, operation.table).catch(() => null); // such as a log of others, or none
      if (!reason) return "Its log says why.";
      const to = path + reason.path;
      const link = element("a", { href: root.dataset.airflow + to, textContent: `Log of task ${reason.task}` });
      link.dataset.airflowPath = to;
      return element("span", {}, element("q", { textContent: reason.text }), " ", link, ".");
    };
    // Until the run has ended, or the dialog is closed.
    const follow = async (dag, run) => {
      const path = `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
      const link = element("a", { href: root.dataset.airflow + path, textContent: run });
      link.dataset.airflowPath = path;
      const address = root.dataset.airflow + `/api/v2${path.replace("/runs/", "/dagRuns/")}`;
      const words = { success: " has succeeded.", failed: " has failed. " };
      for (let state = "queued", end; dialog.open; await pause(FOLLOW_MS)) {
        try { ({ state, end_date: end } = await ask("GET", address)); }
        catch { /* it is asked again */ }
        said.className = `said-now ${{ success: "good", failed: "bad" }[state] ?? ""}`;
        said.replaceChildren("Run ", link, words[state] ?? ` is ${state}.`);
        if (GOING_ON.includes(state)) continue;
        if (state === "success") said.append(...after());
        if (state === "failed") said.append(await tellReason(address, path));
        return renew(end);
      }
    };
    const send = async () => {
      const values = readFields(operation, form);
      if (!form.reportValidity()) return;
      submit.disabled = true;
      const starts = operation.method === "POST";
      const run = starts ? `${operation.run}__${new Date().toISOString()}` : operation.run;
      const body = { ...operation.body, ...(starts && { dag_run_id: run }) };
      if (operation.values_in) body[operation.values_in] = { ...body[operation.values_in], ...pinned, ...values };
      if (starts && values.why) body.note = `${body.note}: ${values.why}`;
      try {
        say("Sending…");
        if (operation.unpause) {
          const dag = `${root.dataset.airflow}/api/v2/dags/${encodeURIComponent(operation.dag)}`;
          await ask("PATCH", `${dag}?update_mask=is_paused`, { is_paused: false });
        }
        await ask(operation.method, root.dataset.airflow + operation.path, body);
        done = true;
        close.textContent = "Close";
        fields.disabled = true;
        if (run) await follow(operation.dag, run);
        else { say("Done.", "good"); said.append(...after()); await renew(0); }
      } catch (error) {
        say(error.message, "bad");
        submit.disabled = done;
      }
    };

    form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
    again.addEventListener("click", dryRun);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => { dialog.remove(); if (done && !renewed) location.reload(); });
    document.body.append(dialog);
    dialog.showModal();
    fields.querySelector("textarea, select, input")?.focus();
    // Of a range that is still to be entered there is nothing to show.
    if (sent) send();
    else if (operation.dry_run && !chosen) dryRun();
    else lines.textContent = "Nothing is shown yet: press Dry run.";
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.operate");
    if (button) open(JSON.parse(button.dataset.operation));
  });
})();
