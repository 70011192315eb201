// Filters that stand in the address, and buttons that copy. The pages say everything without this file.
"use strict";
document.documentElement.classList.add("js");

function filters() {
  const form = document.querySelector("form.filters");
  if (!form) return;
  const rows = [...document.querySelectorAll("tr[data-bug]")];
  const fields = [...form.elements].filter((field) => field.name);
  const asked = new URLSearchParams(location.search);
  for (const field of fields) {
    const value = asked.get(field.name) || "";
    const known = field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value);
    field.value = known ? value : "";
  }

  function matches(row) {
    return fields.every((field) => {
      const wanted = field.value.trim().toLowerCase();
      if (!wanted) return true;
      if (field.name === "q") {
        const text = (row.textContent + " " + row.dataset.boundary).toLowerCase();
        return wanted.split(/\s+/).every((word) => text.includes(word));
      }
      return row.dataset[field.name].toLowerCase().split(" ").includes(wanted);
    });
  }

  function apply() {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !matches(row);
      shown += row.hidden ? 0 : 1;
    }
    for (const section of document.querySelectorAll("section[data-target]")) {
      section.hidden = !section.querySelector("tr[data-bug]:not([hidden])");
    }
    form.querySelector("output").textContent = `${shown} of ${rows.length} bugs`;
  }

  function remember() {
    const query = new URLSearchParams();
    for (const field of fields) if (field.value.trim()) query.set(field.name, field.value.trim());
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : "") + location.hash);
  }

  form.addEventListener("input", () => { apply(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { apply(); remember(); }));
  apply();
}

async function put(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea"); // an older browser, or one that asks and was told no
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
      const done = await put(document.getElementById(button.dataset.copy).textContent);
      document.getElementById("said").textContent = done ? `${button.dataset.what} copied` : "not copied: select the text";
      button.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => { button.textContent = name; }, 2000);
    });
  }
}

// What scrolls by itself can be reached and scrolled with the keyboard; what does not is no stop on the way.
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
