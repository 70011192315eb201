// Filters of the list of bugs, which are stored in the page's URL, and buttons that copy text. Without JavaScript, the
// pages still show their whole content.
"use strict";
document.documentElement.classList.add("js");

// The following functions check whether a configuration triggers a bug. They follow sentinel/recipes/affects.py and
// sentinel/tools/audit/reach.py, but do not know the defaults, which only a copy of the framework has.
function number(text) {
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text.trim()) ? Number(text) : null;
}

function same(one, other) {
  const [first, second] = [number(one), number(other)];
  return first === null || second === null ? one === other : first === second;
}

function holds(condition, value) {
  if (Array.isArray(condition)) return condition.some((each) => holds(each, value));
  const switches = { true: ["1", "yes", "on", "y", "t"], false: ["0", "no", "off", "n", "f"] };
  if ((switches[condition] || []).includes(value.toLowerCase())) return true;
  if (condition === "set" || condition === "unset") return ["null", "false", ""].includes(value) === (condition === "unset");
  const bound = /^(>=|<=|!=|>|<) (\S+)$/.exec(condition);
  if (!bound) return [value, ...value.split(",")].some((each) => same(condition, each.trim()));
  if (bound[1] === "!=") return !bound[2].split(",").some((each) => same(each, value));
  const [one, other] = [number(value), number(bound[2])];
  if (one === null || other === null) return false;
  return { ">": one > other, ">=": one >= other, "<": one < other, "<=": one <= other }[bound[1]];
}

function words(name, condition) {
  if (Array.isArray(condition)) return `${name}=${condition.join(" or ")}`;
  if (condition === "set" || condition === "unset") return `${name} ${condition === "set" ? "set" : "not set"}`;
  return name + (/^(>=|<=|!=|>|<) /.test(condition) ? " " : "=") + condition;
}

// Return the text of a setting; null if its value is known only in a run, and undefined if the setting is not given.
function setting(given, name) {
  const parts = name.split(".");
  if (given.has(name)) return given.get(name).includes("$") ? null : given.get(name);
  if ([...given.keys()].some((other) => other.startsWith(`${name}.`))) return "{…}";
  for (let size = 1; size < parts.length; size += 1) {
    const above = given.get(parts.slice(0, size).join("."));
    if (above) return above === "null" ? "null" : null;
  }
  return undefined;
}

function reach([when, where], given, asks) {
  const names = Object.keys(when);
  if (!names.length) return { answer: "only", because: where };
  const met = [], unknown = [];
  for (const name of names) {
    const value = setting(given, name);
    const bound = /^[<>]=? ([A-Za-z]\S*)$/.exec(when[name]); // the condition compares with another setting
    const limit = bound ? setting(given, bound[1]) : "";
    if (limit === undefined || limit === null) unknown.push(words(name, when[name]));
    else if (value === undefined || value === null) unknown.push(words(name, when[name]));
    else if (!holds(bound ? when[name].replace(bound[1], limit) : when[name], value)) return { answer: "no", because: `${name}=${value}` };
    else met.push(`${name}=${value}`);
  }
  if (asks && unknown.length && !met.length) return { answer: "no", because: `the configuration does not set ${unknown.join(", ")}` };
  const only = [...unknown, where].filter(Boolean).join(", and ");
  return only ? { answer: "only", because: only } : { answer: "hits", because: met.join(", ") };
}

