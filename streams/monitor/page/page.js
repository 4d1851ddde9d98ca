// What must happen in the browser itself: the theme, and telling when the monitor is gone.
// A page that hears nothing can't tell; it says so instead of showing what was true once.
"use strict";
window.headwater = (() => {
  const THEMES = {
    auto: { next: "light", icon: "brightness_auto", label: "Theme: follows the system", dark: "auto" },
    light: { next: "dark", icon: "light_mode", label: "Theme: light", dark: false },
    dark: { next: "auto", icon: "dark_mode", label: "Theme: dark", dark: true },
  };
  const KEY = "headwater-theme";
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is switched off: the choice lasts as long as the page
    }
  };
  let theme = stored() in THEMES ? stored() : "auto";
  let heardAt = performance.now();
  let number = null;

  function applyTheme() {
    const { icon, label, dark } = THEMES[theme];
    window.Quasar?.Dark.set(dark);
    const button = document.getElementById("theme");
    if (!button) return;
    button.setAttribute("aria-label", label);
    button.title = label;
    const sign = button.querySelector(".q-icon");
    if (sign && sign.textContent !== icon) sign.textContent = icon;
  }

  function nextTheme() {
    theme = THEMES[theme].next;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // as above
    }
    applyTheme();
  }

  function clock(ms) {
    return new Date(ms).toLocaleTimeString([], { hour12: false });
  }

  // A table that is wider than its place is scrolled by the arrow keys, too.
  function reachTables() {
    for (const part of document.querySelectorAll(".q-table__middle")) {
      const isWide = part.scrollWidth > part.clientWidth + 1;
      if (isWide === part.hasAttribute("tabindex")) continue;
      if (!isWide) {
        for (const name of ["tabindex", "role", "aria-label"]) part.removeAttribute(name);
        continue;
      }
      part.setAttribute("tabindex", "0");
      part.setAttribute("role", "group");
      part.setAttribute("aria-label", part.closest("[aria-label]")?.getAttribute("aria-label") ?? "");
    }
  }

  function check() {
    const pulse = document.getElementById("pulse");
    if (!pulse) return;
    const { at, number: newest, goodFor } = pulse.dataset;
    if (newest !== number) {
      number = newest;
      heardAt = performance.now();
      pulse.classList.remove("beat");
      requestAnimationFrame(() => pulse.classList.add("beat"));
    }
    const silent = (performance.now() - heardAt) / 1000;
    const isLost = silent > Number(goodFor || 10);
    const updated = document.getElementById("updated");
    if (updated && at) updated.textContent = clock(Number(at));
    const changed = document.body.classList.toggle("is-lost", isLost) !== check.wasLost;
    check.wasLost = isLost;
    const note = document.getElementById("lost");
    if (!note || (!changed && !isLost)) return;
    const since = at ? ` What is below is from ${clock(Number(at))}.` : "";
    note.textContent = isLost
      ? `This page hears nothing from the monitor.${since} It comes back by itself.`
      : "";
  }

  document.addEventListener("DOMContentLoaded", () => {
    setInterval(check, 500);
    setInterval(reachTables, 1000);
    const ready = setInterval(() => {
      if (!document.getElementById("theme") || !window.Quasar) return;
      clearInterval(ready);
      applyTheme();
    }, 50);
  });
  return { nextTheme };
})();