// Split a command into words as a shell does. Variables are not expanded.
function shellWords(text) {
  const found = text.replace(/\\\r?\n/g, " ").match(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/g) || [];
  return found.map((word) => word.replace(/"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)/g, (all, two, one, character) => two ?? one ?? character));
}

function put(given, name, value, spell = true) {
  const key = (spell ? name.replace(/^[+-]+/, "").replaceAll("-", "_") : name);
  const text = value.trim().replace(/^(["'])(.*)\1$/, "$2");
  const list = /^\[(.*)\]$/.exec(text);
  const plain = list ? list[1].split(",").map((each) => each.trim()).join(",") : text;
  const small = plain.toLowerCase();
  for (const other of given.keys()) if (other.startsWith(`${key}.`)) given.delete(other);
  given.set(key, ["true", "false"].includes(small) ? small : ["none", "null", "~"].includes(small) ? "null" : plain);
}

function ofCommand(text) {
  const given = new Map(), all = shellWords(text);
  const begins = Math.max(all.lastIndexOf("-m") + 2, all.findLastIndex((word) => word.endsWith(".py")) + 1, 0);
  const words = all.slice(all.includes("-m") || all.some((word) => word.endsWith(".py")) ? begins : 0);
  let option = "", values = [];
  const close = () => { if (option) put(given, option, values.length > 1 ? `[${values.join(",")}]` : values[0] ?? "true"); };
  for (const word of words) {
    const assigned = /^\+{0,2}[A-Za-z_][\w/@]*(\.[\w/@-]+)*=/.test(word), dashed = /^--?[A-Za-z_]/.test(word);
    if (!assigned && !dashed) { values.push(word); continue; }
    close();
    [option, values] = ["", []];
    if (word.includes("=")) put(given, word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1));
    else option = word;
  }
  close();
  return given;
}

// Read a simple YAML file: mappings and lists in block style, and mappings in braces on one line. All other YAML, such
// as anchors, is not supported.
function ofYaml(text) {
  const given = new Map(), above = [];
  for (const line of text.split(/\r?\n/)) {
    const found = /^( *)(- )?("[^"]*"|'[^']*'|[^\s#:{}[\]][^:#]*?)\s*:(?:\s+(.*))?$/.exec(line.replace(/(^|\s)#.*$/, ""));
    const item = /^( *)- +([^:]+)$/.exec(line.replace(/(^|\s)#.*$/, ""));
    const depth = (found || item || [""])[1]?.length ?? 0;
    if (item && above.length) {
      const name = above.map((each) => each.name).join(".");
      given.set(name, [given.get(name), item[2].trim()].filter(Boolean).join(","));
    }
    if (!found || found[2]) continue;
    while (above.length && above.at(-1).depth >= depth) above.pop();
    above.push({ depth, name: found[3].replace(/["']/g, "").replaceAll("-", "_") });
    const name = above.map((each) => each.name).join("."), value = (found[4] || "").trim();
    const inner = /^\{(.*)\}$/.exec(value);
    if (inner) for (const pair of inner[1].split(",")) put(given, `${name}.${pair.split(":")[0].trim()}`, pair.split(":").slice(1).join(":"));
    else if (value) put(given, name, value, false);
  }
  return given;
}

function ofJson(data, prefix = "", given = new Map()) {
  for (const [key, value] of Object.entries(data)) {
    const name = prefix + key.replaceAll("-", "_");
    if (value && typeof value === "object" && !Array.isArray(value)) ofJson(value, `${name}.`, given);
    else given.set(name, Array.isArray(value) ? value.join(",") : String(value));
  }
  return given;
}

function settings(text) {
  if (text.trim().startsWith("{")) {
    try { return ofJson(JSON.parse(text)); } catch { return new Map(); }
  }
  const command = /(^|\s)(--?[A-Za-z_]|\+{0,2}[A-Za-z_][\w.@/]*=)/.test(text) && !/^\s*[\w.-]+:(\s|$)/m.test(text);
  return command ? ofCommand(text) : ofYaml(text);
}

// Return whether a bug is present in a version (one letter of the row), and whether a configuration triggers it.
function answered(row, version, given) {
  const letter = version < 0 ? "x" : row.dataset.at[version];
  if (letter === "-") return { answer: "absent", because: "" };
  if (row.dataset.realism === "unreachable") return { answer: "hardening", because: "no code of the framework produces the inputs that trigger it" };
  const asks = row.dataset.realism === "configuration"; // the defaults do not trigger the bug; a user must set an option
  const found = given ? JSON.parse(row.querySelector(".affects").textContent).map((entry) => reach(entry, given, asks)) : [{ answer: "there", because: "" }];
  const order = ["there", "hits", "only", "no"];
  const best = found.sort((one, other) => order.indexOf(one.answer) - order.indexOf(other.answer))[0] ||
    { answer: "only", because: "conditions hold that cannot be read from a configuration" };
  const fault = row.dataset.realism === "fault" && best.answer === "hits";
  if (fault) return { answer: "only", because: "another failure happens first" };
  return letter === "?" && best.answer !== "no" ? { answer: "unknown", because: best.because } : best;
}

const HEADINGS = {
  there: "", hits: "Triggered by your settings", only: "Possibly triggered by your run", unknown: "No result is recorded for this version",
  no: "Not triggered by your settings", hardening: "Hardening: the framework does not produce the inputs that trigger it", absent: "Not in this version",
};

function filters() {
  const form = document.querySelector("form.filters");
  if (!form) return;
  const list = document.querySelector("ul.bugs"), rows = [...list.children];
  const fields = [...form.elements].filter((field) => field.name);
  const named = Object.fromEntries(fields.map((field) => [field.name, field]));
  const asked = new URLSearchParams(location.search);
  const texts = new Map(rows.map((row) => [row, `${row.textContent} ${row.dataset.boundary}`.toLowerCase()]));
  const count = form.querySelector("output"), all = count.textContent;
  const bugs = (some) => new Set(some.filter((row) => row.dataset.realism !== "unreachable")
    .map((row) => `${row.dataset.target} ${row.dataset.root}`)).size; // recipes with the same root cause count as one bug

  function versions() {
    const chosen = named.target.selectedOptions[0], before = named.version.value;
    const names = (chosen?.dataset.versions || "").split(" ").filter(Boolean);
    named.version.replaceChildren(new Option("any", ""), ...names.map((name, place) => new Option(place || !chosen.dataset.commit ? name : `${name} (${chosen.dataset.commit})`, name)));
    named.version.value = names.includes(before) ? before : "";
    return names;
  }

  function matches(row) {
    return fields.every((field) => {
      const wanted = field.value.trim().toLowerCase();
      if (!wanted || field === named.version || field === named.run) return true;
      if (field === named.q) return wanted.split(/\s+/).every((word) => texts.get(row).includes(word));
      return row.dataset[field.name].toLowerCase().split(" ").includes(wanted);
    });
  }

  function apply() {
    const version = versions().indexOf(named.version.value);
    const given = named.target.value && named.run.value.trim() ? settings(named.run.value) : null;
    const groups = Object.fromEntries(Object.keys(HEADINGS).map((name) => [name, []]));
    for (const row of rows) {
      const { answer, because } = answered(row, version, given);
      row.querySelector(".because")?.remove();
      if (given && because) {
        const said = document.createElement("p");
        said.className = "because";
        said.textContent = (answer === "only" ? "only if " : answer === "unknown" ? "requires " : "because ") + because;
        row.append(said);
      }
      row.hidden = !matches(row);
      if (!row.hidden) groups[answer].push(row);
    }
    const shown = [];
    for (const [name, group] of Object.entries(groups)) {
      if (group.length && HEADINGS[name] && (given || version >= 0)) {
        const heading = document.createElement("li");
        heading.className = "heading";
        heading.textContent = `${HEADINGS[name]} (${bugs(group) || group.length})`;
        shown.push(heading);
      }
      shown.push(...group);
    }
    list.replaceChildren(...shown, ...rows.filter((row) => row.hidden));
    const seen = Object.values(groups).flat();
    const best = {}; // each bug is counted once, under the worst answer of its recipes
    let told = [];
    for (const name of ["hits", "only", "unknown", "no"]) {
      const before = bugs(told);
      told = told.concat(groups[name]);
      best[name] = bugs(told) - before;
    }
    const said = given ? [`${best.hits} triggered by your settings`, `${best.only} possibly triggered`, `${best.no} not triggered`] : [];
    if (version >= 0) said.push(`${bugs(groups.absent)} not in version ${named.version.value}`);
    count.textContent = seen.length === rows.length ? all : [`${bugs(seen)} of ${bugs(rows)} bugs`, ...said].join("; ");
    if (named.run.value.trim() && !named.target.value) count.textContent += "; choose a framework to evaluate the configuration";
  }

  function remember() {
    const query = new URLSearchParams(); // without the configuration, which may be long and private
    for (const field of fields) if (field !== named.run && field.value.trim()) query.set(field.name, field.value.trim());
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : "") + location.hash);
  }

  for (const field of fields) {
    if (field === named.version) versions();
    const value = asked.get(field.name) || "";
    const known = field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value);
    field.value = known ? value : "";
  }
  form.addEventListener("input", () => { apply(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { apply(); remember(); }));
  apply();
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea"); // the browser is old, or the user denied it the clipboard
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function copying() {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const name = button.textContent;
    button.addEventListener("click", async () => {
      const done = await copy(document.getElementById(button.dataset.copy).textContent);
      document.getElementById("said").textContent = done ? `${button.dataset.what} copied` : "not copied: select the text and copy it yourself";
      button.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => { button.textContent = name; }, 2000);
    });
  }
}

// Make elements with scroll bars focusable, so that they can be scrolled with the keyboard. Other elements are not
// focusable.
function scrolling() {
  const seen = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) {
        target.tabIndex = 0;
        target.setAttribute("role", "group");
        target.setAttribute("aria-label", target.dataset.name);
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
      }
    }
  });
  for (const part of document.querySelectorAll("[data-name]")) seen.observe(part);
}

filters();
copying();
scrolling();
